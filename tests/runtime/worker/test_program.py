"""Programs are plain data: they travel as bytes, hold what their machine needs and no more, and fit together."""

from functools import cache

import msgspec
import pytest
import torch
from cutting import finest_cut, subject
from torch import nn
from zoo import CASES, MORE_CASES

from cutset.partition.capture.export import capture
from cutset.partition.dataflow.cut import one_machine_cut
from cutset.partition.dataflow.lowering import lower_cut
from cutset.partition.ir.box import volume
from cutset.runtime.worker.program import Program, TransferEdge, programs

MACHINES = 3


@cache
def finest(name: str) -> list[Program]:
    graph = subject(name).graph
    return programs(lower_cut(graph, finest_cut(graph, MACHINES)), training=True)


@pytest.mark.first_cases(2)
@pytest.mark.parametrize("code", [msgspec.json, msgspec.msgpack], ids=["json", "msgpack"])
@pytest.mark.parametrize("name", [*CASES, *MORE_CASES])
def test_a_program_comes_back_from_bytes(name: str, code) -> None:  # type: ignore[no-untyped-def]
    for program in finest(name):
        assert code.decode(code.encode(program), type=Program) == program


@pytest.mark.first_cases(2)
@pytest.mark.parametrize("name", CASES)
def test_both_sides_of_an_edge_agree(name: str) -> None:
    parts = finest(name)
    for state in (False, True):
        sent: dict[tuple[int, int, int], TransferEdge] = {}
        for p in parts:
            links = p.shared_out if state else tuple(link for segment in p.segments for link in segment.sends)
            sent |= {(link.edge, p.machine, link.peer): link for link in links}
        taken = {
            (link.edge, link.peer, p.machine): link
            for p in parts
            for link in (p.shared_in if state else p.arrivals.values())
        }
        assert sent.keys() == taken.keys()
        for key, link in sent.items():
            assert link.boxes == taken[key].boxes
            tensors = [parts[key[1]].pieces[i].tensor for i in link.pieces]
            assert tensors == [parts[key[2]].pieces[i].tensor for i in taken[key].pieces]


@pytest.mark.first_cases(2)
@pytest.mark.parametrize("name", CASES)
def test_a_machine_holds_only_what_it_runs(name: str) -> None:
    graph = subject(name).graph
    spelled_out = lower_cut(graph, finest_cut(graph, MACHINES)).graph
    for program in finest(name):
        run = {step.op for segment in program.segments for step in segment.steps if step.op}
        drawn = {noise.op for noise in program.random_draws if noise.op}
        assert program.ops.keys() == run | drawn
        assert program.tensors.keys() <= spelled_out.tensors.keys()
        read = {o.tensor for segment in program.segments for step in segment.steps for o in step.operands}
        assert read <= program.tensors.keys()


@pytest.mark.first_cases(2)
@pytest.mark.parametrize("name", [*CASES, *MORE_CASES])
def test_every_parameter_element_is_owned_once_and_lies_in_a_flat_buffer(name: str) -> None:
    of, parts = subject(name), finest(name)
    assert sum(p.elements for p in parts) == sum(volume(t.box) for t in of.graph.parameters)
    for program in parts:
        spans = sorted(
            (s.offset, s.offset + volume(program.pieces[s.piece].box)) for s in program.states if s.offset >= 0
        )
        assert [0, *(stop for _, stop in spans)] == [*(start for start, _ in spans), program.elements]


def test_segments_come_in_stages_and_arrivals_go_back_after_their_first_reader() -> None:
    for program in finest("transformer"):
        stages = [segment.stage for segment in program.segments]
        assert stages == sorted(set(stages))
        assert program.returns.keys() == program.arrivals.keys()
        for edge, position in program.returns.items():
            readers = [i for i, segment in enumerate(program.segments) if edge in segment.receives]
            assert position == readers[0]


def test_the_loss_is_on_one_machine() -> None:
    assert sorted(len(p.results) for p in finest("mlp")) == [0, 0, 1]


def test_micro_batches_mix_unless_a_buffer_is_overwritten_in_several_segments() -> None:
    assert not any(program.one_at_a_time for program in finest("conv"))
    assert any(program.one_at_a_time for program in finest("running_mean"))


def test_the_buffer_has_a_dtype_that_holds_all_parameters() -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 2).double()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.second(self.first(x).double())

    graph, _ = capture(Mixed(), lambda y: y.sum(), [torch.zeros(2, 4)])
    (program,) = programs(lower_cut(graph, one_machine_cut(graph)), training=True)
    assert program.dtype == "float64"
