"""Measures a cut and one process beside each other where they are predicted to take about as long on this machine.

A prediction that is a tenth off says the wrong thing of such a plan. What was measured is kept with the probe.
"""

import hashlib
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from ...errors import CutsetError
from ...partition.cluster.machines import Cluster
from ...partition.dataflow.cut import one_machine_cut
from ...partition.dataflow.lowering import lower_cut
from ...partition.placement.placement_file import MeasuredSteps, Placement
from ...partition.placement.verdict import describe_measured
from ...partition.planner.plan import TIME, TIME_TOLERANCE
from ...runtime.worker.program import programs
from ..measured.saved_probe import make_key, read_saved_probe
from ..task.capture_task import CapturedTask
from ..task.load_task import TaskSpec
from ..task.plan_request import HERE, PlanRequest
from ..task.plan_task import PlannedTask, load_cut, plan_task
from .first_probe import save

if TYPE_CHECKING:
    from .measure_step import ProcessPlacement, StepTimes

CLOSE = 1.25  # times as long as the other: where the prediction may say the wrong one
MAX_STEP_S = 5.0  # of which a few take too long for a plan
ROUNDS, MAX_ROUNDS = 2, 4  # more than the first where these disagree on which is faster; each starts all processes
STEPS_S, MIN_STEPS, MAX_STEPS = 3.0, 5, 400  # of a round, of each of the two
WARM_UP_S, MIN_WARM_UP, MAX_WARM_UP = 0.3, 2, 50  # processes that have just begun share a core at first
Tell = Callable[[str], None]


def measure_close(
    planned: PlannedTask,
    whole: CapturedTask,
    spec: TaskSpec,
    request: PlanRequest,
    cluster: Cluster,
    tell: Tell,
    *,
    again: bool = False,
) -> PlannedTask:
    """Return a plan with both steps as measured, and a verdict that says so, where predictions of them are close.

    A plan that is not for several processes of this machine is returned as it is, and one that the machine has no
    memory for beside the whole model. Where one process is faster, and fewer were allowed, the plan is of one. whole:
    the task as captured uncut. cluster: that was planned for. tell: as of `find_machines`; again: measure, and keep
    nothing.
    """
    placement = planned.placement
    if request.source != HERE or request.replicas > 1 or len(placement.machines) == 1:
        return planned
    if not _is_close(placement) or not _fits_beside_one(placement, cluster):
        return planned
    saved, _ = read_saved_probe(make_key(request.processes))
    name = _name_steps(placement)
    known = None if saved is None or again else saved.steps.get(name)
    if known is None:
        tell(f"{len(placement.machines)} processes and one are predicted to be about as fast: measuring both")
        try:
            known = _measure(planned, whole, spec)
        except CutsetError as error:
            tell(f"they could not be measured: {error.facts}")
            return planned
        if saved is not None and not again:
            save(msgspec.structs.replace(saved, steps={**saved.steps, name: known}), tell)
    measured = MeasuredSteps(*known)
    words = describe_measured(len(placement.machines), measured)
    if request.max_machines is not None and measured.one_machine_s < measured.step_s:
        one = replace(request, machines=1, max_machines=None)
        return _say_first(words, plan_task(whole, spec, one, cluster.alone(0)))
    planned = _say_first(f"{words} Predicted:", planned)
    return replace(planned, placement=msgspec.structs.replace(planned.placement, measured=measured))


def is_tie(ratio: float) -> bool:
    """Whether two steps of this ratio are as good as each other, as for the planner."""
    return 1 / TIME_TOLERANCE < ratio < TIME_TOLERANCE


def disagree(ratios: Sequence[float]) -> bool:
    """Whether by some of these the one is faster, by others the other; ties agree with all."""
    return len({ratio > 1 for ratio in ratios if not is_tie(ratio)}) > 1


def _say_first(words: str, planned: PlannedTask) -> PlannedTask:
    placement = planned.placement
    return replace(planned, placement=msgspec.structs.replace(placement, verdict=f"{words} {placement.verdict}"))


def _is_close(placement: Placement) -> bool:
    """Whether one process has the memory, and is predicted to be about as fast in a plan for time."""
    step_s, one_s = placement.predicted.step_s, placement.predicted.one_machine_s
    fits = all(candidate.fits for candidate in placement.candidates if candidate.machines == 1)
    return fits and placement.objective == TIME and 1 / CLOSE < one_s / step_s < CLOSE and step_s < MAX_STEP_S


def _fits_beside_one(placement: Placement, cluster: Cluster) -> bool:
    """Whether the machine has the memory for the plan's processes and one with the whole model at once."""
    alone = min((one.peak_memory_bytes for one in placement.candidates if one.machines == 1), default=0)
    taken = alone + sum(machine.memory_used_bytes for machine in placement.machines)
    return taken <= sum(machine.memory_bytes for machine in cluster.machines)


def _name_steps(placement: Placement) -> str:
    """Return under which name the steps of a placement are kept: that of its graph and its cut."""
    cut = placement.ops, placement.parameters, placement.micro_batches, placement.wave
    digest = hashlib.sha256(msgspec.json.encode(cut)).hexdigest()[:16]
    return f"{placement.fingerprint.graph[:16]} {digest}"


def measure_both(
    spec: TaskSpec,
    placement: Placement,
    cut: CapturedTask,
    whole: CapturedTask,
    *,
    step_s: float | None = None,
    min_steps: int = MIN_STEPS,
    min_warm_up: int = MIN_WARM_UP,
    process_placement: "ProcessPlacement | None" = None,
    workers: int = 1,
) -> "tuple[StepTimes, StepTimes]":
    """Return the steps of the cut, and those of one process with all cores, measured in turn.

    cut, whole: the task as captured for the placement, and uncut. step_s: what a step takes, about; by default as the
    placement predicts. min_steps, min_warm_up: of each at least, however long they take. process_placement, workers: as
    of `measure_in_turn`.
    """
    from .measure_step import measure_in_turn  # with all that starts processes, which other plans do not need

    flow = lower_cut(cut.train, load_cut(cut, placement))
    alone = lower_cut(whole.train, one_machine_cut(whole.train))
    step_s = step_s or placement.predicted.step_s
    first, second = measure_in_turn(
        spec,
        [(cut, programs(flow, training=True)), (whole, programs(alone, training=True))],
        steps=min(MAX_STEPS, max(min_steps, round(STEPS_S / step_s))),
        step_s=step_s,
        warm_up=min(MAX_WARM_UP, max(min_warm_up, round(WARM_UP_S / step_s))),
        micro_batches=placement.micro_batches,
        process_placement=process_placement,
        workers=workers,
    )
    return first, second


def _measure(planned: PlannedTask, whole: CapturedTask, spec: TaskSpec) -> tuple[float, float]:
    """Return both steps by some rounds.

    Their ratio is the median of the rounds' ratios, each of processes of its own.
    """
    cut_s, ratios = list[float](), list[float]()
    while len(ratios) < ROUNDS or (disagree(ratios) and len(ratios) < MAX_ROUNDS):
        cut, one = measure_both(spec, planned.placement, planned.capture, whole)
        cut_s.append(cut.median_s)
        ratios.append(one.median_s / cut.median_s)
    step_s = statistics.median(cut_s)
    return step_s, step_s * statistics.median(ratios)
