"""`cutset bench cluster`: a step in lock-step and with micro-batches on an emulated cluster, predicted and measured.

A net is planned for the cluster as for any other. What the links do is measured between two machines before; what the
machines compute comes from a probe of this host or, if they are emulated, is given. Nothing is fitted to the steps.
"""

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from ....partition.cluster.cost_model import CostModel
from ....partition.cluster.machines import Cluster, Machine
from ....partition.dataflow.dataflow import Dataflow
from ....partition.dataflow.machine_schedules import pass_seconds
from ....partition.dataflow.simulator import Simulation
from ....partition.placement.from_plan import placement_of_plan
from ....partition.placement.placement_file import Placement
from ....partition.planner.plan import PlanningResult, ScoredPlan
from ....partition.planner.planner import find_plan
from ....runtime.hosts.versions import read_cores
from ....runtime.worker.program import programs
from ...probe.measure_step import ProcessPlacement, StepTimes, measure_programs, measure_uncut
from ...task.capture_task import CapturedTask, capture_task
from ...task.load_task import TaskSpec, load_task
from ...task.plan_task import micro_batch_spec
from ...units import format_seconds
from .emulated_cluster import EmulatedCluster
from .link import LinkTimes

MICRO_BATCHES = (2, 4)
FASTEST = 5e9  # FLOP/s of an emulated machine, where this host is quick enough
ROOM = 0.5  # of what this host can compute, the part that the emulated machines may together compute at most
MIN_GAIN, MAX_ERROR = 1.5, 0.35  # promised: micro-batches over lock-step, and predicted against measured steps
MIN_LATENCY_S = 1e-5
WARM_UP = 3  # steps
# An emulated machine beside its FLOP/s: what starting an operator, a gradient and a segment costs on a desktop.
EMULATED = Machine("machine", operator_s=25e-6, gradient_s=10e-6, segment_s=20e-6, segment_back_s=25e-6)
Tell = Callable[[str], None]
Pace = list[Mapping[str, float]]


@dataclass(frozen=True)
class Variant:
    """A way to run a step: with a number of micro-batches, by the best plan for them."""

    name: str
    micro_batches: int
    spec: TaskSpec
    capture: CapturedTask
    result: PlanningResult

    @property
    def plan(self) -> ScoredPlan:
        """The best plan."""
        return self.result.winner

    @property
    def placement(self) -> Placement:
        """The plan as it is written to a file."""
        return placement_of_plan(self.result, model=self.spec.model)

    @property
    def simulation(self) -> Simulation:
        """The predicted step."""
        return self.plan.simulation

    @property
    def bytes_sent(self) -> int:
        """The bytes that all machines together send in a step, forward and backward."""
        return count_step_bytes(self.plan.dataflow, self.micro_batches)


@dataclass(frozen=True)
class VariantResult:
    """The measured steps of a variant. rounds: the median seconds of each round. busy_s: as in StepTimes.

    plain_s: seconds of a step in one round in which nothing but the network is emulated; None if it was not measured.
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
    def error(self) -> float:
        """The error of the prediction as a fraction of the measured step."""
        return abs(self.ratio - 1)

    @property
    def real_fraction(self) -> float:
        """For which fraction of the predicted compute time a core of this host was at work."""
        return self.busy_s / sum(self.variant.simulation.busy_s)


@dataclass(frozen=True)
class ClusterExperiment:
    """What to measure.

    rate: bytes/s on the wire. flops: FLOP/s of an emulated machine; None for real machines, 0 for what fits this host.
    micro_batches: numbers to choose from. plain: whether to add one round without emulated compute.
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
class ClusterResult:
    """The results of an experiment.

    flops: of an emulated machine, None if machines are real. candidates: predicted step by number of micro-batches.
    """

    experiment: ClusterExperiment
    flops: float | None
    link: LinkTimes
    cluster: Cluster
    cores: int
    candidates: dict[int, float]
    rows: tuple[VariantResult, ...]

    @property
    def one_machine(self) -> VariantResult:
        """The model on one machine."""
        return self.rows[0]

    @property
    def lock_step(self) -> VariantResult:
        """The best plan for a batch in one piece."""
        return self.rows[1]

    @property
    def micro(self) -> VariantResult:
        """The best plan for micro-batches."""
        return self.rows[-1]

    @property
    def error(self) -> float:
        """The largest error of the predictions of cut steps."""
        return max(row.error for row in self.rows[1:])

    @property
    def gain(self) -> float:
        """How many times faster a step is with micro-batches than in lock-step."""
        return self.lock_step.measured_s / self.micro.measured_s

    @property
    def promises(self) -> dict[str, bool]:
        """Whether each promise holds."""
        gain, error = f"{self.gain:.2f}", f"{100 * self.error:.0f}"
        return {
            f"micro-batches gain {gain} times over lock-step (promised: at least {MIN_GAIN:g})": self.gain >= MIN_GAIN,
            f"predicted steps are off by at most {error} % (promised: {100 * MAX_ERROR:.0f} %)": self.error
            <= MAX_ERROR,
        }


def choose_flops(experiment: ClusterExperiment, tell: Tell) -> float | None:
    """Choose the FLOP/s of emulated machines: None if each has a core of its own, else what this host can do."""
    cores = read_cores()
    if experiment.flops != 0.0:
        return experiment.flops
    if cores >= experiment.machines:
        return None
    capture = capture_task(experiment.spec)
    work = sum(find_plan(capture.train, Cluster((Machine("machine"),))).winner.simulation.flops)
    real = work / measure_uncut(experiment.spec, capture, steps=20, workers=experiment.machines).median_s
    flops = min(FASTEST, float(f"{real * cores * ROOM / experiment.machines:.2g}"))
    tell(f"{experiment.machines} machines on {cores} cores: each is emulated as one of {flops:.3g} FLOP/s")
    return flops


def make_cluster(experiment: ClusterExperiment, flops: float | None, link: LinkTimes, payload_rate: float) -> Cluster:
    """Return the machines and links to plan for, with the rate that was asked for and the latency that was measured."""
    latency = max(MIN_LATENCY_S, link.points[0][1] - 2 * link.message_s)
    if flops is not None:
        one = replace(EMULATED, flops_per_s=flops, message_s=link.message_s)
        machines = tuple(replace(one, name=f"machine {i}") for i in range(experiment.machines))
        return Cluster(machines, payload_rate, latency)
    from ...probe.measure_machine import probe

    return probe(experiment.machines).cluster.on_network(payload_rate, latency, link.handled_per_s)


def plan_variants(
    experiment: ClusterExperiment, cluster: Cluster, tell: Tell
) -> tuple[list[Variant], dict[int, float]]:
    """Plan one machine, lock-step and the best number of micro-batches; also return the predicted steps by number."""
    lock_step = plan_variant(experiment.spec, cluster, 1, tell)
    several = [plan_variant(experiment.spec, cluster, count, tell) for count in experiment.micro_batches]
    steps = {v.micro_batches: v.simulation.step_s for v in (lock_step, *several)}
    alone = find_plan(lock_step.capture.train, cluster.select([0]))
    micro = min(several, key=lambda v: v.simulation.step_s)
    return [Variant("one machine", 1, lock_step.spec, lock_step.capture, alone), lock_step, micro], steps


def plan_variant(spec: TaskSpec, cluster: Cluster, count: int, tell: Tell) -> Variant:
    """Return the best plan that divides the batch of the spec into so many micro-batches."""
    smaller = micro_batch_spec(spec, load_task(spec), count)
    capture = capture_task(smaller)
    result = find_plan(capture.train, cluster, micro_batches=count)
    name = "lock-step" if count == 1 else f"{count} micro-batches"
    tell(f"{name}: {result.winner.name}, {format_seconds(result.winner.simulation.step_s)} by the prediction")
    return Variant(name, count, smaller, capture, result)


def compute_paces(dataflow: Dataflow, cluster: Cluster) -> list[Pace]:
    """Return by machine and position in its program a segment's seconds by the cost model, by kind."""
    paces: list[Pace] = [[] for _ in cluster.machines]
    for (machine, _), seconds in sorted(pass_seconds(dataflow, cluster, CostModel(dataflow.graph.tensors)).items()):
        paces[machine].append(seconds)
    return paces


def count_step_bytes(dataflow: Dataflow, micro_batches: int) -> int:
    """Sum the bytes of a step between machines: activations and their gradients, and shared state once.

    Of tensors that travel without their rows of zeros, the bytes that are expected.
    """
    edges = sum(edge.bytes + edge.gradient_bytes for edge in dataflow.edges)
    return micro_batches * edges + sum(edge.bytes + edge.gradient_bytes for edge in dataflow.shared_edges)


def run_experiment(
    experiment: ClusterExperiment, emulated: EmulatedCluster, link: LinkTimes, tell: Tell
) -> ClusterResult:
    """Plan and measure on the entered cluster."""
    flops = choose_flops(experiment, tell)
    cluster = make_cluster(experiment, flops, link, emulated.payload_rate)
    variants, candidates = plan_variants(experiment, cluster, tell)
    rounds: list[list[StepTimes]] = [[] for _ in variants]
    for number in range(experiment.rounds):
        for variant, measured in zip(variants, rounds, strict=True):
            measured.append(
                _measure_steps(variant, emulated.process_placement, experiment.steps, paced=flops is not None)
            )
            tell(f"round {number + 1} of {experiment.rounds}: {variant.name} {format_seconds(measured[-1].median_s)}")
    runs_plain = experiment.plain and flops is not None
    plain = [
        _measure_steps(v, emulated.process_placement, experiment.steps, paced=False) if runs_plain else None
        for v in variants
    ]
    rows = [
        VariantResult(
            variant,
            tuple(m.median_s for m in measured),
            statistics.median(m.busy_s for m in measured),
            None if real is None else real.median_s,
        )
        for variant, measured, real in zip(variants, rounds, plain, strict=True)
    ]
    return ClusterResult(experiment, flops, link, cluster, read_cores(), candidates, tuple(rows))


def _measure_steps(variant: Variant, process_placement: ProcessPlacement, steps: int, *, paced: bool) -> StepTimes:
    dataflow = variant.plan.dataflow
    return measure_programs(
        variant.spec,
        variant.capture,
        programs(dataflow, training=True),
        steps=steps,
        warm_up=WARM_UP,
        micro_batches=variant.micro_batches,
        process_placement=process_placement,
        paces=compute_paces(dataflow, variant.plan.cluster) if paced else (),
    )
