"""From a task to its two graphs. Where it cannot be traced, the error offers blocks by hand that were tried."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...partition.capture.export import capture
from ...partition.ir.graph import Graph
from ...partition.operators.leaf_module import BLOCK
from ...partition.capture.leaf_selection import chosen
from ...partition.capture.leaf_trial import TrialFailed
from ...partition.capture.tracing_error import Untraceable, way_out
from .load_task import TaskSpec, build_model, example_batch, load_task
from .meta_model import weightless

if TYPE_CHECKING:
    from torch import Tensor

    from ...models.task import Data, Task


@dataclass(frozen=True)
class Captured:
    """A task with its graphs.

    constants: values that the model's code made. blocks: globs of blocks by hand, the task's own and those of the
    spec. notes: what the user should know of them. autocast: the dtype that the spec names.
    """

    task: "Task"
    batch: int
    train: Graph
    evaluation: Graph
    constants: "dict[str, Tensor]"
    blocks: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    autocast: str = ""


def captured(spec: TaskSpec, task: "Task | None" = None, *, advise: bool = True) -> Captured:
    """Capture the training and evaluation graphs of a task at its batch size, without allocating weights.

    task: the task of `spec`, where it is loaded already. advise: look for blocks by hand where it cannot be traced.
    """
    task = task or load_task(spec)
    batch = spec.batch or task.batch
    example = example_batch(task, batch)
    blocks = tuple(dict.fromkeys((*task.blocks, *spec.blocks)))
    try:
        train, evaluation, constants = _graphs(task, example, blocks, spec.autocast)
    except Untraceable as error:
        if not advise:
            raise
        solution = way_out(error, blocks, lambda tried: _graphs(task, example, tried, spec.autocast))
        raise error.solved(solution) from error
    notes = _notes(task, blocks, (train, evaluation))
    return Captured(task, batch, train, evaluation, constants, blocks, notes, spec.autocast)


def _graphs(
    task: "Task", example: "Data", blocks: Sequence[str], autocast: str
) -> "tuple[Graph, Graph, dict[str, Tensor]]":
    train, constants = _graph(task, example, blocks, autocast, training=True)
    evaluation, more = _graph(task, example, blocks, autocast, training=False)
    return train, evaluation, constants | more


def _graph(
    task: "Task", example: "Data", blocks: Sequence[str], autocast: str, *, training: bool
) -> "tuple[Graph, dict[str, Tensor]]":
    loss, model = task.loss if training else None, weightless(task)
    try:
        return capture(model, loss, example.inputs, example.targets, blocks=blocks, autocast=autocast)
    except TrialFailed:  # the block may need buffers as they are: an index into a table, say
        if all(not tensor.is_meta for tensor in (*model.parameters(), *model.buffers())):
            raise
    return capture(build_model(task, seed=0), loss, example.inputs, example.targets, blocks=blocks, autocast=autocast)


def _notes(task: "Task", blocks: Sequence[str], graphs: Sequence[Graph]) -> tuple[str, ...]:
    """Blocks that change nothing."""
    if not blocks:
        return ()
    found = chosen(weightless(task), blocks)
    called = {op.arguments["name"] for graph in graphs for op in graph.ops if op.target == BLOCK}
    unused = [name for name in found.names if name not in called]
    return (*found.notes, *(f"the block by hand {name} is never called, so it changes nothing" for name in unused))
