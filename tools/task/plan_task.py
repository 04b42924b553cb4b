"""From the graphs of a task to a placement, a cut and programs: what `plan`, `check`, `eval` and `train` share."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
from torch import Tensor

from ...errors import BadInput, UsageError
from ...partition.dataflow.cut import Cut
from ...partition.dataflow.dataflow import lower_cut
from ...partition.dataflow.evaluation_cut import evaluation_cut
from ...partition.placement.from_plan import plan_placement
from ...partition.placement.placement_file import Placement
from ...partition.placement.to_cut import cut_from_placement
from ...runtime.worker.program import Program, programs
from .capture_task import CapturedTask, capture_rest, capture_unrolled
from .load_task import TaskSpec
from .plan_request import PlanRequest

if TYPE_CHECKING:
    from ...models.task import Task


def micro_batch_spec(spec: TaskSpec, task: "Task", micro_batches: int) -> TaskSpec:
    """Return the spec whose batch is one of so many micro-batches of the task's batch."""
    batch = spec.batch or task.batch
    if micro_batches < 1 or batch % micro_batches:
        raise UsageError(
            "E209",
            f"{micro_batches} micro-batches of a batch of {batch} samples; it must divide",
            fix=f"--micro-batches {_nearest_divisor(batch, micro_batches)}",
        )
    return msgspec.structs.replace(spec, batch=batch // micro_batches)


def _nearest_divisor(batch: int, near: int) -> int:
    return min((d for d in range(1, batch + 1) if batch % d == 0), key=lambda d: (abs(d - near), d))


@dataclass(frozen=True)
class PlannedTask:
    """A placement, and the task captured in the form that it is of. notes: what the user should know of both forms."""

    placement: Placement
    capture: CapturedTask
    notes: tuple[str, ...]


def plan_task(capture: CapturedTask, spec: TaskSpec, request: PlanRequest) -> PlannedTask:
    """Return the best placement of a captured task, whose batch is a micro-batch.

    For several machines, a task with recurrent nets is captured in their unrolled form as well.
    """
    cluster = request.load_cluster()
    other = capture_unrolled(capture, spec) if len(cluster) > 1 else None
    placement = plan_placement(
        capture.train,
        cluster,
        model=spec.model,
        unrolled=None if other is None or not other.unrolled else other.train,
        seed=request.seed,
        candidates=request.candidates,
        fewer=request.max_machines is not None,
        objective=request.objective,
        pins=request.pins,
        micro_batches=request.micro_batches,
    )
    chosen = other if other is not None and placement.unrolled else capture
    own = {"leaf_modules": list(capture.leaf_modules), "autocast": capture.autocast, "frozen": list(spec.frozen)}
    placement = msgspec.structs.replace(placement, unrolled=chosen.unrolled, **own)
    notes = (*capture.notes, *(other.notes if other is not None else ()))
    return PlannedTask(placement, chosen, tuple(dict.fromkeys(notes)))


def with_placement(placement: Placement | None, spec: TaskSpec) -> TaskSpec:
    """Return the spec with what a placement was made with, if any: leaf modules, autocast, form, frozen names."""
    if placement is None:
        return spec
    own = {"leaf_modules": tuple(placement.leaf_modules), "frozen": tuple(placement.frozen)}
    return msgspec.structs.replace(spec, autocast=placement.autocast, unrolled=placement.unrolled, **own)


def load_cut(capture: CapturedTask, placement: Placement) -> Cut:
    """Return the cut of a placement file for a captured task; BadInput names the first difference."""
    if placement.batch != capture.batch:
        raise BadInput(
            "E344",
            f"the placement was planned for batches of {placement.batch}, the run has batches of {capture.batch}",
            fix=f"--batch {placement.batch}",
        )
    return cut_from_placement(placement, capture.train)


def compile_programs(capture: CapturedTask, cut: Cut) -> tuple[list[Program], list[Program]]:
    """Return the training programs and the evaluation programs, one of each for every machine."""
    dataflow = lower_cut(capture.train, cut)
    evaluation = evaluation_cut(capture.train, dataflow.cut, capture.evaluation)
    return programs(dataflow, training=True), programs(lower_cut(capture.evaluation, evaluation), training=False)


def compile_rest(
    capture: CapturedTask, spec: TaskSpec, cut: Cut, count_samples: Callable[[], int]
) -> tuple[list[Program], dict[str, Tensor]]:
    """Return the evaluation programs for the samples that make no whole batch, and the constants of these.

    There are none where all that is read of the output has samples along its first dimension: the last batch is filled
    up then, and what was added is left out. It cannot be of a loss that the model computes itself.
    """
    graph = capture.evaluation
    if all(graph.tensors[name].shape[:1] == (capture.batch,) for name in graph.results):
        return [], {}
    count = count_samples() % capture.batch
    if not count:
        return [], {}
    rest, constants = capture_rest(capture, spec, count)
    placed = evaluation_cut(capture.train, lower_cut(capture.train, cut).cut, rest)
    return programs(lower_cut(rest, placed), training=False), constants
