"""What each machine does in a step: its segments, forward in order and backward in reverse, and the messages between.

The backward pass sends each gradient back the way its tensor came.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..cluster.cost_model import CostModel, gather_seconds, mask_seconds, pack_seconds, sum_seconds
from ..cluster.machines import Cluster
from ..ir.box import volume
from .dataflow import RUN, Dataflow
from .pipeline_depth import count_in_flight

FORWARD, BACKWARD = "forward", "backward"
COLD = 5  # operators that take longer to start after a wait: as many as the probe has between two waits


@dataclass
class Send:
    """A message that leaves when a segment ends. wakes: position of the segment that waits for it at the target."""

    target: int
    bytes: int
    wakes: int


@dataclass
class TimedSegment:
    """One segment in one direction. waits: messages that it needs for each micro-batch."""

    label: str
    kind: str
    seconds: float
    waits: int = 0
    sends: list[Send] = field(default_factory=list)


@dataclass
class MachineSchedule:
    """A machine's segments: forward in order, then backward in reverse.

    max_in_flight: micro-batches that it has begun and not finished, see `count_in_flight`.
    backward_whole: several add to the gradient of the same state, which they do of one micro-batch after the other.
    """

    segments: list[TimedSegment]
    at: dict[int, int]  # stage -> position of its forward
    max_in_flight: int = 1
    backward_whole: bool = False

    def forward(self, stage: int) -> int:
        return self.at[stage]

    def backward(self, stage: int) -> int:
        return len(self.segments) - 1 - self.at[stage]


def make_schedules(
    dataflow: Dataflow, cluster: Cluster, costs: CostModel, slowdown: Sequence[float], micro_batches: int
) -> list[MachineSchedule]:
    """The segments of a step and the messages between them; backward is the mirror image of forward."""
    seconds = segment_seconds(dataflow, cluster, costs)
    roles = []
    stages_of: list[list[int]] = [[] for _ in cluster.machines]
    for machine, stage in sorted(seconds):
        stages_of[machine].append(stage)
    for machine, (spec, stages) in enumerate(zip(cluster.machines, stages_of, strict=True)):
        forward, backward = list[TimedSegment](), list[TimedSegment]()
        for stage in stages:
            ahead, back = seconds[machine, stage]
            slow = slowdown[machine]
            forward.append(TimedSegment(f"forward {stage}", FORWARD, slow * (spec.segment_s + ahead)))
            backward.append(TimedSegment(f"backward {stage}", BACKWARD, slow * (spec.segment_back_s + back)))
        roles.append(MachineSchedule([*forward, *reversed(backward)], {stage: i for i, stage in enumerate(stages)}))
    readers = _first_readers(dataflow)
    for edge in dataflow.edges:
        first = readers[edge.index]
        _connect(roles, edge.source, edge.target, dataflow.bytes(edge), FORWARD, (edge.stage, first))
        back = dataflow.gradient_bytes(edge)
        if back:
            _connect(roles, edge.target, edge.source, back, BACKWARD, (first, edge.stage))
    _add_packing(dataflow, cluster, roles, readers)
    for machine, spec in enumerate(cluster.machines):
        for segment in roles[machine].segments:
            copied_s = [_copy_seconds(cluster, machine, send.target, send.bytes) for send in segment.sends]
            segment.seconds += spec.message_s * (segment.waits + len(segment.sends)) + sum(copied_s)
    _add_shared_state(dataflow, cluster, roles, micro_batches)
    adding = _find_repeated_adders(dataflow) if micro_batches > 1 else ()
    for machine, (role, in_flight) in enumerate(zip(roles, count_in_flight(dataflow, micro_batches), strict=True)):
        role.max_in_flight, role.backward_whole = in_flight, machine in adding
    return roles


def _find_repeated_adders(dataflow: Dataflow) -> set[int]:
    """Return the machines of which several segments add to the gradient of the same piece of state, owned or copied."""
    pieces, tensors = dataflow.pieces, dataflow.graph.tensors
    origins = ((pieces[piece.origin] if piece.origin >= 0 else piece) for piece in pieces)
    adds = [origin.maker < 0 and tensors[origin.tensor].gradient for origin in origins]
    first, found = dict[int, int](), set[int]()
    for i in dataflow.instructions:
        for read in i.reads:
            for source in read.sources:
                if adds[source] and first.setdefault(source, i.stage) != i.stage:
                    found.add(i.machine)
    return found


def _add_packing(
    dataflow: Dataflow, cluster: Cluster, roles: list[MachineSchedule], readers: Mapping[int, int]
) -> None:
    """Add what it takes to leave rows of zeros out of messages and to put them back; backward the same again."""
    for edge in dataflow.edges if dataflow.depends_on_data else ():
        ends = ((edge.source, edge.stage), (edge.target, readers[edge.index]))
        packed = [(copy, dataflow.graph.tensors[dataflow.pieces[copy].tensor]) for _, copy in edge.pairs]
        for copy, info in packed:
            for machine, stage in ends if info.density < 1 else ():
                role, spec = roles[machine], cluster.machines[machine]
                seconds = pack_seconds(volume(dataflow.pieces[copy].box), info, spec)
                role.segments[role.forward(stage)].seconds += seconds
                role.segments[role.backward(stage)].seconds += seconds if info.gradient else 0.0


def _add_shared_state(dataflow: Dataflow, cluster: Cluster, roles: list[MachineSchedule], micro_batches: int) -> None:
    """Add what machines do besides: draw dropout masks for each micro-batch, exchange shared state once a step."""
    tensors = dataflow.graph.tensors
    mask_names: dict[int, set[str]] = defaultdict(set)
    for i in dataflow.instructions:
        mask_names[i.machine].update(read.tensor for read in i.reads if tensors[read.tensor].kind == "random")
    ahead, back = Counter[int](), Counter[int]()
    ahead_s, back_s = defaultdict[int, float](float), defaultdict[int, float](float)
    for edge in dataflow.shared_edges:
        ends, gradients = (edge.source, edge.target), dataflow.gradient_bytes(edge)
        ahead.update(ends)
        back.update(ends if gradients else ())
        ahead_s[edge.source] += _copy_seconds(cluster, edge.source, edge.target, dataflow.bytes(edge))
        back_s[edge.target] += _copy_seconds(cluster, edge.target, edge.source, gradients)
    for machine, spec in enumerate(cluster.machines):
        segments = roles[machine].segments
        if not segments:
            continue
        ahead_s[machine] += spec.message_s * ahead[machine]
        back_s[machine] += spec.message_s * back[machine]
        masks_s = mask_seconds(dataflow.graph, mask_names[machine], spec)
        segments[0].seconds += masks_s + ahead_s[machine] / micro_batches
        segments[-1].seconds += back_s[machine] / micro_batches


def _copy_seconds(cluster: Cluster, source: int, target: int, size: int) -> float:
    """Seconds that a machine is busy with copying what it sends; none where it travels."""
    copies_per_s = cluster.copies_between(source, target)
    return 0.0 if copies_per_s is None else size / copies_per_s


def _connect(
    roles: list[MachineSchedule], source: int, target: int, size: int, kind: str, stages: tuple[int, int]
) -> None:
    left, right = roles[source], roles[target]
    if kind == FORWARD:
        begin, end = left.forward(stages[0]), right.forward(stages[1])
    else:
        begin, end = left.backward(stages[0]), right.backward(stages[1])
    left.segments[begin].sends.append(Send(target, size, end))
    right.segments[end].waits += 1


def _first_readers(dataflow: Dataflow) -> dict[int, int]:
    """The earliest stage that reads each edge at its target."""
    edge_of = {copy: e.index for e in dataflow.edges for _, copy in e.pairs}
    readers: dict[int, int] = {}
    for i in dataflow.instructions:
        for edge in {edge_of[s] for read in i.reads for s in read.sources if s in edge_of}:
            readers[edge] = min(readers.get(edge, i.stage), i.stage)
    return readers


def segment_seconds(
    dataflow: Dataflow, cluster: Cluster, costs: CostModel
) -> dict[tuple[int, int], tuple[float, float]]:
    """Forward and backward seconds of each segment, by (machine, stage)."""
    out: dict[tuple[int, int], list[float]] = defaultdict(lambda: [0.0, 0.0])
    starts = defaultdict[tuple[int, int], list[tuple[float, float]]](list)
    ops, tensors = {op.name: op for op in dataflow.graph.ops}, dataflow.graph.tensors
    waiting = {machine for edge in (*dataflow.edges, *dataflow.shared_edges) for machine in (edge.source, edge.target)}
    for i in dataflow.instructions:
        machine, total = cluster.machines[i.machine], out[i.machine, i.stage]
        if i.kind == RUN:
            work = costs.work(ops[i.op], i.box)
            parts = [work.starts(machine) if i.index in dataflow.passing else work.seconds(machine)]
            starts[i.machine, i.stage].append(work.starts(machine) if i.machine in waiting else (0.0, 0.0))
            parts += [
                gather_seconds(r.box, len(r.sources), machine, element_bytes=tensors[r.tensor].element_bytes)
                for r in i.reads
                if r.box is not None and len(r.sources) > 1
            ]
        else:
            (read,) = i.reads
            parts = [sum_seconds(i.box, len(read.sources), machine, element_bytes=tensors[read.tensor].element_bytes)]
        for forward, backward in parts:
            total[0] += forward
            total[1] += backward
    for (number, stage), total in out.items():
        forward, backward = _cold_seconds(starts[number, stage], cluster.machines[number].cold)
        total[0] += forward
        total[1] += backward
        if (number, stage) in dataflow.cut.recomputed:
            total[1] += total[0]
    return {key: (forward, backward) for key, (forward, backward) in out.items()}


def _cold_seconds(starts: Sequence[tuple[float, float]], cold: float) -> tuple[float, float]:
    """Return how much longer a segment takes after a wait, forward and backward: later operators find it all warm."""
    ahead, back = (sum(one[i] for one in part) for i, part in enumerate((starts[:COLD], starts[-COLD:])))
    return cold * ahead, cold * back
