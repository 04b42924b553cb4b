"""`cutset bench plan --measure`: what plans of the standing pairs predict, and what is measured when they are run.

Each pair is planned as `cutset plan` does it: for processes of this machine, which is probed, with the operators of the
model measured. For emulated machines the link is measured, too. Then real processes make steps: the cut, and the whole
model in one of these processes. Nothing is fitted to the steps.

A prediction is for the machine as it was when it was measured, and the speed of one that others share changes by half
within minutes. So each of a pair's rounds measures the machine anew, predicts what the plan takes on it, and runs the
plan right after; the ratio is the median of the rounds' ratios, and a step that of their medians. So does it measure
anew on what the plan's verdict rests, where that was measured. A pair whose rounds disagree, on whether the step is
near to its prediction, faster or slower, or on whether one process is as good, has more of them.
"""

import os
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field

import msgspec

from ....errors import UsageError
from ....partition.cluster.machines import Cluster
from ....partition.dataflow.dataflow import Dataflow
from ....partition.dataflow.lowering import lower_cut
from ....partition.dataflow.simulator import simulate
from ....partition.placement.placement_file import Placement
from ....runtime.hosts.versions import read_cores
from ...probe.first_probe import find_machines
from ...probe.fit_constants import fit_line
from ...probe.measure_step import ProcessPlacement, StepTimes
from ...probe.measured_verdict import disagree, is_tie, measure_both, measure_close
from ...task.capture_task import CapturedTask, capture_task
from ...task.load_task import TaskSpec, load_task
from ...task.plan_request import HERE, PlanRequest
from ...task.plan_task import load_cut, micro_batch_spec, plan_task
from ...units import format_bytes, format_seconds
from ..bench_table import BenchTable, Column
from .emulated_cluster import EmulatedCluster, parse_rate, require_support
from .link import LinkTimes, measure_link
from .lockstep_vs_pipelined import count_step_bytes
from .standing_pairs import STANDING_PAIRS, StandingPair

ROUNDS, MAX_ROUNDS = 3, 7  # more than the first where these disagree
MIN_STEPS, MIN_WARM_UP = 30, 5  # of a round, of the cut and of one process
STEP_WITHIN = (0.85, 1.15)  # predicted over measured
MEMORY_WITHIN = 0.1
MIN_LATENCY_S = 1e-5
Tell = Callable[[str], None]


@dataclass(frozen=True)
class PredictedRound:
    """A round: the step of the cut as predicted, then as measured, and that of the model in one process.

    planned_ratio: what the plan says of the last over the first; where it measures that, as measured right before.
    """

    predicted_s: float
    cut: StepTimes
    alone: StepTimes
    planned_ratio: float

    @property
    def ratio(self) -> float:
        """Predicted over measured step."""
        return self.predicted_s / self.cut.median_s

    @property
    def alone_ratio(self) -> float:
        """The step in one process over that of the cut."""
        return self.alone.median_s / self.cut.median_s


@dataclass
class PlannedPair:
    """A pair with its plan, and its rounds so far."""

    pair: StandingPair
    spec: TaskSpec
    placement: Placement
    cut: CapturedTask
    whole: CapturedTask
    flow: Dataflow
    rounds: list[PredictedRound] = field(default_factory=list)

    @property
    def predicted_s(self) -> float:
        """The predicted step of the cut."""
        return statistics.median(one.predicted_s for one in self.rounds)

    @property
    def measured_s(self) -> float:
        """The measured step of the cut."""
        return statistics.median(one.cut.median_s for one in self.rounds)

    @property
    def one_machine_s(self) -> float:
        """The measured step of the model in one process."""
        return statistics.median(one.alone.median_s for one in self.rounds)

    @property
    def ratio(self) -> float:
        """Predicted over measured step."""
        return statistics.median(one.ratio for one in self.rounds)

    @property
    def step_holds(self) -> bool:
        """Whether the step is near enough to the prediction."""
        return not _side(self.ratio)

    @property
    def has_doubt(self) -> bool:
        """Whether rounds disagree on how near the prediction is, or on whether the cut or one process is the faster."""
        alone = [one.alone_ratio for one in self.rounds]
        return len({_side(one.ratio) for one in self.rounds}) > 1 or disagree(alone)

    @property
    def bytes_predicted(self) -> int:
        """The bytes that all machines together send in a step."""
        return count_step_bytes(self.flow, self.placement.micro_batches)

    @property
    def bytes_sent(self) -> int:
        """The bytes that they sent."""
        return self.rounds[-1].cut.bytes_sent

    @property
    def whole_bytes(self) -> tuple[int, int]:
        """The bytes of all regions that travel, predicted and measured, with the rows of zeros that did not."""
        last = self.rounds[-1].cut
        return count_whole_bytes(self.flow, self.placement.micro_batches), last.bytes_sent + last.bytes_left_out

    @property
    def bytes_exact(self) -> bool:
        """Whether these are the same."""
        predicted, measured = self.whole_bytes
        return predicted == measured

    @property
    def memory_ratio(self) -> float:
        """Predicted over measured memory, of the process for which it is furthest from 1."""
        taken = [max(sizes) for sizes in zip(*(one.cut.peak_bytes for one in self.rounds), strict=True)]
        predicted = [machine.memory_used_bytes for machine in self.placement.machines]
        ratios = [one / other if other else 0.0 for one, other in zip(predicted, taken, strict=True)]
        return max(ratios, key=lambda ratio: abs(ratio - 1))

    @property
    def says_fewer(self) -> bool:
        """Whether the plan says that one machine is as good as these."""
        return statistics.median(one.planned_ratio for one in self.rounds) <= 1

    @property
    def fewer_holds(self) -> bool:
        """Whether it says so rightly."""
        alone = statistics.median(one.alone_ratio for one in self.rounds)
        return is_tie(alone) or (alone <= 1) == self.says_fewer


def _side(ratio: float) -> int:
    """Return 0 where a prediction is near enough, -1 where it is too short, 1 where it is too long."""
    return (ratio > STEP_WITHIN[1]) - (ratio < STEP_WITHIN[0])


def measure_predictions(tell: Tell, pairs: Sequence[StandingPair] = STANDING_PAIRS) -> list[PlannedPair]:
    """Plan each pair and run it some times; return them. tell: is called with a line of progress now and then.

    Pairs with emulated links are left out where this process may not make any.
    """
    planned = []
    for pair in pairs:
        try:
            if pair.rate:
                require_support()
        except UsageError as error:
            tell(f"left out: {pair.model} on {pair.cluster}: {error.facts}")
            continue
        one, cluster = plan_pair(pair, tell)
        _measure_round(one, cluster)
        while len(one.rounds) < ROUNDS or (one.has_doubt and len(one.rounds) < MAX_ROUNDS):
            _measure_round(one, _measure_machines(pair, one.spec, one.whole, tell))
        planned.append(one)
        steps = ", ".join(f"{format_seconds(r.predicted_s)} and {format_seconds(r.cut.median_s)}" for r in one.rounds)
        tell(f"{pair.model} on {pair.cluster}: predicted and measured {steps} (load {os.getloadavg()[0]:.1f})")
    return planned


def plan_pair(pair: StandingPair, tell: Tell) -> tuple[PlannedPair, Cluster]:
    """Plan a pair for its cluster, as measured; return that, too."""
    task = load_task(pair.spec)
    spec = micro_batch_spec(pair.spec, task, pair.micro_batches)
    whole = capture_task(spec, task)
    cluster = _measure_machines(pair, spec, whole, tell)
    request = _make_request(pair)
    planned = plan_task(whole, spec, request, cluster)
    if not pair.rate:
        planned = measure_close(planned, whole, spec, request, cluster, tell, again=True)
    flow = lower_cut(planned.capture.train, load_cut(planned.capture, planned.placement))
    return PlannedPair(pair, spec, planned.placement, planned.capture, whole, flow), cluster


def _make_request(pair: StandingPair) -> PlanRequest:
    return PlanRequest(machines=pair.machines, cluster=HERE, micro_batches=pair.micro_batches)


def _measure_machines(pair: StandingPair, spec: TaskSpec, whole: CapturedTask, tell: Tell) -> Cluster:
    """Measure everything for this pair alone, as what is kept may be of a slower hour."""
    cluster = find_machines(whole, spec, _make_request(pair), tell, again=True)
    assert cluster is not None
    if not pair.rate:
        return cluster
    with _emulate(pair) as (where, payload_rate):
        return _link_machines(cluster, measure_link(where), payload_rate)


@contextmanager
def _emulate(pair: StandingPair) -> Iterator[tuple[ProcessPlacement, float]]:
    """Enter the emulated cluster of a pair: where processes run, and the rate of a link that tensors can have."""
    with EmulatedCluster(pair.machines, rate=parse_rate(pair.rate)) as emulated:
        yield emulated.process_placement, emulated.payload_rate


def _link_machines(cluster: Cluster, link: LinkTimes, payload_rate: float) -> Cluster:
    """Return machines with a measured link: what a message takes that machines send which have computed before."""
    bandwidth = min(payload_rate, 1 / fit_line(link.points).slope)
    latency = max(MIN_LATENCY_S, link.after_work_s - link.points[0][0] / bandwidth - 2 * cluster.machines[0].message_s)
    return cluster.on_network(bandwidth, latency, link.handled_per_s)


def _measure_round(one: PlannedPair, cluster: Cluster) -> None:
    """Predict the step of the cut on machines as they were just measured; then measure it, and that of one process."""
    verdict = one.placement.measured or one.placement.predicted
    planned_ratio = verdict.one_machine_s / verdict.step_s
    if one.placement.measured and one.rounds:  # else it was just planned
        first, second = measure_both(one.spec, one.placement, one.cut, one.whole)
        planned_ratio = second.median_s / first.median_s
    predicted_s = simulate(one.flow, cluster, micro_batches=one.placement.micro_batches).step_s
    with _emulate(one.pair) if one.pair.rate else nullcontext((None, 0.0)) as (where, _):
        times, in_one_process = measure_both(
            one.spec,
            one.placement,
            one.cut,
            one.whole,
            step_s=predicted_s,
            min_steps=MIN_STEPS,
            min_warm_up=MIN_WARM_UP,
            process_placement=where,
            workers=one.pair.machines if one.pair.rate else 1,
        )
    one.rounds.append(PredictedRound(predicted_s, times, in_one_process, planned_ratio))


def count_whole_bytes(dataflow: Dataflow, micro_batches: int) -> int:
    """Return the bytes of a step between machines if rows of zeros travelled, too."""
    infos = [msgspec.structs.replace(info, density=1.0) for info in dataflow.model.tensors.values()]
    graph = msgspec.structs.replace(dataflow.model, tensors={info.name: info for info in infos})
    return count_step_bytes(lower_cut(graph, dataflow.cut), micro_batches)


def _describe_name(one: PlannedPair) -> str:
    model = one.pair.model.rpartition(":")[2]
    return model if one.placement.micro_batches == 1 else f"{model}, {one.placement.micro_batches} micro-batches"


COLUMNS: tuple[Column[PlannedPair], ...] = (
    Column("model", "model", align="left", value=_describe_name),
    Column("machines", "machines", align="left", value=lambda one: one.pair.cluster),
    Column("plan", "plan", align="left", value=lambda one: one.placement.winner),
    Column("predicted", "predicted_s", format_seconds),
    Column("measured", "measured_s", format_seconds),
    Column("ratio", "ratio", "{:.2f}".format),
    Column("bytes", "bytes_predicted", format_bytes),
    Column("sent", "bytes_sent", format_bytes),
    Column("memory", "memory_ratio", "{:.2f}".format),
    Column("one process", "one_machine_s", format_seconds),
    Column("fewer", "says_fewer", lambda says: "yes" if says else "no"),
    Column("right", "fewer_holds", lambda right: "yes" if right else "NO"),
    Column("", "rounds", value=lambda one: [[each.predicted_s, each.cut.median_s] for each in one.rounds]),
    Column("", "one_machine_predicted_s", value=lambda one: one.placement.predicted.one_machine_s),
)


def tabulate(rows: Sequence[PlannedPair]) -> BenchTable[PlannedPair]:
    """Return the table of predictions and measurements."""
    count, (low, high) = len(rows), STEP_WITHIN
    held = {
        f"step within {low} to {high}": sum(one.step_holds for one in rows),
        "bytes exact": sum(one.bytes_exact for one in rows),
        f"memory within {MEMORY_WITHIN:.0%}": sum(abs(one.memory_ratio - 1) <= MEMORY_WITHIN for one in rows),
        "one machine or more, rightly": sum(one.fewer_holds for one in rows),
    }
    notes = (
        f"A step is forward and backward; ratio: predicted over measured. Each is the median of {ROUNDS} rounds, which "
        f"measure the machine, predict, and run; of up to {MAX_ROUNDS} where these disagree. memory: of the process "
        "that is furthest off, predicted over measured. fewer: whether the plan says that one process is as good, by "
        "what each round measures for that where the plan did; right: whether it is.",
        "How many bytes go to experts follows from data: exact they are with the rows that need not travel.",
        "; ".join(f"{what}: {number} of {count}" for what, number in held.items()) + ".",
        f"{read_cores()} cores, load {os.getloadavg()[0]:.1f} at the end.",
    )
    return BenchTable(COLUMNS, rows, notes=notes, facts={"held": held})
