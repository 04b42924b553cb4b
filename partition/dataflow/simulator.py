"""Simulates one step of a cut, event by event: compute per segment, latency and bytes per message.

The schedule is that of the workers, 1F1B (one forward, one backward; PipeDream, Narayanan et al., SOSP 2019, section
3.2) with a flush at the end of a step (PipeDream-Flush, Narayanan et al., ICML 2021, section 3.2):

1. Shared state is sent to the machines that read it.
2. A machine runs the segments of every micro-batch as their inputs arrive, and in backward also what they have left for
   later (deferred_gradients.py): backward before forward, no micro-batch ahead of an older one, and no more in flight
   than there are machines (`count_in_flight`). Where several of its segments add to the same gradient, or overwrite the
   same buffer, it does so for one micro-batch after the other.
3. The gradients of shared state go back when the last micro-batch is done.

A machine has one network card each way, its own or that of its host, which messages take in turn; a pair with a link of
its own bypasses them. Those that share cores slow each other down while they compute (core_times.py), and so does what
handling a message takes at both ends while it is on its way. The backward pass sends each gradient back the way its
tensor came.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import msgspec

from ..cluster.cost_model import CostModel
from ..cluster.machines import Cluster
from ..ir.box import volume
from ..ir.graph import Op
from .core_times import CoreTimes, Stops
from .dataflow import RUN, Dataflow, Instruction
from .machine_schedules import MachineSchedule, make_schedules
from .memory_model import MemoryUse, peak_memory
from .network_times import NetworkTimes
from .reduction_split import split_operators

SEND = "send"


class Activity(msgspec.Struct, frozen=True, gc=False):
    """An interval of the timeline in which a machine computes or sends. stage: of the segment, -1 for a message."""

    machine: int
    kind: str
    label: str
    start_s: float
    stop_s: float
    stage: int = -1


@dataclass(frozen=True)
class Simulation:
    """The predicted cost of a step. flops, busy_s (forward and backward) and memory_bytes are per machine."""

    step_s: float
    flops: tuple[float, ...]
    busy_s: tuple[float, ...]
    memory_bytes: tuple[int, ...]
    timeline: tuple[Activity, ...]


def simulate(
    dataflow: Dataflow,
    cluster: Cluster,
    *,
    micro_batches: int = 1,
    costs: CostModel | None = None,
    slowdown: Sequence[float] = (),
    uses: Sequence[MemoryUse] | None = None,
) -> Simulation:
    """Simulate one step, forward and backward, of `micro_batches` batches of the graph's size.

    costs: the cost model of this graph, if there is one already. slowdown: factors by which machines compute more
    slowly than the cluster says, 1 by default. uses: what the machines hold, if it is known.
    """
    costs = costs or CostModel(dataflow.model.tensors)
    if dataflow.graph is not dataflow.model:
        costs = CostModel(dataflow.graph.tensors, costs, split_operators(dataflow.graph))
    roles = make_schedules(dataflow, cluster, costs, slowdown or [1.0] * len(cluster), micro_batches)
    timeline = _StepSimulation(roles, dataflow, cluster, micro_batches).run()
    busy = [0.0] * len(cluster)
    for activity in timeline:
        if activity.kind != SEND:
            busy[activity.machine] += activity.stop_s - activity.start_s
    held = peak_memory(dataflow, [role.max_in_flight for role in roles], uses)
    ops, flops = {op.name: op for op in dataflow.graph.ops}, [0.0] * len(cluster)
    for i in dataflow.instructions:
        flops[i.machine] += micro_batches * _flops(ops[i.op], i, costs)
    return Simulation(
        max((a.stop_s for a in timeline), default=0.0) + max(m.step_s for m in cluster.machines),
        tuple(flops),
        tuple(busy),
        tuple(machine.needed_bytes(size) for machine, size in zip(cluster.machines, held, strict=True)),
        tuple(timeline),
    )


def _flops(op: Op, instruction: Instruction, costs: CostModel) -> float:
    """Forward and backward FLOPs of an instruction."""
    if instruction.kind != RUN:
        return float(volume(instruction.box) * len(instruction.reads[0].sources))
    work = costs.work(op, instruction.box)
    return work.flops + work.backward_flops


START, ARRIVED, DONE, FOLDED, COMES, HANDLED = "start", "arrived", "done", "folded", "comes", "handled"


class _Message(NamedTuple):
    """A message on its way. begin_s: when its first byte leaves. what, position, micro: of the event when it landed."""

    source: int
    target: int
    bytes: int
    begin_s: float
    what: str
    position: int
    micro: int


class _StepSimulation:
    """The event loop of a step. An event is (time, number, kind, machine, position, micro-batch)."""

    def __init__(self, roles: list[MachineSchedule], dataflow: Dataflow, cluster: Cluster, micro_batches: int) -> None:
        self.roles, self.dataflow, self.cluster, self.micro_batches = roles, dataflow, cluster, micro_batches
        count = len(roles)
        self.timeline: list[Activity] = []
        self.events: list[tuple[float, int, str, int, int, int]] = []
        self.number = 0
        self.network = NetworkTimes(cluster)
        self.messages: list[_Message] = []
        self.handling: dict[int, list[tuple[int, float]]] = {}  # by message: machines, and cores that are busy with it
        self.busy = [False] * count
        self.cores = CoreTimes(cluster)
        self.running: dict[int, tuple[int, int, int]] = {}  # position, micro-batch, place in the timeline
        self.expected: dict[int, int] = {}  # by machine: the event in which it will be done
        self.shared_edges = [0] * count  # still to arrive before the step
        self.shared_back: list[list[tuple[int, int]]] = [[] for _ in range(count)]  # (source, bytes) of gradients
        for edge in dataflow.shared_edges:
            self.shared_edges[edge.target] += 1
            if edge.gradient_bytes:
                self.shared_back[edge.target].append((edge.source, edge.gradient_bytes))
        self.progress = [[0] * micro_batches for _ in range(count)]
        self.oldest = [0] * count
        self.missing = [[[s.waits for s in role.segments] for _ in range(micro_batches)] for role in roles]

    def run(self) -> list[Activity]:
        for edge in self.dataflow.shared_edges:
            self._send(edge.source, edge.target, edge.bytes, 0.0, START)
        for machine in range(len(self.roles)):
            self._next(machine, 0.0)
        while self.events:
            time, number, what, machine, position, micro = heapq.heappop(self.events)
            if what == DONE and number != self.expected[machine]:
                continue
            if what == START:
                self.shared_edges[machine] -= 1
            elif what == ARRIVED:
                self.missing[machine][micro][position] -= 1
                if self.missing[machine][micro][position]:
                    continue
            elif what == DONE:
                self._done(machine, position, micro, time)
            elif what == COMES:
                self._receive(position, time)
                continue
            elif what == HANDLED:
                for end, cores in self.handling.pop(position):
                    self._expect(self.cores.handle(end, -cores, time))
                continue
            if not self.busy[machine]:
                self._next(machine, time)
        return self.timeline

    def _at(self, time: float, what: str, machine: int, position: int = 0, micro: int = 0) -> None:
        self.number += 1
        heapq.heappush(self.events, (time, self.number, what, machine, position, micro))

    def _next(self, machine: int, now: float) -> None:
        """Start the most urgent segment whose inputs are there."""
        if self.shared_edges[machine]:
            return
        progress, missing, segments = self.progress[machine], self.missing[machine], self.roles[machine].segments
        for micro in self._by_urgency(machine):
            position = progress[micro]
            if position < len(segments) and not missing[micro][position]:
                segment = segments[position]
                self.busy[machine] = True
                label = f"{segment.kind} {segment.stage}"
                label = label if self.micro_batches == 1 else f"{label} of micro-batch {micro}"
                self.running[machine] = (position, micro, len(self.timeline))
                stop_s = now + segment.seconds
                self.timeline.append(Activity(machine, segment.kind, label, now, stop_s, segment.stage))
                self._expect(self.cores.start(machine, segment.seconds, now))
                return

    def _expect(self, stops: Stops) -> None:
        """Machines will be done at these moments, and not when they were expected to before."""
        for machine, stop in stops:
            position, micro, _ = self.running[machine]
            self._at(stop, DONE, machine, position, micro)
            self.expected[machine] = self.number

    def _by_urgency(self, machine: int) -> list[int]:
        """Micro-batches that may run, 1F1B: backward before forward, the oldest first, none ahead of an older one."""
        first = self.oldest[machine]
        if self.micro_batches == 1:
            return [first] if not first else []
        progress, role = self.progress[machine], self.roles[machine]
        active = list(range(first, min(first + role.max_in_flight, self.micro_batches)))
        half = role.forwards
        younger = [m for before, m in pairwise(active) if progress[m] < progress[before]]
        allowed = active[:1] + [m for m in younger if progress[m] < half or not role.backward_whole]
        return sorted(allowed, key=lambda m: (progress[m] < half, m))

    def _done(self, machine: int, position: int, micro: int, now: float) -> None:
        role = self.roles[machine]
        self.busy[machine] = False
        if self.cluster.shared:
            self._expect(self.cores.finish(machine, now))
            place = self.running[machine][2]
            self.timeline[place] = msgspec.structs.replace(self.timeline[place], stop_s=now)
        self.progress[machine][micro] += 1
        for send in role.segments[position].sends:
            self._send(machine, send.target, send.bytes, now, ARRIVED, send.wakes, micro)
        while self.oldest[machine] < self.micro_batches and self._complete(machine, self.oldest[machine]):
            self.oldest[machine] += 1
        if self.oldest[machine] == self.micro_batches and micro == self.micro_batches - 1:
            for source, size in self.shared_back[machine]:
                self._send(machine, source, size, now, FOLDED)

    def _complete(self, machine: int, micro: int) -> bool:
        return self.progress[machine][micro] == len(self.roles[machine].segments)

    def _send(
        self, source: int, target: int, size: int, now: float, what: str, position: int = 0, micro: int = 0
    ) -> None:
        """Send a message, which arrives with its last byte."""
        begin_s, first_s = self.network.send(source, target, size, now)
        self.messages.append(_Message(source, target, size, begin_s, what, position, micro))
        self._at(first_s, COMES, target, len(self.messages) - 1)

    def _receive(self, number: int, now: float) -> None:
        """The first byte of a message is there."""
        message = self.messages[number]
        landed = self.network.receive(message.source, message.target, message.bytes, now)
        label = f"to {message.target}, {message.bytes} bytes"
        self.timeline.append(Activity(message.source, SEND, label, message.begin_s, landed))
        self._handle(number, now, landed)
        self._at(landed, message.what, message.target, message.position, message.micro)

    def _handle(self, number: int, now: float, landed: float) -> None:
        """Keep cores at both ends of a message busy until it has landed, where they take time for what travels."""
        message, cluster = self.messages[number], self.cluster
        if landed <= now or cluster.copies_between(message.source, message.target) is not None:
            return
        seconds = [(end, cluster.handling_s(end, message.bytes)) for end in (message.source, message.target)]
        if any(own for _, own in seconds):
            self.handling[number] = [(end, own / (landed - now)) for end, own in seconds]
            for end, cores in self.handling[number]:
                self._expect(self.cores.handle(end, cores, now))
            self._at(landed, HANDLED, message.target, number)
