"""Lock-step against micro-batches on an emulated cluster: each plan's predicted step beside the measured one.

A net is planned for the cluster as any other: what its links do is measured between two machines before, what its
machines compute comes from a probe of this host or, where they are emulated, is given. Nothing is fitted to the steps.
"""

import os
import statistics
from collections.abc import Callable
from dataclasses import dataclass, replace

from ....partition.cluster.machines import Cluster, Machine
from ....partition.cluster.cost_model import Costs
from ....partition.dataflow.dataflow import Flow
from ....partition.placement.placement_file import Placement
from ....partition.planner.planner import Judged, Outcome, find
from ....partition.dataflow.simulator import Simulation, gradient_bytes, segment_seconds
from ....partition.placement.from_plan import written
from ....runtime.worker.program import programs
from ...task.load_task import TaskSpec, load_task
from ...task.plan_task import Captured, captured, micro_spec
from ...units import seconds_text
from .link import LinkTimes
from .emulated_cluster import EmulatedCluster
from ..planner.measure_step import Measured, measure, measure_uncut
from ..planner.venue import Venue

MICRO_BATCHES = (2, 4)
FASTEST = 5e9  # FLOP/s of an emulated machine, where this host is quick enough
ROOM = 0.5  # of what this host can compute, the part that the emulated machines may together compute at most
GAIN, OFF = 1.5, 0.35  # what is promised: micro-batches against lock-step, and predicted steps against measured ones
LEAST_S = 1e-5
WARM_UP = 3  # steps
# An emulated machine beside its FLOP/s: what starting an operator, a gradient and a segment costs on a desktop.
EMULATED = Machine("machine", operator_s=25e-6, gradient_s=10e-6, segment_s=20e-6, segment_back_s=25e-6)
Tell = Callable[[str], None]
Pace = list[tuple[float, float]]


@dataclass(frozen=True)
class Variant:
    """A way to run a step: with so many micro-batches, by the plan that was judged best for them."""

    name: str
    micro_batches: int
    spec: TaskSpec
    ready: Captured
    outcome: Outcome

    @property
    def judged(self) -> Judged:
        """The plan."""
        return self.outcome.winner

    @property
    def placement(self) -> Placement:
        """The plan as a file would state it."""
        return written(self.outcome, model=self.spec.model)

    @property
    def simulation(self) -> Simulation:
        """The predicted step."""
        return self.judged.simulation

    @property
    def bytes_sent(self) -> int:
        """In a step, forward and backward, by all machines together."""
        return bytes_of_step(self.judged.flow, self.micro_batches)


@dataclass(frozen=True)
class Row:
    """What became of a variant. rounds: median seconds of a step of each round. busy_s: see measure.Measured.

    plain_s: of a step of one round in which nothing is emulated but the network; None where that was not wanted.
    """

    variant: Variant
    rounds: tuple[float, ...]
    busy_s: float
    plain_s: float | None

    @property
    def measured_s(self) -> float:
        """The median of the rounds."""
        return statistics.median(self.rounds)

    @property
    def ratio(self) -> float:
        """Predicted over measured."""
        return self.variant.simulation.step_s / self.measured_s

    @property
    def off(self) -> float:
        """How far the prediction is from what was measured, as a share of that."""
        return abs(self.ratio - 1)

    @property
    def real_share(self) -> float:
        """Of the seconds that the machines compute by the prediction, how many a core of this host was at work."""
        return self.busy_s / sum(self.variant.simulation.busy_s)


@dataclass(frozen=True)
class Asked:
    """What to measure. rate: bytes/s of the wire; flops: of an emulated machine, None for the machines that there are,
    0 for what fits. micro_batches: numbers to choose from. plain: one round without emulated compute, too.
    """

    spec: TaskSpec
    machines: int
    rate: float
    flops: float | None
    micro_batches: tuple[int, ...] = MICRO_BATCHES
    rounds: int = 5
    steps: int = 10
    plain: bool = True


@dataclass(frozen=True)
class Found:
    """All that was found. flops: of an emulated machine, None where machines are what there is; candidates: the
    predicted step by number of micro-batches.
    """

    asked: Asked
    flops: float | None
    link: LinkTimes
    cluster: Cluster
    cores: int
    candidates: dict[int, float]
    rows: tuple[Row, ...]

    @property
    def alone(self) -> Row:
        """One machine."""
        return self.rows[0]

    @property
    def lock_step(self) -> Row:
        """The best plan for a batch in one piece."""
        return self.rows[1]

    @property
    def micro(self) -> Row:
        """The best plan for micro-batches."""
        return self.rows[-1]

    @property
    def off(self) -> float:
        """How far the predictions of cut steps are off at most."""
        return max(row.off for row in self.rows[1:])

    @property
    def gain(self) -> float:
        """How many times faster a step is with micro-batches than in lock-step."""
        return self.lock_step.measured_s / self.micro.measured_s

    @property
    def kept(self) -> dict[str, bool]:
        """Whether what is promised holds, in words."""
        return {
            f"micro-batches gain {self.gain:.2f} times over lock-step (promised: at least {GAIN:g})": self.gain >= GAIN,
            f"predicted steps are off by at most {100 * self.off:.0f} % (promised: {100 * OFF:.0f} %)": self.off <= OFF,
        }


def automatic_flops(asked: Asked, tell: Tell) -> float | None:
    """FLOP/s of the emulated machines: none are, where each machine has a core of its own; else what fits."""
    cores = os.cpu_count() or 1
    if asked.flops != 0.0:
        return asked.flops
    if cores >= asked.machines:
        return None
    ready = captured(asked.spec)
    work = sum(find(ready.train, Cluster((Machine("machine"),))).winner.simulation.flops)
    real = work / measure_uncut(asked.spec, ready, steps=20, workers=asked.machines).median_s
    flops = min(FASTEST, float(f"{real * cores * ROOM / asked.machines:.2g}"))
    tell(f"{asked.machines} machines on {cores} cores: each is emulated as one of {flops:.3g} FLOP/s")
    return flops


def cluster_of(asked: Asked, flops: float | None, link: LinkTimes, payload_rate: float) -> Cluster:
    """The machines and links to plan for: with the rate that was asked for, and the latency that was measured."""
    latency = max(LEAST_S, link.points[0][1] - 2 * link.message_s)
    if flops is not None:
        one = replace(EMULATED, flops_per_s=flops, message_s=link.message_s)
        machines = tuple(replace(one, name=f"machine {i}") for i in range(asked.machines))
        return Cluster(machines, payload_rate, latency)
    from ...probe.measure_machine import probe

    return replace(probe(asked.machines).cluster, bandwidth=payload_rate, latency_s=latency)


def variants(asked: Asked, cluster: Cluster, tell: Tell) -> tuple[list[Variant], dict[int, float]]:
    """One machine, lock-step, and the number of micro-batches with the shortest predicted step; all such steps."""
    lock_step = planned(asked.spec, cluster, 1, tell)
    several = [planned(asked.spec, cluster, count, tell) for count in asked.micro_batches]
    steps = {v.micro_batches: v.simulation.step_s for v in (lock_step, *several)}
    alone = find(lock_step.ready.train, cluster.first(1))
    micro = min(several, key=lambda v: v.simulation.step_s)
    return [Variant("one machine", 1, lock_step.spec, lock_step.ready, alone), lock_step, micro], steps


def planned(spec: TaskSpec, cluster: Cluster, count: int, tell: Tell) -> Variant:
    """The best plan with so many micro-batches of the batch of the spec."""
    smaller = micro_spec(spec, load_task(spec), count)
    ready = captured(smaller)
    outcome = find(ready.train, cluster, micro_batches=count)
    name = "lock-step" if count == 1 else f"{count} micro-batches"
    tell(f"{name}: {outcome.winner.name}, {seconds_text(outcome.winner.simulation.step_s)} by the prediction")
    return Variant(name, count, smaller, ready, outcome)


def pace_of(flow: Flow, cluster: Cluster) -> list[Pace]:
    """By machine and position in its program: what a segment takes by the cost model, forward and backward."""
    seconds = segment_seconds(flow, cluster, Costs(flow.graph.tensors))
    paces: list[Pace] = [[] for _ in cluster.machines]
    for (machine, _), (ahead, back) in sorted(seconds.items()):
        spec = cluster.machines[machine]
        paces[machine].append((spec.segment_s + ahead, spec.segment_back_s + back))
    return paces


def bytes_of_step(flow: Flow, micro_batches: int) -> int:
    """All tensors of a step that one machine sends another: activations, their gradients, and shared state once."""
    edges = sum(flow.bytes(edge) + gradient_bytes(flow, edge) for edge in flow.edges)
    return micro_batches * edges + sum(flow.bytes(edge) + gradient_bytes(flow, edge) for edge in flow.shares)


def run(asked: Asked, emulated: EmulatedCluster, link: LinkTimes, tell: Tell) -> Found:
    """Plan and measure, round after round, on the entered cluster."""
    flops = automatic_flops(asked, tell)
    cluster = cluster_of(asked, flops, link, emulated.payload_rate)
    found, candidates = variants(asked, cluster, tell)
    rounds: list[list[Measured]] = [[] for _ in found]
    for number in range(asked.rounds):
        for variant, measured in zip(found, rounds, strict=True):
            measured.append(_steps(variant, emulated.venue, asked.steps, paced=flops is not None))
            tell(f"round {number + 1} of {asked.rounds}: {variant.name} {seconds_text(measured[-1].median_s)}")
    wanted = asked.plain and flops is not None
    plain = [_steps(v, emulated.venue, asked.steps, paced=False) if wanted else None for v in found]
    rows = [
        Row(
            variant,
            tuple(m.median_s for m in measured),
            statistics.median(m.busy_s for m in measured),
            None if real is None else real.median_s,
        )
        for variant, measured, real in zip(found, rounds, plain, strict=True)
    ]
    return Found(asked, flops, link, cluster, os.cpu_count() or 1, candidates, tuple(rows))


def _steps(variant: Variant, venue: Venue, steps: int, *, paced: bool) -> Measured:
    flow = variant.judged.flow
    return measure(
        variant.spec,
        variant.ready,
        programs(flow, training=True),
        steps=steps,
        warm_up=WARM_UP,
        micro_batches=variant.micro_batches,
        venue=venue,
        paces=pace_of(flow, variant.judged.cluster) if paced else (),
    )
