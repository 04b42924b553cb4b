"""From a module to a `Graph` by torch.export on fake CPU tensors, the loss included, without allocating a weight.

Training and evaluation are captured separately, since an exported module cannot change its mode. Operators are not
decomposed.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import msgspec
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from ...errors import BadInput, CutsetError
from ..draft.axis_inference import build_graph
from ..draft.draft import Draft
from ..draft.untrained import freeze_untrained
from ..ir.empty_copy import empty_copy, empty_like, fake_like
from ..ir.garbage import leave_garbage
from ..ir.graph import Graph
from ..ir.output_layout import OutputLayout, describe_output
from ..operators.generator_state import thread_generator_state
from ..operators.step_module import STEP, StepModule
from ..recurrence.recurrent_call import Unroller
from ..repeats.call_log import CallLog, LoggedRun
from ..repeats.graph_segment import CannotRepeat
from ..repeats.layer_chains import LayerChain, find_chains, hide_skipped_tensors, list_skipped_tensors, skip_layers
from ..repeats.layer_groups import find_layer_groups
from ..repeats.repeated_layers import LayerGroup, RepeatedLayers, tell_of_objects
from ..repeats.watched_call import watch_modules
from ..trace.deferred_code import defer_code
from ..trace.known_conditions import draw_what_matters
from ..trace.python_state import Attributes, list_held_tensors, read_attributes, read_generators
from ..trace.read_outputs import find_read_tensors
from ..trace.repeated_steps import repeat_step
from ..trace.source_location import describe_location, first_line
from .custom_gradients import RefuseDroppedGradients, refuse_functions, refuse_hooks
from .exported_draft import check_constants, draft_exported, list_state, list_state_names
from .grown_draft import grow_draft
from .leaf_selection import select_leaf_modules
from .leaf_wrapping import LeafTrials, wrap_leaf_modules
from .loss_check import demand_loss
from .traced_code import keep_quiet, refuse_scripted_modules, run_as_traced
from .tracing_error import (
    WITHOUT_DATA,
    Untraceable,
    describe_failure,
    find_leaf_globs,
    find_modules_of,
    refuse_difference,
)


class _Traced(nn.Module):
    """What is traced: a step, which may be a leaf module itself."""

    def __init__(self, step: StepModule) -> None:
        super().__init__()
        self.step = step

    def forward(self, inputs: tuple[Tensor, ...], targets: tuple[Tensor, ...]) -> Tensor | tuple[Tensor, ...]:
        results: Tensor | tuple[Tensor, ...] = self.step(inputs, targets)
        return results


@draw_what_matters
@leave_garbage()
def capture(
    model: nn.Module,
    loss: Callable[..., Tensor] | None,
    inputs: Sequence[Tensor],
    targets: Sequence[Tensor] = (),
    *,
    input_names: Sequence[str] = (),
    leaf_modules: Sequence[str] = (),
    autocast: str = "",
    unrolled: bool = False,
    trust: bool = False,
    reuse: bool = True,
    freeze: bool = False,
    readers: Sequence[Callable[..., Any]] = (),
    tell: Callable[[str], None] = lambda note: None,
) -> tuple[Graph, dict[str, Tensor]]:
    """Return the graph of a training step, or of evaluation where `loss` is None, and the model code's constants.

    model: a module on any device, meta included; it is not changed. inputs, targets: an example batch, of which only
    shapes and dtypes count. input_names: of the last inputs, which the model gets by keyword. leaf_modules: globs; a
    module whose name matches one becomes one operator, whose inside is not traced. autocast: the dtype in which
    torch.autocast computes model and loss; its casts become operators. unrolled: recurrent nets have their time steps
    as operators. trust: do not check that all steps compute what the first does. reuse: trace like layers once. freeze:
    parameters without a gradient are frozen ones. readers: who reads the output in evaluation, `reader(output,
    *targets)`, without data, and maybe twice; the graph computes what they read, by default the first tensor. tell:
    gets notes for the user. BadInput where the example does not fit, Untraceable where the model cannot be traced, both
    naming the source line.
    """
    refuse_scripted_modules(model)
    names = select_leaf_modules(model, leaf_modules).names
    whole, layout, mode = StepModule(model, loss, input_names), None, _make_fake_mode()
    with mode:
        fake_targets = tuple(empty_like(t) for t in targets)
        example = tuple(empty_like(t) for t in inputs), fake_targets if loss is not None else ()
    values = _pair_values((*example[0], *fake_targets), (*inputs, *targets))
    groups = [LayerGroup(group) for group in find_layer_groups(model, names) if reuse]
    batch = _name_batch(example)
    copies, log = _StepCopies(whole, mode, names, values, groups, autocast, batch), CallLog()
    probe = copies.make(log)
    with _name_failures(probe, names, leaf_modules):
        refuse_hooks(model, names, training=loss is not None)
        with run_as_traced(probe, autocast), mode:
            with log, watch_modules():
                _try_step(probe, example)
            done = log.run
            found = find_chains(done, probe)
        if loss is None and readers:
            with run_as_traced(probe, autocast), mode:
                layout = _choose_results(probe, done.output, readers, fake_targets)
        kept, is_steady = _keep_chains(copies, found, probe.wanted, done, example, readers, fake_targets)
        chains, draft, constants = _trace(copies, kept, probe.wanted, example, tell if unrolled else None)
        if loss is not None:
            tell_of_objects(groups, {layer for chain in chains for layer in chain.skipped}, tell)
        if not trust and not (is_steady and chains):
            _compare_steps(copies, probe.wanted, example, tell)
        graph = _build_graph(draft, freeze)
    return msgspec.structs.replace(graph, output=layout), constants


@dataclass(frozen=True)
class _StepCopies:
    """Makes copies of a step without data: what a run leaves in its modules is made of that run's fake tensors.

    leaf_modules: the names of those. values: of the batch, by the ids of its fake tensors. batch: these by name.
    """

    step: StepModule
    mode: FakeTensorMode
    leaf_modules: Sequence[str]
    values: Mapping[int, Tensor]
    groups: Sequence[LayerGroup]
    autocast: str
    batch: dict[str, Tensor]
    trials: LeafTrials = field(default_factory=LeafTrials)

    def make(self, log: CallLog | None = None, chains: Sequence[LayerChain] = ()) -> StepModule:
        """Return a copy. log: notes what it does. chains: whose middle is left out."""
        training = self.step.criterion is not None
        step = cast(StepModule, empty_copy(self.step, functools.partial(fake_like, mode=self.mode)).train(training))
        wrap_leaf_modules(step, self.step, self.leaf_modules, self.trials, self.values)
        step.before_run = RepeatedLayers(step.model, self.groups, log).begin_run
        if log is not None:
            log.name_held(list_state(step) | list_held_tensors(step) | self.batch)
            step.on_output = log.note_output
        for chain in chains:
            skip_layers(step.model, chain, log)
        return step


def _keep_chains(
    copies: _StepCopies,
    chains: Sequence[LayerChain],
    wanted: tuple[int, ...],
    done: LoggedRun,
    example: tuple[Any, ...],
    readers: Sequence[Callable[..., Any]],
    targets: Sequence[Tensor],
) -> tuple[Sequence[LayerChain], bool]:
    """Return the chains, if the step does the same without their middle. done: what it did with it.

    Return also whether a second such step is known to do the same again, which is only tried where layers had to run to
    be found alike. Then the second of the whole step does so, too: what code the middle runs was seen and is that of
    the others, which find everything as it was.
    """
    if not chains:
        return (), False
    examples = {layer: example for chain in chains for layer, example in chain.examples.items()}
    log = CallLog(follows_state=any(chain.call.ran for chain in chains))
    step = copies.make(log, chains)
    initial = read_attributes(step.model)
    try:
        with run_as_traced(step, copies.autocast), copies.mode:
            with log, watch_modules():
                step(*example)
            if step.criterion is None and readers:  # an output may hold what each layer has left in an object
                step.wanted = find_read_tensors(log.run.output, readers, targets)
            if step.wanted != wanted or not done.is_like(log.run, examples, wanted):
                return (), False
            return chains, log.follows_state and _is_steady(step, log, example, initial)
    except Exception:  # whatever the model's code raises where a layer does nothing
        return (), False


def _is_steady(step: StepModule, log: CallLog, example: tuple[Any, ...], initial: Attributes) -> bool:
    """Whether a second step does what the first did, which was logged, and both leave attributes and generators alone.

    initial: the attributes of the model before the first.
    """
    first, log.compares, generators = log.run, True, read_generators()
    try:
        with log, watch_modules():
            step(*example)
    except Exception:  # of the model in its second step: the comparison of steps says so
        return False
    return first.is_same(log.run) and (initial, generators) == (read_attributes(step.model), read_generators())


def _name_batch(example: tuple[Sequence[Tensor], Sequence[Tensor]]) -> dict[str, Tensor]:
    parts = zip(("input", "target"), example, strict=True)
    return {f"{name}.{i}": tensor for name, part in parts for i, tensor in enumerate(part)}


def _trace(
    copies: _StepCopies,
    chains: Sequence[LayerChain],
    wanted: tuple[int, ...],
    example: tuple[Any, ...],
    tell: Callable[[str], None] | None,
) -> tuple[Sequence[LayerChain], Draft, dict[str, Tensor]]:
    """Trace the step without the middle of some chains, and put it in its place; where that fails, trace all of it.

    Return also the chains whose middle was not traced. tell: gets notes on recurrent nets; None where their time steps
    are no operators.
    """
    step, notes = copies.make(chains=chains), list[str]()
    step.wanted, states, skipped = wanted, list_state_names(step), list_skipped_tensors(step, chains)
    trained = [tensor.requires_grad for tensor in skipped]
    if chains:
        hide_skipped_tensors(step, chains)
    try:
        with run_as_traced(step, copies.autocast), defer_code():
            exported = _export(_Traced(step) if STEP in copies.leaf_modules else step, step, example)
        check_constants(exported.constants, copies.step.model)
        if trained != [tensor.requires_grad for tensor in skipped]:
            raise CannotRepeat("a parameter is frozen, or is no longer, in a step")
        unroller = Unroller(notes.append) if tell is not None else None
        draft, constants = draft_exported(exported, step, copies.autocast, unroller)
        for chain in chains:
            draft = grow_draft(draft, chain, states)
    except Exception:  # of torch or of us: it may be the middle that is missing
        if not chains:
            raise
        return _trace(copies, (), wanted, example, tell)
    if tell is not None:
        for note in notes:
            tell(note)
    return chains, draft, constants


@keep_quiet()
def _build_graph(draft: Draft, freeze: bool) -> Graph:
    if freeze:
        freeze_untrained(draft)
    return thread_generator_state(build_graph(draft))


@contextlib.contextmanager
def _name_failures(step: StepModule, names: Sequence[str], leaf_modules: Sequence[str]) -> Iterator[None]:
    """Make an Untraceable of whatever is raised, which says which leaf modules may help."""
    try:
        yield
    except CutsetError as error:
        if not isinstance(error, Untraceable):
            raise
        failed: Untraceable = error
        cause: Exception = error
    except Exception as error:  # of torch, which meets in a trace what it has never met
        failed, cause = describe_failure(error, step.model), error
    else:
        return
    globs, other_globs = (find_leaf_globs(step.model, held, names) for held in (failed.modules, failed.others))
    raise failed.suggest(globs, leaf_modules, other_globs) from cause


def _make_fake_mode() -> FakeTensorMode:
    """Return a mode in which tensors have no values, and sizes that depend on data have names."""
    sizes = ShapeEnv(allow_scalar_outputs=True, allow_dynamic_output_shape_ops=True)
    return FakeTensorMode(allow_non_fake_inputs=True, shape_env=sizes)


def _pair_values(fake: Sequence[Tensor], real: Sequence[Tensor]) -> dict[int, Tensor]:
    """Return the values of those fake tensors that have some, by id."""
    return {id(a): b for a, b in zip(fake, real, strict=True) if not b.is_meta}


def _choose_results(
    step: StepModule, output: Any, readers: Sequence[Callable[..., Any]], targets: Sequence[Tensor]
) -> OutputLayout:
    """Have a step compute what is read of an output; return its layout."""
    step.wanted = find_read_tensors(output, readers, targets)
    return describe_output(output, step.wanted)


def _export(traced: nn.Module, step: StepModule, example: tuple[Any, ...]) -> torch.export.ExportedProgram:
    try:
        return torch.export.export(traced, example, strict=False)
    except BadInput:
        raise
    except Exception as error:
        raise describe_failure(error, step.model) from error


def _try_step(step: StepModule, example: tuple[Any, ...]) -> None:
    """Run the step once without data, so that a plain mistake gets a plain error."""
    model, buffers = step.model, dict(step.named_buffers())
    try:
        with RefuseDroppedGradients():
            result = step(*example)
    except Untraceable as error:
        raise error.in_modules(find_modules_of(error, model)) from error
    except BadInput:
        raise
    except Exception as error:
        if isinstance(error, WITHOUT_DATA):
            raise describe_failure(error, step.model) from error
        shapes = ", ".join(str(tuple(t.shape)) for group in example for t in group)
        at = f"{describe_location(error)}: {first_line(error)}"
        message = f"the model does not run on the example batch of shapes {shapes}{at}"
        raise describe_failure(error, model, example=message) from error
    assigned = [name for name, tensor in step.named_buffers() if buffers.get(name, tensor) is not tensor]
    if assigned:
        name = assigned[0].removeprefix("model.")
        module, _, own = name.rpartition(".")
        raise Untraceable(
            f"the model assigns its buffer {name}",
            rewrite=f"write self.{own}.copy_(...)",
            modules=[module] if module else [],
        )
    if step.criterion is None:
        return
    refuse_functions(demand_loss(result, step), model, lambda: step(*example))


def _compare_steps(
    copies: _StepCopies, wanted: tuple[int, ...], example: tuple[Any, ...], tell: Callable[[str], None]
) -> None:
    """Refuse a step that does not compute the same every time: a trace has it once."""
    for group in copies.groups:
        group.settle()
    step = copies.make()
    step.wanted, model = wanted, step.model
    try:
        with run_as_traced(step, copies.autocast), copies.mode:
            found = repeat_step(lambda: step(*example), model, list_state(step) | copies.batch)
    except Exception as error:  # of torch, which does not follow all operators, or of the model in a later step
        tell(f"it is not known whether every step computes the same{describe_location(error)}: {first_line(error)}")
        return
    refuse_difference(found, model, tell)
