"""Plays one step of a cut as events: compute per segment, latency and bytes per message.

A machine has one network card each way. Backward costs twice the FLOPs of forward. Gives the seconds of a step, each
machine's busy time and memory, and the timeline.
"""

import heapq
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

from .box import volume
from .cluster import Cluster
from .exchange import RUN, Edge, Flow
from .graph import STATE_KINDS

FORWARD, BACKWARD, SEND = "forward", "backward", "send"
Key = tuple[str, int, int]  # FORWARD or BACKWARD, machine, stage


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


@dataclass
class _Task:
    """A segment's forward or backward. after: tasks on the same machine; waits: messages still to come."""

    seconds: float
    waits: int = 0
    then: list[Key] = field(default_factory=list)
    sends: list[tuple[int, int, Key | None]] = field(default_factory=list)  # target machine, bytes, task that waits


def simulate(flow: Flow, cluster: Cluster) -> Simulation:
    """One step of one micro-batch, forward and backward; shared state is sent before it and folded after it."""
    tasks = _tasks(flow, cluster)
    timeline = _play(tasks, cluster)
    busy = [0.0] * len(cluster)
    for activity in timeline:
        if activity.kind != SEND:
            busy[activity.machine] += activity.stop_s - activity.start_s
    flops = _flops(flow)
    return Simulation(
        max((a.stop_s for a in timeline), default=0.0),
        tuple(3 * sum(f for (m, _), f in flops.items() if m == machine) for machine in range(len(cluster))),
        tuple(busy),
        tuple(memory(flow)),
        tuple(timeline),
    )


def memory(flow: Flow) -> list[int]:
    """Bytes a machine needs: parameters, their gradients and a copy on its way, other state, activations."""
    need = [0] * flow.cut.machines
    for piece in flow.pieces:
        info = flow.graph.tensors[piece.tensor]
        copies = 3 if info.kind == "parameter" else 1 if info.kind in STATE_KINDS else 2 if info.gradient else 1
        need[piece.machine] += copies * volume(piece.box) * info.element_bytes
    batch = sum(volume(t.box) * t.element_bytes for t in flow.graph.tensors.values() if t.kind in ("input", "target"))
    return [bytes_ + batch for bytes_ in need]


def _flops(flow: Flow) -> dict[tuple[int, int], float]:
    """Forward FLOPs by (machine, stage)."""
    work = {op.name: op.nest.work for op in flow.graph.ops}
    out: dict[tuple[int, int], float] = defaultdict(float)
    for i in flow.instructions:
        points = volume(i.box) * (1 if i.kind == RUN else len(i.reads[0].sources))
        out[i.machine, i.stage] += points * (work[i.op] if i.kind == RUN else 1.0)
    return dict(out)


def _tasks(flow: Flow, cluster: Cluster) -> dict[Key, _Task]:
    """The tasks of a step and how they hang together: backward is the mirror image of forward."""
    count: dict[tuple[int, int], int] = defaultdict(int)
    readers: dict[tuple[int, int], int] = {}  # (machine, edge) -> earliest stage that reads it
    edge_of = {copy: e for e in flow.edges for _, copy in e.pairs}
    for i in flow.instructions:
        count[i.machine, i.stage] += 1
        for source in (s for read in i.reads for s in read.sources if s in edge_of):
            at = (i.machine, edge_of[source].index)
            readers[at] = min(readers.get(at, i.stage), i.stage)
    tasks: dict[Key, _Task] = {}
    for (machine, stage), flops in sorted(_flops(flow).items()):
        seconds = flops / cluster.machines[machine].flops_per_s + count[machine, stage] * cluster.operator_s
        tasks[FORWARD, machine, stage] = _Task(seconds)
        tasks[BACKWARD, machine, stage] = _Task(2 * seconds)
    _chain(tasks)
    for edge in flow.edges:
        reader = readers[edge.target, edge.index]
        _send(tasks, (FORWARD, edge.source, edge.stage), edge.target, flow.bytes(edge), (FORWARD, edge.target, reader))
        back = _bytes_back(flow, edge)
        if back:
            _send(tasks, (BACKWARD, edge.target, reader), edge.source, back, (BACKWARD, edge.source, edge.stage))
    _share(flow, tasks)
    return tasks


def _chain(tasks: dict[Key, _Task]) -> None:
    """On each machine: forward segments in order, then backward in reverse."""
    machines = sorted({machine for _, machine, _ in tasks})
    for machine in machines:
        stages = sorted(stage for kind, m, stage in tasks if m == machine and kind == FORWARD)
        order = [(FORWARD, machine, s) for s in stages] + [(BACKWARD, machine, s) for s in reversed(stages)]
        for before, after in pairwise(order):
            tasks[before].then.append(after)
            tasks[after].waits += 1


def _send(tasks: dict[Key, _Task], source: Key, target: int, size: int, reader: Key | None) -> None:
    tasks[source].sends.append((target, size, reader))
    if reader is not None:
        tasks[reader].waits += 1


def _share(flow: Flow, tasks: dict[Key, _Task]) -> None:
    """Shared state leaves when the step begins and its gradient returns when the machine is done."""
    for edge in flow.shares:
        stages = sorted(stage for kind, m, stage in tasks if m == edge.target and kind == FORWARD)
        start: Key = ("share", edge.source, edge.index)
        tasks[start] = _Task(0.0)
        _send(tasks, start, edge.target, flow.bytes(edge), (FORWARD, edge.target, stages[0]))
        back = _bytes_back(flow, edge)
        if back:
            _send(tasks, (BACKWARD, edge.target, stages[0]), edge.source, back, None)


def _bytes_back(flow: Flow, edge: Edge) -> int:
    gradient = flow.graph.tensors
    return sum(flow.piece_bytes(copy) for _, copy in edge.pairs if gradient[flow.pieces[copy].tensor].gradient)


def _play(tasks: dict[Key, _Task], cluster: Cluster) -> list[Activity]:
    """Run tasks when all they wait for is there; a machine runs one at a time, backward first."""
    machines = len(cluster)
    free, out_free, in_free = [0.0] * machines, [0.0] * machines, [0.0] * machines
    ready: list[list[tuple[bool, int, Key]]] = [[] for _ in range(machines)]
    timeline: list[Activity] = []
    events: list[tuple[float, int, Callable[[float], None]]] = []
    number = 0

    def at(time: float, action: Callable[[float], None]) -> None:
        nonlocal number
        number += 1
        heapq.heappush(events, (time, number, action))

    def arrive(key: Key, now: float) -> None:
        tasks[key].waits -= 1
        if tasks[key].waits == 0:
            heapq.heappush(ready[key[1]], (key[0] == FORWARD, key[2], key))
            start_next(key[1], now)

    def start_next(machine: int, now: float) -> None:
        if free[machine] > now or not ready[machine]:
            return
        _, _, key = heapq.heappop(ready[machine])
        free[machine] = now + tasks[key].seconds
        if key[0] != "share":
            timeline.append(Activity(machine, key[0], f"{key[0]} {key[2]}", now, free[machine]))
        at(free[machine], lambda time: finish(key, time))

    def finish(key: Key, now: float) -> None:
        for target, size, reader in tasks[key].sends:
            begin = max(now, out_free[key[1]])
            sent = begin + size / cluster.bandwidth
            out_free[key[1]] = sent
            landed = max(sent + cluster.latency_s, in_free[target] + size / cluster.bandwidth)
            in_free[target] = landed
            timeline.append(Activity(key[1], SEND, f"to {target}, {size} bytes", begin, landed))
            if reader is not None:
                at(landed, lambda time, reader=reader: arrive(reader, time))  # type: ignore[misc]
        for after in tasks[key].then:
            arrive(after, now)
        start_next(key[1], now)

    for key in sorted(key for key, task in tasks.items() if task.waits == 0):
        tasks[key].waits = 1
        at(0.0, lambda time, key=key: arrive(key, time))  # type: ignore[misc]
    while events:
        time, _, action = heapq.heappop(events)
        action(time)
    return timeline
