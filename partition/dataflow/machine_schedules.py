"""What each machine does in a step: its segments, forward in order and backward in reverse, and the messages between.

The backward pass sends each gradient back the way its tensor came.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from ..cluster.cost_model import CostModel, gather_seconds, mask_seconds, pack_seconds, sum_seconds
from ..cluster.machines import Cluster
from ..ir.box import volume
from .dataflow import RUN, Dataflow, Instruction
from .deferred_gradients import SegmentKey, find_deferrable, find_deferred, order_backward
from .pipeline_depth import count_in_flight

FORWARD, BACKWARD, WEIGHTS = "forward", "backward", "weights"
DEFERRING_COSTS = 2.0  # times the overhead of a call: less is not worth to be deferred
COLD = 5  # operators that take longer to start after a wait: as many as the probe has between two waits


@dataclass
class Send:
    """A message that leaves when a segment ends. wakes: position of the segment that waits for it at the target."""

    target: int
    bytes: int
    wakes: int


@dataclass
class TimedSegment:
    """One segment in one direction, or the gradients of parameters that it left for later (`WEIGHTS`).

    waits: messages that it needs for each micro-batch.
    """

    stage: int
    kind: str
    seconds: float
    waits: int = 0
    sends: list[Send] = field(default_factory=list)


@dataclass
class MachineSchedule:
    """A machine's segments: forward in order, then backward in reverse, with what is deferred in between.

    max_in_flight: micro-batches that it has begun and not finished, see `count_in_flight`.
    backward_whole: several add to the gradient of the same state, which they do of one micro-batch after the other.
    """

    segments: list[TimedSegment]
    at: dict[tuple[str, int], int]  # kind and stage -> position
    max_in_flight: int = 1
    backward_whole: bool = False

    def forward(self, stage: int) -> int:
        return self.at[FORWARD, stage]

    def backward(self, stage: int) -> int:
        return self.at[BACKWARD, stage]

    @cached_property
    def forwards(self) -> int:
        """How many segments run forward."""
        return sum(segment.kind == FORWARD for segment in self.segments)


def make_schedules(
    dataflow: Dataflow, cluster: Cluster, costs: CostModel, slowdown: Sequence[float], micro_batches: int
) -> list[MachineSchedule]:
    """The segments of a step and the messages between them; backward is the mirror image of forward."""
    seconds = pass_seconds(dataflow, cluster, costs)
    roles = []
    stages_of: list[list[int]] = [[] for _ in cluster.machines]
    for machine, stage in sorted(seconds):
        stages_of[machine].append(stage)
    deferred: list[dict[int, int]] = [{} for _ in cluster.machines]
    for (machine, stage), one in find_deferred(dataflow).items():
        deferred[machine][stage] = one.after
    for machine, stages in enumerate(stages_of):
        order = [(stage, FORWARD) for stage in stages]
        order += [(at, WEIGHTS if left else BACKWARD) for at, left in order_backward(stages, deferred[machine])]
        segments = [TimedSegment(at, kind, slowdown[machine] * seconds[machine, at][kind]) for at, kind in order]
        roles.append(MachineSchedule(segments, {(kind, at): i for i, (at, kind) in enumerate(order)}))
    readers = first_readers(dataflow)
    for edge in dataflow.edges:
        first = readers[edge.index]
        _connect(roles, edge.source, edge.target, edge.bytes, FORWARD, (edge.stage, first))
        if edge.gradient_bytes:
            _connect(roles, edge.target, edge.source, edge.gradient_bytes, BACKWARD, (first, edge.stage))
    _add_packing(dataflow, cluster, roles, readers)
    for machine, spec in enumerate(cluster.machines):
        for segment in roles[machine].segments:
            segment.seconds += spec.message_s * (segment.waits + len(segment.sends))
            for send in segment.sends:
                segment.seconds += cluster.copying_s(machine, send.target, send.bytes)
    _add_shared_state(dataflow, cluster, roles, micro_batches)
    adding = _find_repeated_adders(dataflow) if micro_batches > 1 else ()
    for machine, (role, in_flight) in enumerate(zip(roles, count_in_flight(dataflow, micro_batches), strict=True)):
        role.max_in_flight, role.backward_whole = in_flight, machine in adding
    return roles


def deferrable_seconds(dataflow: Dataflow, cluster: Cluster, costs: CostModel) -> dict[SegmentKey, float]:
    """Return the seconds of parameters' gradients of the segments in which deferring them is worth the calls.

    costs: of the graph that was cut.
    """
    possible = find_deferrable(dataflow)
    seconds = _sum_parameter_seconds(dataflow, cluster, costs, possible)
    calls_s = {key: cluster.machines[key[0]].segment_back_s * len(own) for key, own in possible.items()}
    return {key: own for key, own in seconds.items() if own > DEFERRING_COSTS * calls_s[key]}


def _sum_parameter_seconds(
    dataflow: Dataflow,
    cluster: Cluster,
    costs: CostModel,
    instructions: Mapping[SegmentKey, Sequence[Instruction]],
) -> dict[SegmentKey, float]:
    ops = {op.name: op for op in dataflow.graph.ops} if instructions else {}
    return {
        (machine, stage): sum(costs.work(ops[i.op], i.box).parameter_seconds(cluster.machines[machine]) for i in own)
        for (machine, stage), own in instructions.items()
    }


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
        ends, gradients = (edge.source, edge.target), edge.gradient_bytes
        ahead.update(ends)
        back.update(ends if gradients else ())
        ahead_s[edge.source] += cluster.copying_s(edge.source, edge.target, edge.bytes)
        back_s[edge.target] += cluster.copying_s(edge.target, edge.source, gradients)
    for machine, spec in enumerate(cluster.machines):
        segments = roles[machine].segments
        if not segments:
            continue
        ahead_s[machine] += spec.message_s * ahead[machine]
        back_s[machine] += spec.message_s * back[machine]
        masks_s = mask_seconds(dataflow.graph, mask_names[machine], spec)
        segments[0].seconds += masks_s + ahead_s[machine] / micro_batches
        segments[-1].seconds += back_s[machine] / micro_batches


def _connect(
    roles: list[MachineSchedule], source: int, target: int, size: int, kind: str, stages: tuple[int, int]
) -> None:
    begin, end = roles[source].at[kind, stages[0]], roles[target].at[kind, stages[1]]
    roles[source].segments[begin].sends.append(Send(target, size, end))
    roles[target].segments[end].waits += 1


def first_readers(dataflow: Dataflow) -> dict[int, int]:
    """The earliest stage that reads each edge at its target."""
    edge_of = {copy: e.index for e in dataflow.edges for _, copy in e.pairs}
    readers: dict[int, int] = {}
    for i in dataflow.instructions:
        for edge in {edge_of[s] for read in i.reads for s in read.sources if s in edge_of}:
            readers[edge] = min(readers.get(edge, i.stage), i.stage)
    return readers


def pass_seconds(dataflow: Dataflow, cluster: Cluster, costs: CostModel) -> dict[SegmentKey, Mapping[str, float]]:
    """Return the seconds of each segment by kind: forward, backward, and of what backward leaves for later."""
    deferred = {key: one.instructions for key, one in find_deferred(dataflow).items()}
    later = _sum_parameter_seconds(dataflow, cluster, costs, deferred)
    out = dict[SegmentKey, Mapping[str, float]]()
    for key, (ahead, back) in segment_seconds(dataflow, cluster, costs).items():
        machine, weights = cluster.machines[key[0]], later.get(key, 0.0)
        kinds = {FORWARD: machine.segment_s + ahead, BACKWARD: machine.segment_back_s + max(0.0, back - weights)}
        if key in deferred:
            kinds[WEIGHTS] = machine.segment_back_s * len(deferred[key]) + weights
        out[key] = kinds
    return out


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
