"""`ReplicaPlan`: how a replica computes its model - cut over machines, or whole, by plain torch in one process.

A model is whole where it cannot be traced and one machine is asked for, where its plan has one machine that nothing
follows, and where it has sparse gradients, of which a cut model would push every row.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torch import Tensor

from ...errors import BadInput
from ...partition.placement.placement_file import Placement
from ...runtime.worker.program import Program
from ..samples.read_samples import read_samples
from ..task.capture_task import CapturedTask, capture_task, try_to_capture
from ..task.load_task import TaskSpec
from ..task.meta_model import build_without_weights
from ..task.plan_request import PlanRequest
from ..task.plan_task import (
    OtherSizes,
    compile_other_sizes,
    compile_programs,
    load_cut,
    micro_batch_spec,
    plan_task,
    with_placement,
)

if TYPE_CHECKING:
    from ...models.task import Task
    from ...partition.cluster.machines import Cluster


@dataclass(frozen=True)
class WholeModel:
    """A task that is not captured: its model is trained whole. failure: why it cannot be traced, if that is why."""

    failure: BadInput | None = None


@dataclass(frozen=True)
class ReplicaPlan:
    """How a replica computes.

    spec: the task, with the leaf modules and the autocast of the placement. batch: samples of a step, computed in
    `micro_batches` parts. programs, evaluations: by machine, empty where the model is whole. others: those for batches
    of other sizes. placement: None where it was not captured; failure: then why, if it cannot be traced. constants:
    values that the model's code made.
    """

    task: "Task"
    spec: TaskSpec
    batch: int
    micro_batches: int = 1
    placement: Placement | None = None
    programs: Sequence[Program] = ()
    evaluations: Sequence[Program] = ()
    others: OtherSizes = field(default_factory=OtherSizes)
    constants: Mapping[str, Tensor] = field(default_factory=dict)
    has_leaf_modules: bool = False
    notes: tuple[str, ...] = ()
    failure: BadInput | None = None

    @property
    def is_cut(self) -> bool:
        """Whether machines compute programs; else one process trains the whole model in plain torch."""
        return bool(self.programs)


def capture_replica(
    spec: TaskSpec, task: "Task", *, micro_batches: int, may_be_whole: bool
) -> CapturedTask | WholeModel:
    """Capture a task at its micro-batch; may_be_whole: one machine is asked for, so it need not be traced.

    Raises BadInput where it cannot be traced and must be.
    """
    if may_be_whole and micro_batches == 1 and has_sparse_gradients(task):
        return WholeModel()
    spec = micro_batch_spec(spec, task, micro_batches)
    if not may_be_whole:
        return capture_task(spec, task)
    capture = try_to_capture(spec, task)
    return WholeModel(capture) if isinstance(capture, BadInput) else capture


def plan_replica(
    capture: CapturedTask | WholeModel,
    spec: TaskSpec,
    task: "Task",
    *,
    placement: Placement | None,
    request: PlanRequest,
    machines: "Cluster | None" = None,
) -> ReplicaPlan:
    """Cut a captured task as a placement says, or as the best plan for the request does.

    machines: to plan for, by default those of the request.
    """
    batch = spec.batch or task.batch
    if isinstance(capture, WholeModel):
        return ReplicaPlan(task, spec, batch, failure=capture.failure)
    notes = capture.notes
    if placement is None:
        planned = plan_task(capture, spec, request, machines)
        placement, capture, notes = planned.placement, planned.capture, planned.notes
    cut = load_cut(capture, placement)
    programs, evaluations = compile_programs(capture, cut)
    spec = with_placement(placement, spec)
    if len(programs) == 1 and placement.micro_batches == 1:  # there is nothing that plain torch does not do as well
        return ReplicaPlan(task, spec, batch, placement=placement, notes=notes)
    others = compile_other_sizes(capture, spec, cut, read_samples(task, "test"))
    return ReplicaPlan(
        task,
        spec,
        capture.batch * placement.micro_batches,
        placement.micro_batches,
        placement,
        programs,
        evaluations,
        others,
        {**capture.constants, **others.constants},
        bool(capture.leaf_modules),
        (*notes, *others.notes),
    )


def has_sparse_gradients(task: "Task") -> bool:
    """Return whether a module of the task's model asks for sparse gradients, as nn.Embedding(sparse=True)."""
    modules = build_without_weights(task).modules()
    return any(getattr(module, "sparse", False) is True for module in modules)
