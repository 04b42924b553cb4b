"""A segment is compiled once; its calls look nothing up, and gradients are added up in the order of plain torch."""

import pytest
import torch
from cutting import finest_cut, recomputing, run_cut, run_plain, subject
from three_readers import Branches, loss_of
from torch import Tensor, nn

from cutset.models.task import Data
from cutset.partition.capture.export import capture
from cutset.partition.capture.exported_draft import collect_state
from cutset.partition.dataflow.cut import one_machine_cut
from cutset.partition.dataflow.lowering import lower_cut
from cutset.runtime.channel.mailbox import Mailbox
from cutset.runtime.channel.memory_channel import MemoryNetwork
from cutset.runtime.worker import segment_runner
from cutset.runtime.worker.prepared_segment import MicroBatch
from cutset.runtime.worker.program import Program, programs
from cutset.runtime.worker.segment_compiler import compile_segment
from cutset.runtime.worker.segment_runner import BatchTensors, SegmentRunner
from cutset.runtime.worker.worker import Worker


def uncut_program(model: nn.Module, x: Tensor) -> Program:
    graph, _ = capture(model, loss_of, [x])
    return programs(lower_cut(graph, one_machine_cut(graph)), training=True)[0]


def test_nodes_of_autograd_are_those_of_plain_torch() -> None:
    torch.manual_seed(0)
    model, x = Branches(), torch.randn(3, 5)
    graph, constants = capture(model, loss_of, [x])
    program = uncut_program(model, x)
    worker = Worker(program, Mailbox(MemoryNetwork().channel("w")), ["w"])
    worker.states.load(collect_state(model, loss_of, constants).__getitem__)
    runner, micro = worker._runner, MicroBatch(0, BatchTensors(program).take(Data((x,), ())), {})
    runner.forward(micro, 0)
    ours, plain = count_nodes(micro.made[0][-1]), count_nodes(model(x))
    assert ours == plain
    assert len(micro.made[0]) == len(graph.ops)


def count_nodes(result: Tensor) -> dict[str, int]:
    """The nodes of the graph of a result, by kind."""
    seen, pending, counts = set[object](), [result.grad_fn], dict[str, int]()
    while pending:
        node = pending.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        counts[type(node).__name__] = counts.get(type(node).__name__, 0) + 1
        pending += [following for following, _ in node.next_functions]
    return counts


def test_a_segment_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = list[str]()

    def watch(context: object, segment: object, which: str) -> object:
        compiled.append(which)
        return compile_segment(context, segment, which)  # type: ignore[arg-type]

    monkeypatch.setattr(segment_runner, "compile_segment", watch)
    of = subject("mlp")
    program = programs(lower_cut(of.graph, one_machine_cut(of.graph)), training=True)[0]
    worker = Worker(program, Mailbox(MemoryNetwork().channel("w")), ["w"])
    for step in range(3):
        worker.step(of.several(2), step)
    assert compiled == ["only"]


@pytest.mark.parametrize("name", ["overwrites", "running_mean"])
def test_a_recomputed_segment_leaves_buffers_as_one_that_is_not(name: str) -> None:
    of = subject(name)
    cut = finest_cut(of.graph, 2)
    kept, recomputed = run_cut(of, cut, micros=2), run_cut(of, recomputing(of, cut), micros=2)
    assert kept.loss == recomputed.loss
    for part, other in ((kept.gradients, recomputed.gradients), (kept.buffers, recomputed.buffers)):
        assert all(torch.equal(tensor, other[name]) for name, tensor in part.items())


def test_parameters_that_move_are_read_where_they_are() -> None:
    of = subject("mlp")
    program = programs(lower_cut(of.graph, one_machine_cut(of.graph)), training=True)[0]
    worker = Worker(program, Mailbox(MemoryNetwork().channel("w")), ["w"])
    values = {**dict(of.fresh()[0].named_parameters()), **dict(of.fresh()[0].named_buffers())}
    worker.states.load(values.__getitem__)
    first = worker.step(of.batch, 0)
    assert first == pytest.approx(run_plain(of).loss)
    worker.move(worker.values * 0.5)
    moved = worker.step(of.batch, 0)
    worker.move(worker.values * 2)
    assert worker.step(of.batch, 0) == first != moved


def test_a_piece_leaves_with_all_others_of_its_segment() -> None:
    of = subject("mlp")
    program = programs(lower_cut(of.graph, one_machine_cut(of.graph)), training=True)[0]
    runner = SegmentRunner(program, Worker(program, Mailbox(MemoryNetwork().channel("w")), ["w"]).states)
    micro = MicroBatch(0, BatchTensors(program).take(of.batch), {})
    runner.forward(micro, 0)
    assert len(micro.made[0]) == sum(len(step.makes) for step in program.segments[0].steps)
    runner.backward(micro, 0, 1)
    assert not micro.made
