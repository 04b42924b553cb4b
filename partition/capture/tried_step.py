"""Tries a step without data before it is traced: whether it runs, and does the same every time; what may be left out.

A trace takes longer. So most that is wrong with a model is known before any of its steps is traced.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from ...errors import BadInput, CutsetError
from ..ir.empty_copy import empty_copy, empty_like, fake_like
from ..ir.output_layout import OutputLayout, describe_output
from ..operators.step_module import StepModule, demand_loss
from ..repeats.call_log import CallLog, LoggedRun
from ..repeats.layer_chains import LayerChain, find_chains, skip_layers
from ..repeats.layer_groups import find_layer_groups
from ..repeats.repeated_layers import LayerGroup, RepeatedLayers
from ..repeats.watched_call import watch_modules
from ..trace.python_state import Attributes, list_held_tensors, read_attributes, read_generators
from ..trace.read_outputs import find_read_tensors
from ..trace.repeated_steps import repeat_step
from ..trace.source_location import describe_location, first_line
from .custom_gradients import RefuseDroppedGradients, refuse_functions, refuse_hooks
from .exported_draft import list_state
from .leaf_selection import select_leaf_modules
from .leaf_wrapping import LeafTrials, wrap_leaf_modules
from .traced_code import refuse_scripted_modules, run_as_traced
from .tracing_error import (
    WITHOUT_DATA,
    Untraceable,
    describe_failure,
    find_leaf_globs,
    find_modules_of,
    refuse_difference,
)


@dataclass(frozen=True)
class StepRequest:
    """A step to capture: of training, or of evaluation where `loss` is None.

    model: a module on any device, meta included; it is not changed. inputs, targets: an example batch, of which only
    shapes and dtypes count. input_names: of the last inputs, which the model gets by keyword. leaf_modules: globs; a
    module whose name matches one becomes one operator, whose inside is not traced. autocast: the dtype in which
    torch.autocast computes model and loss; its casts become operators. unrolled: recurrent nets have their time steps
    as operators. trust: do not check that all steps compute what the first does. reuse: trace like layers once. freeze:
    parameters without a gradient are frozen ones. readers: who reads the output in evaluation, `reader(output,
    *targets)`, without data, and maybe twice; the graph computes what they read, by default the first tensor. tell:
    gets notes for the user.
    """

    model: nn.Module
    loss: Callable[..., Tensor] | None
    inputs: Sequence[Tensor]
    targets: Sequence[Tensor] = ()
    input_names: Sequence[str] = ()
    leaf_modules: Sequence[str] = ()
    autocast: str = ""
    unrolled: bool = False
    trust: bool = False
    reuse: bool = True
    freeze: bool = False
    readers: Sequence[Callable[..., Any]] = ()
    tell: Callable[[str], None] = lambda note: None


@dataclass(frozen=True)
class StepCopies:
    """Makes copies of a step without data: what a run leaves in its modules is made of that run's fake tensors.

    leaf_modules: the names of those. inputs, targets: the batch, fake tensors. values: of these, by their ids.
    """

    step: StepModule
    mode: FakeTensorMode
    leaf_modules: Sequence[str]
    inputs: Sequence[Tensor]
    targets: Sequence[Tensor]
    values: Mapping[int, Tensor]
    groups: Sequence[LayerGroup]
    autocast: str
    trials: LeafTrials = field(default_factory=LeafTrials)

    @property
    def example(self) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """What a copy is called with: a step of evaluation gets no targets."""
        return tuple(self.inputs), tuple(self.targets) if self.step.criterion is not None else ()

    def name_states(self, step: StepModule) -> dict[str, Tensor]:
        """Return the tensors that a copy reads, by name: parameters, buffers and the batch."""
        parts = zip(("input", "target"), self.example, strict=True)
        return list_state(step) | {f"{name}.{i}": tensor for name, part in parts for i, tensor in enumerate(part)}

    def make(self, log: CallLog | None = None, chains: Sequence[LayerChain] = ()) -> StepModule:
        """Return a copy. log: notes what it does. chains: whose middle is left out."""
        training = self.step.criterion is not None
        step = cast(StepModule, empty_copy(self.step, functools.partial(fake_like, mode=self.mode)).train(training))
        wrap_leaf_modules(step, self.step, self.leaf_modules, self.trials, self.values)
        step.before_run = RepeatedLayers(step.model, self.groups, log).begin_run
        if log is not None:
            log.name_held(self.name_states(step) | list_held_tensors(step))
            step.on_output = log.note_output
        for chain in chains:
            skip_layers(step.model, chain, log)
        return step

    def run(self, chains: Sequence[LayerChain], wanted: tuple[int, ...]) -> None:
        """Run a copy once. chains: whose middle is left out. wanted: see `StepModule`."""
        step = self.make(chains=chains)
        step.wanted = wanted
        with run_as_traced(step, self.autocast), self.mode:
            step(*self.example)


@dataclass(frozen=True)
class TriedStep:
    """A step that has run without data. probe: the copy that did. layout: of an output that is read.

    chains: layers whose middle need not be traced. is_steady: whether two steps without that middle did the same, which
    is why no others were compared.
    """

    request: StepRequest
    copies: StepCopies
    probe: StepModule
    layout: OutputLayout | None = None
    chains: Sequence[LayerChain] = ()
    is_steady: bool = False

    @contextlib.contextmanager
    def name_failures(self) -> Iterator[None]:
        """Make an Untraceable of whatever is raised, which says which leaf modules may help."""
        model = self.probe.model
        try:
            yield
        except CutsetError as error:
            if not isinstance(error, Untraceable):
                raise
            failed: Untraceable = error
            cause: Exception = error
        except Exception as error:  # of torch, which meets in a trace what it has never met
            failed, cause = describe_failure(error, model), error
        else:
            return
        globs, others = (
            find_leaf_globs(model, held, self.copies.leaf_modules) for held in (failed.modules, failed.others)
        )
        raise failed.suggest(globs, self.request.leaf_modules, others) from cause


def try_step(request: StepRequest) -> TriedStep:
    """Run a step without data, and compare it with a second one unless it is trusted.

    BadInput where the example does not fit, Untraceable where the model cannot be traced, both naming the source line.
    """
    refuse_scripted_modules(request.model)
    copies, log = _prepare_copies(request), CallLog()
    probe = copies.make(log)
    tried = TriedStep(request, copies, probe)
    with tried.name_failures():
        refuse_hooks(request.model, copies.leaf_modules, training=request.loss is not None)
        with run_as_traced(probe, copies.autocast), copies.mode:
            with log, watch_modules():
                _run_once(probe, copies.example)
            done = log.run
            found = find_chains(done, probe)
        layout = _choose_results(tried, done.output) if request.loss is None and request.readers else None
        chains, is_steady = _keep_chains(tried, found, done)
        if not request.trust and not is_steady:
            compare_steps(tried)
    return TriedStep(request, copies, probe, layout, chains, is_steady)


def _prepare_copies(request: StepRequest) -> StepCopies:
    names = select_leaf_modules(request.model, request.leaf_modules).names
    step, mode = StepModule(request.model, request.loss, request.input_names), _make_fake_mode()
    with mode:
        inputs, targets = ([empty_like(tensor) for tensor in part] for part in (request.inputs, request.targets))
    values = _pair_values((*inputs, *targets), (*request.inputs, *request.targets))
    groups = [LayerGroup(group) for group in find_layer_groups(request.model, names) if request.reuse]
    return StepCopies(step, mode, names, inputs, targets, values, groups, request.autocast)


def _make_fake_mode() -> FakeTensorMode:
    """Return a mode in which tensors have no values, and sizes that depend on data have names."""
    sizes = ShapeEnv(allow_scalar_outputs=True, allow_dynamic_output_shape_ops=True)
    return FakeTensorMode(allow_non_fake_inputs=True, shape_env=sizes)


def _pair_values(fake: Sequence[Tensor], real: Sequence[Tensor]) -> dict[int, Tensor]:
    """Return the values of those fake tensors that have some, by id."""
    return {id(a): b for a, b in zip(fake, real, strict=True) if not b.is_meta}


def _run_once(step: StepModule, example: tuple[Any, ...]) -> None:
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


def _choose_results(tried: TriedStep, output: Any) -> OutputLayout:
    """Have the step compute what is read of an output; return its layout."""
    copies, probe = tried.copies, tried.probe
    with run_as_traced(probe, copies.autocast), copies.mode:
        probe.wanted = find_read_tensors(output, tried.request.readers, copies.targets)
        return describe_output(output, probe.wanted)


def _keep_chains(tried: TriedStep, chains: Sequence[LayerChain], done: LoggedRun) -> tuple[Sequence[LayerChain], bool]:
    """Return the chains, if the step does the same without their middle. done: what it did with it.

    Return also whether a second such step is known to do the same again, which is only tried where layers had to run to
    be found alike. Then the second of the whole step does so, too: what code the middle runs was seen and is that of
    the others, which find everything as it was.
    """
    if not chains:
        return (), False
    copies, wanted = tried.copies, tried.probe.wanted
    examples = {layer: example for chain in chains for layer, example in chain.examples.items()}
    log = CallLog(follows_state=any(chain.call.ran for chain in chains))
    step = copies.make(log, chains)
    initial = read_attributes(step.model)
    try:
        with run_as_traced(step, copies.autocast), copies.mode:
            with log, watch_modules():
                step(*copies.example)
            if step.criterion is None and tried.request.readers:  # its output may hold what layers leave in an object
                step.wanted = find_read_tensors(log.run.output, tried.request.readers, copies.targets)
            if step.wanted != wanted or not done.is_like(log.run, examples, wanted):
                return (), False
            return chains, log.follows_state and _is_steady(step, log, copies.example, initial)
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


def compare_steps(tried: TriedStep) -> None:
    """Refuse a step that does not compute the same every time: a trace has it once."""
    copies, tell = tried.copies, tried.request.tell
    for group in copies.groups:
        group.settle()
    step = copies.make()
    step.wanted, model = tried.probe.wanted, step.model
    try:
        with run_as_traced(step, copies.autocast), copies.mode:
            found = repeat_step(lambda: step(*copies.example), model, copies.name_states(step))
    except Exception as error:  # of torch, which does not follow all operators, or of the model in a later step
        tell(f"it is not known whether every step computes the same{describe_location(error)}: {first_line(error)}")
        return
    refuse_difference(found, model, tell)
