"""Plays one step of a cut as events: compute per segment, latency and bytes per message.

Machines do what workers do: shared state first; then the segments of every micro-batch as their inputs arrive, backward
before forward, no micro-batch ahead of an older one, and no more in flight than `cap`; then the gradients of shared
state. A machine has one network card each way; a link of its own bypasses them. The backward pass sends each gradient
back the way its tensor came.
"""

import heapq
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from . import reduction_split as joining
from ..ir.box import volume
from ..cluster.machines import Cluster
from ..cluster.cost_model import Costs, gather_seconds, noise_seconds, sum_seconds
from .dataflow import RUN, Edge, Flow, Instruction
from ..ir.graph import Op
from .memory_model import memory

FORWARD, BACKWARD, SEND = "forward", "backward", "send"


@dataclass(frozen=True)
class Activity:
    """An interval of the timeline; `machine` computes or sends."""

    machine: int
    kind: str
    label: str
    start_s: float
    stop_s: float


@dataclass(frozen=True)
class Simulation:
    """What a step costs. Per machine: flops and busy_s (forward and backward), memory_bytes."""

    step_s: float
    flops: tuple[float, ...]
    busy_s: tuple[float, ...]
    memory_bytes: tuple[int, ...]
    timeline: tuple[Activity, ...]


def simulate(
    flow: Flow,
    cluster: Cluster,
    *,
    micro_batches: int = 1,
    costs: Costs | None = None,
    slowdown: Sequence[float] = (),
) -> Simulation:
    """One step, forward and backward, of as many micro-batches of the graph's size.

    costs: what boxes of this graph cost, where they are worked out already; slowdown: how many times longer each
    machine computes than it should, 1 by default.
    """
    costs = costs or Costs(flow.model.tensors)
    if flow.graph is not flow.model:
        costs = Costs(flow.graph.tensors, costs, joining.changed(flow.graph))
    roles = _roles(flow, cluster, costs, slowdown or [1.0] * len(cluster), micro_batches)
    timeline = _Play(roles, flow, cluster, micro_batches).run()
    busy = [0.0] * len(cluster)
    for activity in timeline:
        if activity.kind != SEND:
            busy[activity.machine] += activity.stop_s - activity.start_s
    ops, flops = {op.name: op for op in flow.graph.ops}, [0.0] * len(cluster)
    for i in flow.instructions:
        flops[i.machine] += micro_batches * _flops(ops[i.op], i, costs)
    return Simulation(
        max((a.stop_s for a in timeline), default=0.0) + max(m.step_s for m in cluster.machines),
        tuple(flops),
        tuple(busy),
        tuple(memory(flow, in_flight=min(micro_batches, len(cluster)))),
        tuple(timeline),
    )


def _flops(op: Op, instruction: Instruction, costs: Costs) -> float:
    """Forward and backward FLOPs of an instruction."""
    if instruction.kind != RUN:
        return float(volume(instruction.box) * len(instruction.reads[0].sources))
    work = costs.work(op, instruction.box)
    return work.flops + work.flops_back


# What each machine does --------------------------------------------------------------------------------------------


@dataclass
class _Send:
    """A message that leaves when a segment ends. wakes: position of the segment at the target that waits for it."""

    target: int
    bytes: int
    wakes: int


@dataclass
class _Segment:
    """One segment, in one direction. waits: messages that it needs for each micro-batch."""

    label: str
    kind: str
    seconds: float
    waits: int = 0
    sends: list[_Send] = field(default_factory=list)


@dataclass
class _Role:
    """A machine's segments: forward in order, then backward in reverse."""

    segments: list[_Segment]
    at: dict[int, int]  # stage -> position of its forward

    def forward(self, stage: int) -> int:
        return self.at[stage]

    def backward(self, stage: int) -> int:
        return len(self.segments) - 1 - self.at[stage]


def _roles(flow: Flow, cluster: Cluster, costs: Costs, slowdown: Sequence[float], micro_batches: int) -> list[_Role]:
    """The segments of a step and how they hang together: backward is the mirror image of forward."""
    seconds = segment_seconds(flow, cluster, costs)
    roles = []
    for machine, spec in enumerate(cluster.machines):
        stages = sorted(stage for m, stage in seconds if m == machine)
        forward, backward = list[_Segment](), list[_Segment]()
        for stage in stages:
            ahead, back = seconds[machine, stage]
            slow = slowdown[machine]
            forward.append(_Segment(f"forward {stage}", FORWARD, slow * (spec.segment_s + ahead)))
            backward.append(_Segment(f"backward {stage}", BACKWARD, slow * (spec.segment_back_s + back)))
        roles.append(_Role([*forward, *reversed(backward)], {stage: i for i, stage in enumerate(stages)}))
    readers = _first_readers(flow)
    for edge in flow.edges:
        first = readers[edge.index]
        _connect(roles, edge.source, edge.target, flow.bytes(edge), FORWARD, (edge.stage, first))
        back = gradient_bytes(flow, edge)
        if back:
            _connect(roles, edge.target, edge.source, back, BACKWARD, (first, edge.stage))
    for machine, spec in enumerate(cluster.machines):
        for segment in roles[machine].segments:
            segment.seconds += spec.message_s * (segment.waits + len(segment.sends))
    _prepare(flow, cluster, roles, micro_batches)
    return roles


def _prepare(flow: Flow, cluster: Cluster, roles: list[_Role], micro_batches: int) -> None:
    """What a machine does besides: it draws for each micro-batch, and sends and takes shared state once a step."""
    tensors = flow.graph.tensors
    drawn: dict[int, set[str]] = defaultdict(set)
    for i in flow.instructions:
        drawn[i.machine].update(read.tensor for read in i.reads if tensors[read.tensor].kind == "noise")
    for machine, spec in enumerate(cluster.machines):
        segments = roles[machine].segments
        if not segments:
            continue
        shared = [edge for edge in flow.shares if machine in (edge.source, edge.target)]
        messages_s = spec.message_s / micro_batches
        segments[0].seconds += noise_seconds(flow.graph, drawn[machine], spec) + messages_s * len(shared)
        segments[-1].seconds += messages_s * sum(gradient_bytes(flow, edge) > 0 for edge in shared)


def _connect(roles: list[_Role], source: int, target: int, size: int, kind: str, stages: tuple[int, int]) -> None:
    left, right = roles[source], roles[target]
    if kind == FORWARD:
        begin, end = left.forward(stages[0]), right.forward(stages[1])
    else:
        begin, end = left.backward(stages[0]), right.backward(stages[1])
    left.segments[begin].sends.append(_Send(target, size, end))
    right.segments[end].waits += 1


def _first_readers(flow: Flow) -> dict[int, int]:
    """Edge -> the earliest stage at its target that reads it."""
    edge_of = {copy: e.index for e in flow.edges for _, copy in e.pairs}
    readers: dict[int, int] = {}
    for i in flow.instructions:
        for edge in {edge_of[s] for read in i.reads for s in read.sources if s in edge_of}:
            readers[edge] = min(readers.get(edge, i.stage), i.stage)
    return readers


def segment_seconds(flow: Flow, cluster: Cluster, costs: Costs) -> dict[tuple[int, int], tuple[float, float]]:
    """Forward and backward seconds by (machine, stage)."""
    out: dict[tuple[int, int], list[float]] = defaultdict(lambda: [0.0, 0.0])
    ops, tensors = {op.name: op for op in flow.graph.ops}, flow.graph.tensors
    waiting = {machine for edge in (*flow.edges, *flow.shares) for machine in (edge.source, edge.target)}
    for i in flow.instructions:
        machine, total = cluster.machines[i.machine], out[i.machine, i.stage]
        if i.kind == RUN:
            work = costs.work(ops[i.op], i.box)
            parts = [work.seconds(machine)]
            if i.machine in waiting and machine.cold:
                ahead, back = work.starts(machine)
                parts.append((machine.cold * ahead, machine.cold * back))
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
            total[1] += backward + (forward if (i.machine, i.stage) in flow.cut.recomputed else 0.0)
    return {key: (forward, backward) for key, (forward, backward) in out.items()}


def gradient_bytes(flow: Flow, edge: Edge) -> int:
    """What goes back over an edge."""
    gradient = flow.graph.tensors
    return sum(flow.piece_bytes(copy) for _, copy in edge.pairs if gradient[flow.pieces[copy].tensor].gradient)


# The clock ---------------------------------------------------------------------------------------------------------

START, ARRIVED, DONE, FOLDED = "start", "arrived", "done", "folded"


class _Play:
    """The events of a step. An event is (time, number, what, machine, position, micro-batch)."""

    def __init__(self, roles: list[_Role], flow: Flow, cluster: Cluster, micro_batches: int) -> None:
        self.roles, self.flow, self.cluster, self.micro_batches = roles, flow, cluster, micro_batches
        self.cap = len(cluster)
        count = len(roles)
        self.timeline: list[Activity] = []
        self.events: list[tuple[float, int, str, int, int, int]] = []
        self.number = 0
        self.out_free, self.in_free = [0.0] * count, [0.0] * count
        self.link_free: dict[tuple[int, int], float] = {}
        self.busy = [False] * count
        self.shares = [sum(e.target == m for e in flow.shares) for m in range(count)]  # still to arrive before the step
        self.progress = [[0] * micro_batches for _ in range(count)]
        self.oldest = [0] * count
        self.missing = [[[s.waits for s in role.segments] for _ in range(micro_batches)] for role in roles]

    def run(self) -> list[Activity]:
        for edge in self.flow.shares:
            self._send(edge.source, edge.target, self.flow.bytes(edge), 0.0, START)
        for machine in range(len(self.roles)):
            self._next(machine, 0.0)
        while self.events:
            time, _, what, machine, position, micro = heapq.heappop(self.events)
            if what == START:
                self.shares[machine] -= 1
            elif what == ARRIVED:
                self.missing[machine][micro][position] -= 1
            elif what == DONE:
                self._done(machine, position, micro, time)
            self._next(machine, time)
        return self.timeline

    def _at(self, time: float, what: str, machine: int, position: int = 0, micro: int = 0) -> None:
        self.number += 1
        heapq.heappush(self.events, (time, self.number, what, machine, position, micro))

    def _next(self, machine: int, now: float) -> None:
        """Start the most urgent segment that has all it needs."""
        if self.busy[machine] or self.shares[machine]:
            return
        progress, missing, segments = self.progress[machine], self.missing[machine], self.roles[machine].segments
        for micro in self._by_urgency(machine):
            position = progress[micro]
            if position < len(segments) and not missing[micro][position]:
                segment = segments[position]
                self.busy[machine] = True
                stop = now + segment.seconds
                label = segment.label if self.micro_batches == 1 else f"{segment.label} of micro-batch {micro}"
                self.timeline.append(Activity(machine, segment.kind, label, now, stop))
                self._at(stop, DONE, machine, position, micro)
                return

    def _by_urgency(self, machine: int) -> list[int]:
        """Micro-batches that may run: backward before forward, the oldest first, none ahead of an older one."""
        first = self.oldest[machine]
        active = list(range(first, min(first + self.cap, self.micro_batches)))
        progress, half = self.progress[machine], len(self.roles[machine].segments) // 2
        allowed = active[:1] + [m for before, m in pairwise(active) if progress[m] < progress[before]]
        return sorted(allowed, key=lambda m: (progress[m] < half, m))

    def _done(self, machine: int, position: int, micro: int, now: float) -> None:
        role = self.roles[machine]
        self.busy[machine] = False
        self.progress[machine][micro] += 1
        for send in role.segments[position].sends:
            self._send(machine, send.target, send.bytes, now, ARRIVED, send.wakes, micro)
        while self.oldest[machine] < self.micro_batches and self._complete(machine, self.oldest[machine]):
            self.oldest[machine] += 1
        if self.oldest[machine] == self.micro_batches and micro == self.micro_batches - 1:
            for edge in self.flow.shares:
                back = gradient_bytes(self.flow, edge) if edge.target == machine else 0
                if back:
                    self._send(machine, edge.source, back, now, FOLDED)

    def _complete(self, machine: int, micro: int) -> bool:
        return self.progress[machine][micro] == len(self.roles[machine].segments)

    def _send(
        self, source: int, target: int, size: int, now: float, what: str, position: int = 0, micro: int = 0
    ) -> None:
        """A message goes when the card, or the link, is free; it is there when its last byte is."""
        cluster, latency = self.cluster, self.cluster.latency_of(source, target)
        seconds = size / cluster.bandwidth_of(source, target)
        if cluster.link(source, target) is not None:
            begin = max(now, self.link_free.get((source, target), 0.0))
            self.link_free[source, target] = begin + seconds
            landed = begin + seconds + latency
        else:
            begin = max(now, self.out_free[source])
            self.out_free[source] = begin + size / cluster.bandwidth_out(source)
            landed = max(begin + seconds + latency, self.in_free[target] + size / cluster.bandwidth_in(target))
            self.in_free[target] = landed
        self.timeline.append(Activity(source, SEND, f"to {target}, {size} bytes", begin, landed))
        self._at(landed, what, target, position, micro)
