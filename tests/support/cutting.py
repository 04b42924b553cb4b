"""Runs a model cut and plain, and compares the two."""

import functools
import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from candidate_cuts import candidates
from hypothesis import strategies as st
from torch import Tensor, nn
from zoo import CASES, MORE_CASES, Case

from cutset.models.task import Data
from cutset.partition.capture.export import capture
from cutset.partition.capture.exported_draft import collect_state
from cutset.partition.cluster.machines import uniform_cluster
from cutset.partition.dataflow.carried_cut import carry_cut
from cutset.partition.dataflow.cut import Cut, check_cut, colocate_overwriters, fuse_boxes, one_machine_cut
from cutset.partition.dataflow.deferred_gradients import find_deferrable
from cutset.partition.dataflow.lowering import lower_cut
from cutset.partition.ir.autocast import autocast_context
from cutset.partition.ir.box import Interval, slices
from cutset.partition.ir.graph import Graph, LoopInfo
from cutset.partition.planner.plan import Candidate
from cutset.runtime.replica.replica import Replica
from cutset.runtime.worker.dropout_masks import mask_seed
from cutset.runtime.worker.program import programs
from cutset.runtime.worker.schedule import DATAFLOW

STEP = 3
DOUBLE = torch.float64


@dataclass(frozen=True)
class Outcome:
    """What a step leaves behind."""

    loss: float
    gradients: dict[str, Tensor]
    buffers: dict[str, Tensor]


class Subject:
    """A case of the zoo with its graphs; `fresh()` gives the same model again.

    autocast, unrolled: as of `capture`.
    """

    def __init__(self, case: Case, dtype: torch.dtype, autocast: str = "", *, unrolled: bool = False) -> None:
        self.exact, self.dtype, self.autocast, self._case = case.exact, dtype, autocast, case
        with torch.random.fork_rng():
            torch.manual_seed(1)
            batch = case.batch()
        self.batch = Data(*(tuple(self._cast(t) for t in group) for group in (batch.inputs, batch.targets)))
        form: dict[str, Any] = {"autocast": autocast, "unrolled": unrolled}
        self.graph, self.constants = capture(*self.fresh(), self.batch.inputs, self.batch.targets, **form)
        self.evaluation, more = capture(self.fresh()[0], None, self.batch.inputs, **form)
        self.constants |= more

    def fresh(self) -> tuple[nn.Module, Callable[..., Tensor]]:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return self._case.model().to(self.dtype).train(), self._case.loss

    def several(self, micros: int) -> Data:
        """A batch of that many micro-batches, all different."""
        return Data(*(tuple(_several(t, micros) for t in g) for g in (self.batch.inputs, self.batch.targets)))

    def _cast(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.dtype) if tensor.is_floating_point() else tensor


def _several(tensor: Tensor, micros: int) -> Tensor:
    parts = [tensor * (1 - 0.25 * m) if tensor.is_floating_point() else tensor.roll(m) for m in range(micros)]
    return torch.cat(parts)


@functools.cache
def subject(name: str, dtype: torch.dtype = DOUBLE, autocast: str = "") -> Subject:
    return Subject((CASES | MORE_CASES)[name], dtype, autocast)


# Running -----------------------------------------------------------------------------------------------------------


@functools.cache
def run_plain(of: Subject, *, micros: int = 1, seed: int = 0) -> Outcome:
    """The mean over micro-batches, one after the other, in plain torch."""
    model, loss = of.fresh()
    batch, size, total = of.several(micros), len(of.batch), 0.0
    for m in range(micros):
        rows = batch.rows(torch.arange(m * size, (m + 1) * size))
        with torch.random.fork_rng():
            torch.manual_seed(mask_seed(seed, STEP, m))
            with autocast_context(of.autocast):
                value = loss(model(*rows.inputs), *rows.targets)
        (value / micros).backward()
        total += value.item()
    gradients = {n: torch.zeros_like(p) if p.grad is None else p.grad for n, p in model.named_parameters()}
    return Outcome(total / micros, gradients, {name: b.clone() for name, b in model.named_buffers()})


def run_cut(of: Subject, cut: Cut, *, micros: int = 1, seed: int = 0, order: str = DATAFLOW) -> Outcome:
    """The same step on the cut model, over the in-memory channel. order: name of the schedule."""
    check_cut(of.graph, cut)
    with Replica(programs(lower_cut(of.graph, cut), training=True), seed=seed, order=order) as replica:
        load(replica, of)
        loss = replica.step(of.several(micros), STEP)
        return Outcome(loss, replica.gradients(), buffers(replica))


def load(replica: Replica, of: Subject) -> None:
    values = {n: v.clone() for n, v in collect_state(*of.fresh(), of.constants).items()}
    replica.load(values.__getitem__)


def buffers(replica: Replica) -> dict[str, Tensor]:
    """Whole buffers of a replica, put together from the workers' pieces."""
    whole: dict[str, Tensor] = {}
    for worker in replica.workers:
        for (name, box), piece in worker.states.pieces.items():
            info = worker.program.tensors[name]
            if info.kind == "buffer":
                into = whole.setdefault(name, torch.zeros(info.extents, dtype=piece.dtype))
                into[slices(box)] = piece
    shapes = {n: t.shape for w in replica.workers for n, t in w.program.tensors.items()}
    return {name: tensor.reshape(shapes[name]) for name, tensor in whole.items()}


@functools.cache
def planned(name: str, machines: int) -> tuple[Candidate, ...]:
    """Every candidate of the portfolio, not only the winner."""
    graph = subject(name).graph
    if machines == 1:
        return (Candidate("one machine", one_machine_cut(graph)),)
    return tuple(candidates(graph, uniform_cluster(machines), seed=0))


def pipeline(graph: Graph, machines: int) -> Cut:
    """As many whole operators, in their order, on each machine."""
    boxes = {op.name: [(op.nest.box, i * machines // len(graph.ops))] for i, op in enumerate(graph.ops)}
    return Cut(machines, colocate_overwriters(graph, boxes))


def recomputing(of: Subject, cut: Cut) -> Cut:
    """The same cut with the activations of every segment made again for backward."""
    spelled = lower_cut(of.graph, cut)
    return replace(cut, recomputed=frozenset((i.machine, i.stage) for i in spelled.instructions))


def deferring(of: Subject, cut: Cut, *, seed: int = 0) -> Cut:
    """The same cut with all gradients of parameters that can be left for later at some later place of backward."""
    spelled, rng = lower_cut(of.graph, cut), random.Random(seed)
    stages = {(i.machine, i.stage) for i in spelled.instructions}
    deferred = {
        (machine, stage): rng.choice(sorted(other for m, other in stages if m == machine and other <= stage))
        for machine, stage in sorted(find_deferrable(spelled))
    }
    return replace(cut, deferred=deferred)


def predict_cut(of: Subject, cut: Cut) -> Tensor:
    """The output of the evaluation graph, cut as training is."""
    spelled = lower_cut(of.graph, cut)
    carried = carry_cut(of.graph, spelled.cut, of.evaluation)
    check_cut(of.evaluation, carried)
    with Replica(programs(lower_cut(of.evaluation, carried), training=False)) as replica:
        load(replica, of)
        (output,) = replica.predict([of.batch], STEP)
        return output


# Comparing ---------------------------------------------------------------------------------------------------------


def assert_same(cut: Outcome, plain: Outcome, *, rtol: float, floor: float = 1e-3) -> None:
    """Loss, gradients and buffers agree within `rtol` of the largest entry of each tensor.

    Gradients that are zero by mathematics (of a bias before a batch norm) are rounding alone: an entry below `floor`
    times the largest of all gradients is measured against that. rtol 0 asks for the same bits.
    """
    assert abs(cut.loss - plain.loss) <= rtol * max(1.0, abs(plain.loss))
    trained = {name: plain.gradients[name] for name in cut.gradients}
    largest = max(gradient.abs().max().item() for gradient in trained.values() if gradient.numel())
    for name, expected in trained.items():
        _assert_close(name, cut.gradients[name], expected, rtol, floor * largest)
    for name, found in cut.buffers.items():
        if name in plain.buffers:
            _assert_close(name, found, plain.buffers[name], rtol, 1e-3)


def _assert_close(name: str, found: Tensor, expected: Tensor, rtol: float, least: float) -> None:
    assert found.shape == expected.shape, name
    if not rtol or not expected.is_floating_point():
        assert torch.equal(found, expected), name
        return
    worst = (found - expected).abs().max().item() if expected.numel() else 0.0
    scale = max(expected.abs().max().item(), least) if expected.numel() else 1.0
    assert worst <= rtol * scale, f"{name}: off by {worst:.3g} where the largest entry is {scale:.3g}"


# Cutting -----------------------------------------------------------------------------------------------------------


def cuts(graph: Graph, machines: int = 4) -> st.SearchStrategy[Cut]:
    """Random cuts: every loop that may be cut in one to three intervals, uneven ones too, every block on some machine.

    One number an operator says all, 0 that it stays whole on machine 0, so that hypothesis has little to shrink.
    """
    numbers = st.lists(st.integers(0, 2**16), min_size=len(graph.ops), max_size=len(graph.ops))
    return st.builds(lambda count, seeds: random_cut(graph, count, seeds), st.integers(2, machines), numbers)


def random_cut(graph: Graph, machines: int, seeds: Sequence[int]) -> Cut:
    boxes = {}
    for op, seed in zip(graph.ops, seeds, strict=True):
        rng = random.Random(seed)
        blocks = itertools.product(*(_intervals(loop, rng if seed else None) for loop in op.nest.loops))
        boxes[op.name] = [(block, rng.randrange(machines) if seed else 0) for block in blocks]
    return Cut(machines, fuse_boxes(machines, colocate_overwriters(graph, boxes)))


def _intervals(loop: LoopInfo, rng: random.Random | None) -> list[Interval]:
    parts = 1 if rng is None or loop.kind == "fixed" else min(loop.size, rng.choice([1, 2, 2, 3]))
    inner = sorted(rng.sample(range(1, loop.size), parts - 1)) if rng is not None and parts > 1 else []
    return list(itertools.pairwise([0, *inner, loop.size]))


def finest_cut(graph: Graph, machines: int) -> Cut:
    """Every loop that may be cut in two, reductions too, and the blocks dealt out in turn."""
    boxes = {}
    for op in graph.ops:
        halves = [
            [(0, loop.size)]
            if loop.kind == "fixed" or loop.size < 2
            else [(0, loop.size // 2), (loop.size // 2, loop.size)]
            for loop in op.nest.loops
        ]
        boxes[op.name] = [(block, i % machines) for i, block in enumerate(itertools.product(*halves))]
    return Cut(machines, fuse_boxes(machines, colocate_overwriters(graph, boxes)))
