"""From a task to its two graphs. What cannot be traced becomes a leaf module, and a note says which and why."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import msgspec

from ...errors import BadInput
from ...partition.capture.export import StepCapture
from ...partition.capture.leaf_search import capture_by_leaf_modules
from ...partition.capture.leaf_selection import select_leaf_modules
from ...partition.capture.leaf_trial import TrialFailed
from ...partition.capture.tracing_error import Untraceable, find_leaf_globs
from ...partition.capture.tried_step import StepRequest
from ...partition.ir.graph import Graph, freeze_parameters
from ...partition.operators.leaf_module import LEAF_MODULE
from ...partition.operators.step_module import PARTS
from ...partition.recurrence.recurrent_call import has_recurrent
from ..samples.part_samples import buckets_of
from ..samples.read_samples import Example, read_example
from .load_task import TaskSpec, build_model, load_task
from .meta_model import build_without_weights
from .trace_check import check_trace

if TYPE_CHECKING:
    from torch import Tensor, nn

    from ...models.task import Data, Task

UNTRACEABLE = "E320"
FAILS_UNTRACED = "E321"  # the model fails without data: because it looks at the data, or because the example is wrong
LISTED = 3  # parameters in a note


@dataclass(frozen=True)
class CapturedTask:
    """A task with its graphs.

    batch: samples of the example that was traced. example: that, and what it is made of. constants: values that the
    model's code made. leaf_modules: globs of modules that were not traced, the task's own and those of the spec. notes:
    what the user should know of these, and of the trace. autocast: the dtype that the spec names. unrolled: recurrent
    operators have their time steps as operators.
    """

    task: "Task"
    batch: int
    example: Example
    train: Graph
    evaluation: Graph
    constants: "dict[str, Tensor]"
    leaf_modules: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    autocast: str = ""
    unrolled: bool = False


def capture_task(spec: TaskSpec, task: "Task | None" = None, *, search: bool = True) -> CapturedTask:
    """Capture the training and evaluation graphs of a task at its batch size, without allocating weights.

    task: the task of `spec`, where it is loaded already. search: look for leaf modules where it cannot be traced.
    """
    task = task or load_task(spec)
    return _capture(spec, task, read_example(task, spec.batch or task.batch), search=search)


def _capture(spec: TaskSpec, task: "Task", example: Example, *, search: bool = True) -> CapturedTask:
    leaf_modules = tuple(dict.fromkeys((*task.leaf_modules, *spec.leaf_modules)))
    notes, model = list[str](), build_without_weights(task)

    def attempt(tried: tuple[str, ...]) -> "tuple[Graph, Graph, dict[str, Tensor]]":
        notes.clear()
        return _Attempt(task, model, tried, spec, notes.append).capture_both(example)

    if search:
        graphs, found, error = capture_by_leaf_modules(attempt, leaf_modules)
        notes += [] if error is None else [_describe_islands(found[len(leaf_modules) :], error)]
        leaf_modules = found
    else:
        graphs = attempt(leaf_modules)
    train, evaluation, constants = graphs
    notes += _notes(task, leaf_modules, (train, evaluation))
    notes += _describe_untrained(find_untrained(train, task))
    distinct = tuple(dict.fromkeys(notes))
    form = (leaf_modules, distinct, spec.autocast, spec.unrolled)
    return CapturedTask(task, len(example.batch), example, train, evaluation, constants, *form)


def has_one_length(example: Example) -> bool:
    """Whether all training samples are known to have one length.

    Else a parameter that gets no gradient from the example may get one from batches of another length.
    """
    buckets = None if example.samples is None else buckets_of(example.samples)
    return example.samples is not None and (buckets is None or len(buckets.lengths) == 1)


def find_untrained(graph: Graph, task: "Task") -> list[str]:
    """Return the names of those parameters of the model that get no gradient, though they want one."""
    if not graph.frozen:
        return []
    wanting = {name for name, parameter in build_without_weights(task).named_parameters() if parameter.requires_grad}
    return [name for name in graph.frozen if name in wanting]


def _describe_untrained(names: Sequence[str]) -> list[str]:
    if not names:
        return []
    listed = ", ".join(names[:LISTED]) + (", ..." if len(names) > LISTED else "")
    if len(names) == 1:
        return [f"the parameter {listed} gets no gradient, so it stays as it is"]
    return [f"{len(names)} parameters get no gradient, so they stay as they are: {listed}"]


def capture_unrolled(capture: CapturedTask, spec: TaskSpec) -> CapturedTask | None:
    """Return the same task with the time steps of its recurrent nets as operators; None where it has none.

    Where all of them stay whole, for they have too many time steps, it is the task as it was, with a note on that.
    """
    if capture.unrolled or not has_recurrent(capture.train):
        return None
    other = _capture(msgspec.structs.replace(spec, unrolled=True), capture.task, capture.example)
    return replace(capture, notes=other.notes) if other.train.digest == capture.train.digest else other


def try_to_capture(spec: TaskSpec, task: "Task | None" = None) -> CapturedTask | BadInput:
    """Capture a task that may also be computed whole; return the error where its model cannot be traced.

    A model that fails when it is traced without data may look at its data, or its example may be wrong: whoever gets
    the error E321 finds out by a dry run.
    """
    try:
        return capture_task(spec, task, search=False)
    except BadInput as error:
        if error.code not in (UNTRACEABLE, FAILS_UNTRACED):
            raise
        return error


def capture_example(
    capture: CapturedTask, spec: TaskSpec, example: "Data", *, training: bool, tell: Callable[[str], None]
) -> "tuple[Graph, dict[str, Tensor]]":
    """Return a graph of a captured task for a batch of another size, and its constants.

    training: whether it is the training graph, which is compared with plain torch, or that of evaluation. tell: gets
    what the user should know of it.
    """
    spec = msgspec.structs.replace(spec, unrolled=capture.unrolled)
    attempt = _Attempt(capture.task, build_without_weights(capture.task), capture.leaf_modules, spec, tell)
    graph, constants = attempt.try_step(example, training=training).finish()
    if training:
        attempt.check(example, graph, constants)
    return freeze_parameters(graph, capture.train.frozen), constants


@dataclass(frozen=True)
class _Attempt:
    """A capture of a task with some leaf modules. model: without weights. tell: gets what the user should know."""

    task: "Task"
    model: "nn.Module"
    leaf_modules: Sequence[str]
    spec: TaskSpec
    tell: Callable[[str], None]

    def build(self) -> "nn.Module":
        """Return the model with weights, always the same ones."""
        return build_model(self.task, seed=0)

    @functools.cached_property
    def model_with_weights(self) -> "nn.Module":
        """For steps that cannot be tried without."""
        return self.build()

    def capture_both(self, example: Example) -> "tuple[Graph, Graph, dict[str, Tensor]]":
        """Return the graphs of training and evaluation, and constants; nothing is traced before both were tried."""
        training = self.try_step(example.batch, training=True, freeze=has_one_length(example))
        evaluating = self.try_step(example.batch, training=False)
        train, constants = training.finish()
        evaluation, more = evaluating.finish()
        constants |= more
        self.check(example.batch, train, constants)
        return train, freeze_parameters(evaluation, train.frozen), constants

    def try_step(self, example: "Data", *, training: bool, freeze: bool = False) -> StepCapture:
        """Return the capture of a step that was tried."""

        def try_on(model: "nn.Module") -> StepCapture:
            request = StepRequest(
                model,
                self.task.loss if training else None,
                example.inputs,
                example.targets,
                input_names=example.names,
                leaf_modules=self.leaf_modules,
                autocast=self.spec.autocast,
                unrolled=self.spec.unrolled,
                trust=self.spec.trust_trace,
                freeze=freeze,
                readers=() if training else self.task.list_readers(),
                tell=self.tell,
            )
            step = StepCapture(request)
            step.prepare()
            return step

        try:
            return try_on(self.model)
        except TrialFailed:  # a leaf module may need buffers as they are: an index into a table, say
            if all(not tensor.is_meta for tensor in (*self.model.parameters(), *self.model.buffers())):
                raise
        return try_on(self.model_with_weights)

    def check(self, example: "Data", train: Graph, constants: "dict[str, Tensor]") -> None:
        """Compare a training graph with plain torch unless the spec trusts it; Untraceable names what to keep whole."""
        if self.spec.trust_trace:
            return
        autocast = self.spec.autocast
        try:
            check_trace(self.build, self.task.loss, example, train, constants, autocast=autocast, tell=self.tell)
        except Untraceable as error:
            known = select_leaf_modules(self.model, self.leaf_modules).names
            globs = find_leaf_globs(self.model, error.modules, known)
            raise error.suggest(globs, self.leaf_modules) from error


def _describe_islands(leaf_modules: Sequence[str], error: Untraceable) -> str:
    """Return the note on leaf modules that were found."""
    names = ", ".join(leaf_modules)
    return f"computed whole, as an island that is not cut: {names}; for {error.traced}. To cut more: {error.rewrite}"


def _notes(task: "Task", leaf_modules: Sequence[str], graphs: Sequence[Graph]) -> tuple[str, ...]:
    """Return remarks on the leaf modules, such as that one is never called."""
    if not leaf_modules:
        return ()
    found = select_leaf_modules(build_without_weights(task), leaf_modules)
    if set(found.names) & set(PARTS):
        return found.notes
    called = {op.arguments["name"] for graph in graphs for op in graph.ops if op.target == LEAF_MODULE}
    unused = [name for name in found.names if name not in called]
    return (*found.notes, *(f"leaf module {name} is never called, so it changes nothing" for name in unused))
