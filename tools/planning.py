"""From a task to graphs, a placement and programs: what `plan`, `check`, `inspect` and `train` share."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..partition.capture import capture, state_values
from ..partition.cluster import Cluster, alike
from ..partition.cut import Cut
from ..partition.errors import BadInput
from ..partition.evaluation import carry_over
from ..partition.exchange import flow
from ..partition.graph import Graph
from ..partition.matching import cut_of
from ..partition.placement import Placement
from ..partition.planner import plan
from ..runtime.program import Program, programs
from ..runtime.replica import Replica
from .load import TaskSpec, build_model, example_batch, load_task, mean_square

if TYPE_CHECKING:
    from torch import Tensor, nn

    from ..models.task import Data, Task


@dataclass(frozen=True)
class Captured:
    """A task with its graphs. constants: values that the model's code made."""

    task: "Task"
    batch: int
    train: Graph
    evaluation: Graph
    constants: "dict[str, Tensor]"


def captured(spec: TaskSpec, task: "Task | None" = None) -> Captured:
    """Capture the training and evaluation graphs of a task at its batch size, without allocating weights.

    task: the task of `spec`, where it is loaded already.
    """
    task = task or load_task(spec)
    batch = spec.batch or task.batch
    example = example_batch(task, batch)
    train, constants = _graph(task, example, training=True)
    evaluation, more = _graph(task, example, training=False)
    return Captured(task, batch, train, evaluation, constants | more)


def _graph(task: "Task", example: "Data", *, training: bool) -> "tuple[Graph, dict[str, Tensor]]":
    """Of a model built on meta; a model that keeps plain tensors needs their values, so it is built for real."""
    model = build_model(task, seed=0, device="meta")
    if _plain_tensors(model):
        model = build_model(task, seed=0)
    return capture(model, task.loss if training else None, example.inputs, example.targets)


def _plain_tensors(model: object) -> bool:
    import torch

    modules = model.modules()  # type: ignore[attr-defined]
    return any(isinstance(value, torch.Tensor) for module in modules for value in vars(module).values())


def planned(ready: Captured, spec: TaskSpec, cluster: Cluster, *, seed: int, only: str = "") -> Placement:
    """The best placement of a captured task, of the candidates whose name begins with `only`."""
    return plan(ready.train, cluster, model=spec.model, seed=seed, only=only)


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
    machines: int = 2,
    seed: int = 0,
    only: str = "",
    name: str = "",
) -> Placement:
    """The best placement of a module in hand over `machines` machines, all used.

    inputs, targets: an example batch, of which only shapes and dtypes count; `loss(output, *targets)` gives a scalar.
    only: the kind of plans to choose among ("metis"). name: the import string to note in the placement.
    """
    graph, _ = capture(model, loss, _several(inputs), _several(targets))
    return plan(graph, alike(machines), model=name or type(model).__name__, seed=seed, only=only)


def replica_of(
    model: "nn.Module",
    placement: Placement,
    inputs: "Tensor | Sequence[Tensor]",
    targets: "Tensor | Sequence[Tensor]" = (),
    *,
    loss: "Callable[..., Tensor]" = mean_square,
    seed: int = 0,
) -> Replica:
    """The module cut as `placement` says, with its weights, in threads of this process: to step, to look at gradients.

    inputs, targets, loss: as they were planned for. BadInput where the placement is of another model.
    """
    graph, constants = capture(model, loss, _several(inputs), _several(targets))
    replica = Replica(programs(flow(graph, cut_of(placement, graph)), training=True), seed=seed)
    values = state_values(model, loss, constants)
    replica.load(values.__getitem__)
    return replica


def _several(tensors: "Tensor | Sequence[Tensor]") -> "Sequence[Tensor]":
    return tensors if isinstance(tensors, list | tuple) else (tensors,)
