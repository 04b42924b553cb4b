"""From a task to graphs, a placement and programs: what `plan`, `check`, `inspect` and `train` share."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from ...partition.capture.export import capture, state_values
from ...partition.cluster.machines import Cluster, alike
from ...partition.cluster.cluster_file import load as load_cluster
from ...partition.dataflow.cut import Cut
from ...errors import BadInput, UsageError
from ...partition.dataflow.evaluation_cut import carry_over
from ...partition.dataflow.dataflow import flow
from ...partition.placement.to_cut import cut_of
from ...partition.placement.placement_file import Placement
from ...partition.planner.planner import plan
from ...runtime.worker.program import Program, programs
from ...runtime.worker.replica import Replica
from . import weight_source as weights
from .capture_task import Captured as Captured
from .capture_task import captured as captured
from .load_task import TaskSpec, mean_square

if TYPE_CHECKING:
    from torch import Tensor, nn

    from ...models.task import Task


@dataclass(frozen=True)
class Wanted:
    """What plan is asked for.

    machines: all are used; most: some of so many are, as pays best. cluster: the file that describes them, of which the
    first are taken; all where no number is given. The rest as of `partition.planner.plan`.
    """

    machines: int | None = None
    most: int | None = None
    cluster: Path | None = None
    only: str = ""
    objective: str = "time"
    pins: tuple[str, ...] = ()
    micro_batches: int = 1
    seed: int = 0

    def resolved(self) -> Cluster:
        """The machines; UsageError or BadInput where there are none such."""
        count = self.machines if self.most is None else self.most
        if self.machines is not None and self.most is not None:
            raise UsageError("E203", "--machines uses all of them, --max-machines some", fix="give one of the two")
        if self.cluster is None:
            return alike(2 if count is None else count)
        found = load_cluster(self.cluster)
        if count is None:
            return found
        if not 1 <= count <= len(found):
            raise UsageError(
                "E201", f"{count} machines; {self.cluster} describes {len(found)}", fix=f"--machines {len(found)}"
            )
        return found.first(count)


def micro_spec(spec: TaskSpec, task: "Task", micro_batches: int) -> TaskSpec:
    """The spec whose batch is one of so many micro-batches of the task's batch."""
    batch = spec.batch or task.batch
    if micro_batches < 1 or batch % micro_batches:
        raise UsageError(
            "E209",
            f"{micro_batches} micro-batches of a batch of {batch} samples; it must divide",
            fix=f"--micro-batches {_divisor(batch, micro_batches)}",
        )
    return msgspec.structs.replace(spec, batch=batch // micro_batches)


def _divisor(batch: int, near: int) -> int:
    return min((d for d in range(1, batch + 1) if batch % d == 0), key=lambda d: (abs(d - near), d))


def planned(ready: Captured, spec: TaskSpec, wanted: Wanted) -> Placement:
    """The best placement of a captured task, whose batch is a micro-batch."""
    placement = plan(
        ready.train,
        wanted.resolved(),
        model=spec.model,
        seed=wanted.seed,
        only=wanted.only,
        fewer=wanted.most is not None,
        objective=wanted.objective,
        pins=wanted.pins,
        micro_batches=wanted.micro_batches,
    )
    return msgspec.structs.replace(placement, blocks=list(ready.blocks), autocast=ready.autocast)


def traced_as(placement: Placement | None, spec: TaskSpec) -> TaskSpec:
    """The spec with the blocks by hand and the autocast that a placement was made with, if there is one."""
    if placement is None:
        return spec
    return msgspec.structs.replace(spec, blocks=tuple(placement.blocks), autocast=placement.autocast)


def matched(ready: Captured, placement: Placement) -> Cut:
    """The cut of a placement file for a captured task; BadInput names the first difference."""
    if placement.batch != ready.batch:
        raise BadInput(
            "E344",
            f"the placement was planned for batches of {placement.batch}, the run has batches of {ready.batch}",
            fix=f"--batch {placement.batch}",
        )
    return cut_of(placement, ready.train)


def compiled(ready: Captured, cut: Cut) -> tuple[list[Program], list[Program]]:
    """The training and evaluation programs of every machine."""
    spelled = flow(ready.train, cut)
    evaluated = carry_over(ready.train, spelled.cut, ready.evaluation)
    return programs(spelled, training=True), programs(flow(ready.evaluation, evaluated), training=False)


# For callers in Python ---------------------------------------------------------------------------------------------


def plan_model(
    model: "nn.Module",
    inputs: "Tensor | Sequence[Tensor]",
    targets: "Tensor | Sequence[Tensor]" = (),
    *,
    loss: "Callable[..., Tensor]" = mean_square,
    machines: int | Cluster = 2,
    fewer: bool = False,
    objective: str = "time",
    pins: "Sequence[str]" = (),
    micro_batches: int = 1,
    blocks: "Sequence[str]" = (),
    autocast: str = "",
    seed: int = 0,
    only: str = "",
    name: str = "",
) -> Placement:
    """The best placement of a module in hand over `machines` machines (or those of a cluster), all used.

    inputs, targets: an example batch (or micro-batch), of which only shapes and dtypes count; `loss(output, *targets)`
    gives a scalar. fewer: some machines may be left out, where that is better. objective: what is to be least, "time",
    "bytes" or "memory". pins: "GLOB=MACHINE", modules that must be on a machine. blocks: globs; a module whose name
    matches one is one operator, whose inside is not traced. autocast: the dtype in which torch.autocast computes model
    and loss ("bfloat16"), if any. only: the kind of plans to choose among ("metis"). name:
    the import string to note in the placement.
    """
    graph, _ = capture(model, loss, _several(inputs), _several(targets), blocks=blocks, autocast=autocast)
    placement = plan(
        graph,
        machines if isinstance(machines, Cluster) else alike(machines),
        model=name or type(model).__name__,
        seed=seed,
        only=only,
        fewer=fewer,
        objective=objective,
        pins=pins,
        micro_batches=micro_batches,
    )
    return msgspec.structs.replace(placement, blocks=list(blocks), autocast=autocast)


def replica_of(
    model: "nn.Module",
    placement: Placement,
    inputs: "Tensor | Sequence[Tensor]",
    targets: "Tensor | Sequence[Tensor]" = (),
    *,
    loss: "Callable[..., Tensor]" = mean_square,
    seed: int = 0,
    checkpoint: str | Path | None = None,
    training: bool = True,
) -> Replica:
    """The module cut as `placement` says, in threads of this process: to step, to look at gradients, to predict.

    inputs, targets, loss: as they were planned for. checkpoint: a run folder, the checkpoint in it or a safetensors
    file, with the weights to use; by default the module's own. training: to `step`; else to `predict`, as the module
    does in evaluation mode. BadInput where the placement is of another model, CheckpointError where the weights are.
    """
    blocks, autocast = placement.blocks, placement.autocast
    graph, constants = capture(model, loss, _several(inputs), _several(targets), blocks=blocks, autocast=autocast)
    spelled = flow(graph, cut_of(placement, graph))
    if not training:
        evaluation, more = capture(model, None, _several(inputs), blocks=blocks, autocast=autocast)
        spelled = flow(evaluation, carry_over(graph, spelled.cut, evaluation))
        constants |= more
    parts = programs(spelled, training=training)
    own = weights.Held(state_values(model, loss, constants))
    with nullcontext(own) if checkpoint is None else weights.opened(Path(checkpoint)) as found:
        values = weights.Both(found, own)
        if checkpoint is not None:
            weights.demand(found, parts, constants, where=Path(checkpoint))
        replica = Replica(parts, seed=seed, model=model)
        for worker in replica.workers:
            weights.load(worker.states, values)
    return replica


def _several(tensors: "Tensor | Sequence[Tensor]") -> "Sequence[Tensor]":
    return tensors if isinstance(tensors, list | tuple) else (tensors,)
