"""Memory: what a machine holds during a step, and which activations are made again where it would be too much.

Recomputation is that of Chen et al., "Training Deep Nets with Sublinear Memory Cost" (2016), a segment at a time.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ..ir.box import volume
from ..cluster.machines import Cluster
from ..cluster.cost_model import VIEW, class_of, is_cast
from .dataflow import Flow
from ..ir.graph import STATE_KINDS
from ..operators.leaf_module import BLOCK


@dataclass
class _Machine:
    """Bytes. steady: state and the batch; held: what is there for every micro-batch in flight; made: by stage, for
    every micro-batch too, unless it is made again: then for one at a time.
    """

    steady: int = 0
    held: int = 0
    made: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    fixed: set[int] = field(default_factory=set)  # stages that cannot run twice

    def bytes(self, in_flight: int, again: set[int]) -> int:
        always = sum(size for stage, size in self.made.items() if stage not in again)
        largest = max((self.made[stage] for stage in again), default=0)
        return self.steady + in_flight * (self.held + always) + largest


def memory(flow: Flow, *, in_flight: int = 1) -> list[int]:
    """Bytes a machine needs: parameters, their gradients and a copy on its way, other state, activations in flight."""
    again = _by_machine(flow)
    return [machine.bytes(in_flight, again[number]) for number, machine in enumerate(_machines(flow))]


def fitted(flow: Flow, cluster: Cluster, *, in_flight: int = 1) -> Flow:
    """The same cut, on the machines that have too little memory with as few segments recomputed as will do.

    Where even all would not do, nothing is recomputed.
    """
    recomputed: set[tuple[int, int]] = set()
    for number, machine in enumerate(_machines(flow)):
        most, again = cluster.machines[number].memory_bytes, set[int]()
        candidates = sorted(machine.made.keys() - machine.fixed, key=lambda stage: (-machine.made[stage], stage))
        while machine.bytes(in_flight, again) > most and candidates:
            again.add(candidates.pop(0))
        if machine.bytes(in_flight, again) <= most:
            recomputed |= {(number, stage) for stage in again}
    if not recomputed:
        return flow
    return replace(flow, cut=replace(flow.cut, recomputed=frozenset(recomputed)))


def _by_machine(flow: Flow) -> Sequence[set[int]]:
    again: list[set[int]] = [set() for _ in range(flow.cut.machines)]
    for machine, stage in flow.cut.recomputed:
        again[machine].add(stage)
    return again


def _machines(flow: Flow) -> list[_Machine]:
    machines = [_Machine() for _ in range(flow.cut.machines)]
    tensors = flow.graph.tensors
    seen = [op for op in flow.graph.ops if class_of(op) == VIEW and not is_cast(op, tensors)]
    views = {name for op in seen for name in op.outputs}
    later = _read_later(flow)
    stages = {i.index: i.stage for i in flow.instructions}
    for piece in flow.pieces:
        info, machine = tensors[piece.tensor], machines[piece.machine]
        size = volume(piece.box) * info.element_bytes
        if piece.tensor in views and piece.origin < 0:
            continue
        if info.kind in STATE_KINDS:
            machine.steady += (3 if info.kind == "parameter" else 1) * size
        elif piece.maker < 0 or piece.index in later:
            machine.held += (2 if info.gradient else 1) * size
        else:
            machine.made[stages[piece.maker]] += (2 if info.gradient else 1) * size
    by_hand = {op.name for op in flow.graph.ops if op.target == BLOCK}
    for i in flow.instructions:
        if i.op in by_hand:  # the user's own code, which may remember how often it ran
            machines[i.machine].fixed.add(i.stage)
    batch = sum(volume(t.box) * t.element_bytes for t in tensors.values() if t.kind in ("input", "target"))
    for machine in machines:
        machine.held += batch
    return machines


def _read_later(flow: Flow) -> set[int]:
    """Pieces that a later segment of the machine that made them reads: leaves there, held as what comes from others."""
    stages = {i.index: i.stage for i in flow.instructions}
    return {
        source
        for i in flow.instructions
        for read in i.reads
        for source in read.sources
        if flow.pieces[source].maker >= 0 and stages[flow.pieces[source].maker] < i.stage
    }
