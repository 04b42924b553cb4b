"""A machine's parameters are views of one flat buffer, and their gradients of its twin."""

import mmap
from pathlib import Path

import pytest
import torch
from cutting import finest_cut, subject

from cutset.partition.capture.exported_draft import collect_state
from cutset.partition.dataflow.carried_cut import carry_cut
from cutset.partition.dataflow.lowering import lower_cut
from cutset.partition.ir.box import slices
from cutset.runtime.worker import flat_parameters
from cutset.runtime.worker.flat_parameters import FlatParameters
from cutset.runtime.worker.program import Program, programs


def parts(name: str) -> tuple[list[Program], list[Program]]:
    of = subject(name)
    spelled = lower_cut(of.graph, finest_cut(of.graph, 3))
    evaluated = lower_cut(of.evaluation, carry_cut(of.graph, spelled.cut, of.evaluation))
    return programs(spelled, training=True), programs(evaluated, training=False)


def test_pieces_are_views_of_the_flat_buffers() -> None:
    for program in parts("conv")[0]:
        states = FlatParameters(program)
        states.values.copy_(torch.arange(program.elements))
        states.gradients.copy_(-torch.arange(program.elements))
        trained = [states.pieces[program.pieces[s.piece].tensor, program.pieces[s.piece].box] for s in program.states]
        trained = [piece for piece in trained if piece.requires_grad]
        assert torch.cat([p.detach().reshape(-1) for p in trained]).tolist() == list(range(program.elements))
        gradients = [piece.grad for piece in trained if piece.grad is not None]
        assert torch.equal(torch.cat([g.reshape(-1) for g in gradients]), states.gradients)


def test_pieces_may_move_to_other_memory() -> None:
    for program in parts("conv")[0]:
        states = FlatParameters(program)
        kept, frozen = dict(states.pieces), [p for p in states.pieces.values() if not p.requires_grad]
        states.move(torch.arange(program.elements, dtype=states.values.dtype))
        trained = [piece for piece in states.pieces.values() if piece.requires_grad]
        assert torch.cat([p.detach().reshape(-1) for p in trained]).tolist() == list(range(program.elements))
        assert all(states.pieces[region] is piece for region, piece in kept.items())  # whoever has one keeps it
        assert all(not piece.any() for piece in frozen)


def test_backward_adds_to_the_flat_gradients_in_place() -> None:
    program = parts("mlp")[0][0]
    states = FlatParameters(program)
    before = states.gradients.data_ptr()
    for _ in range(2):
        sum((piece.sum() for piece in states.pieces.values()), torch.zeros(())).backward()
    assert torch.equal(states.gradients, torch.full_like(states.gradients, 2.0))
    assert all(piece.grad is not None and piece.grad.data_ptr() >= before for piece in states.pieces.values())


@pytest.mark.run
def test_each_machine_keeps_its_slices_of_what_is_loaded() -> None:
    of = subject("transformer")
    values = collect_state(*of.fresh(), of.constants)
    covered = {name: torch.zeros_like(values[name], dtype=torch.int32) for name in values}
    for program in parts("transformer")[0]:
        states = FlatParameters(program)
        states.load(values.__getitem__)
        for (name, box), piece in states.pieces.items():
            extents = program.tensors[name].extents
            assert torch.equal(piece.detach(), values[name].reshape(extents)[slices(box)])
            covered[name].reshape(extents)[slices(box)] += 1
    held = {t.name for t in of.graph.states}
    assert all((covered[name] == 1).all() for name in held)


@pytest.mark.run
def test_evaluation_shares_the_pieces_and_adds_its_own_constants() -> None:
    for training, evaluation in zip(*parts("gpt"), strict=True):
        states = FlatParameters(training)
        before = dict(states.pieces)
        states.extend(evaluation)
        assert all(states.pieces[region] is piece for region, piece in before.items())
        needed = {(evaluation.pieces[s.piece].tensor, evaluation.pieces[s.piece].box) for s in evaluation.states}
        assert needed <= states.pieces.keys()


def test_zeros_take_no_memory_before_they_are_written() -> None:
    before = _read_resident()
    reserved = flat_parameters._reserve(64 << 20, torch.float32)
    assert _read_resident() - before < 16 << 20
    reserved.fill_(1)
    assert _read_resident() - before > 192 << 20
    assert flat_parameters._reserve(0, torch.bfloat16).shape == (0,)


def _read_resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE
