"""From a module to a `Graph` by torch.export on fake CPU tensors, the loss included, without allocating a weight.

Training and evaluation are captured separately, since an exported module cannot change its mode. Operators are not
decomposed.
"""

import contextlib
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

import msgspec
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode
from torch.export.graph_signature import ConstantArgument, InputKind, OutputKind
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode, ShapeEnv

from ...errors import BadInput, CutsetError
from ..draft.axis_inference import build_graph
from ..draft.draft import Draft, draft_tensor
from ..draft.untrained import freeze_untrained
from ..ir.empty_copy import empty_copy, empty_like
from ..ir.garbage import leave_garbage
from ..ir.graph import Graph
from ..ir.output_layout import OutputLayout, describe_output
from ..operators.generator_state import thread_generator_state
from ..operators.step_module import STEP, StepModule
from ..recurrence.recurrent_call import Unroller
from ..repeats.layer_groups import find_layer_groups
from ..repeats.repeated_layers import LayerGroup, RepeatedLayers
from ..trace.deferred_code import defer_code
from ..trace.known_conditions import draw_what_matters
from ..trace.read_outputs import find_read_tensors
from ..trace.repeated_steps import repeat_step
from ..trace.source_location import describe_location, first_line
from .custom_gradients import RefuseDroppedGradients, refuse_functions, refuse_hooks
from .leaf_selection import select_leaf_modules
from .leaf_wrapping import LeafTrials, wrap_leaf_modules
from .loss_check import demand_loss
from .lowering import Lowering
from .traced_code import keep_quiet, refuse_scripted_modules, run_as_traced
from .tracing_error import Untraceable, find_leaf_globs, find_modules_of, refuse_difference

TENSOR_KINDS = {
    InputKind.PARAMETER: "parameter",
    InputKind.BUFFER: "buffer",
    InputKind.CONSTANT_TENSOR: "constant",
}

DATA_DEPENDENT = (DataDependentOutputException, DynamicOutputShapeException, GuardOnDataDependentSymNode)


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
    *targets)`; the graph computes what they read, by default the first tensor. tell: gets notes for the user. BadInput
    where the example does not fit, Untraceable where the model cannot be traced, both naming the source line.
    """
    refuse_scripted_modules(model)
    names, mode, trials = select_leaf_modules(model, leaf_modules).names, _make_fake_mode(), LeafTrials()
    whole, layout = StepModule(model, loss, input_names), None
    with mode:
        memo = {t: empty_like(t) for t in (*whole.parameters(), *whole.buffers())}
        fake_targets = tuple(empty_like(t) for t in targets)
        example = tuple(empty_like(t) for t in inputs), fake_targets if loss is not None else ()
    values = _pair_values((*example[0], *fake_targets), (*inputs, *targets))
    groups = [LayerGroup(group) for group in find_layer_groups(model, names) if reuse]

    def make_step() -> StepModule:
        """Copy the step: what a run leaves in its modules, a table for example, is made of that run's fake tensors."""
        step = cast(StepModule, empty_copy(whole, memo.__getitem__).train(loss is not None))
        wrap_leaf_modules(step, whole, names, trials, values)
        step.before_run = RepeatedLayers(step.model, groups).begin_run
        return step

    step, probe, repeated = make_step(), make_step(), make_step()
    with _name_failures(step, names, leaf_modules):
        refuse_hooks(model, names, training=loss is not None)
        with run_as_traced(probe, autocast), mode:
            _try_step(probe, example)
            if loss is None and readers:
                layout = _choose_results([step, repeated], probe.run(example[0]), readers, fake_targets)
        with run_as_traced(step, autocast), defer_code():
            exported = _export(_Traced(step) if STEP in names else step, step, example)
        _check_constants(exported.constants, model)
        draft, constants = _draft(exported, step, autocast, Unroller(tell) if unrolled else None)
        if not trust:
            with run_as_traced(repeated, autocast), mode:
                _compare_steps(repeated, groups, example, tell)
        graph = _build_graph(draft, freeze)
    return msgspec.structs.replace(graph, output=layout), constants


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
        failed, cause = _untraceable(error, step), error
    else:
        return
    raise failed.suggest(find_leaf_globs(step.model, failed.modules, names), leaf_modules) from cause


def _make_fake_mode() -> FakeTensorMode:
    """Return a mode in which tensors have no values, and sizes that depend on data have names."""
    sizes = ShapeEnv(allow_scalar_outputs=True, allow_dynamic_output_shape_ops=True)
    return FakeTensorMode(allow_non_fake_inputs=True, shape_env=sizes)


def _pair_values(fake: Sequence[Tensor], real: Sequence[Tensor]) -> dict[int, Tensor]:
    """Return the values of those fake tensors that have some, by id."""
    return {id(a): b for a, b in zip(fake, real, strict=True) if not b.is_meta}


def _choose_results(
    steps: Sequence[StepModule], output: Any, readers: Sequence[Callable[..., Any]], targets: Sequence[Tensor]
) -> OutputLayout:
    """Have steps compute what is read of an output; return its layout."""
    wanted = find_read_tensors(output, readers, targets)
    for step in steps:
        step.wanted = wanted
    return describe_output(output, wanted)


def _export(traced: nn.Module, step: StepModule, example: tuple[Any, ...]) -> torch.export.ExportedProgram:
    try:
        return torch.export.export(traced, example, strict=False)
    except BadInput:
        raise
    except Exception as error:
        raise _untraceable(error, step) from error


def collect_state(model: nn.Module, loss: Callable[..., Tensor], constants: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the values of a graph's states by name: parameters and buffers of model and loss module, and constants."""
    values = dict(constants)
    for name, tensor in _named_state(StepModule(model, loss)).items():
        values.setdefault(_public_name(name), tensor.detach())
    return values


def _public_name(name: str) -> str:
    """Return the public name of a parameter or buffer of a step: the one in the model, or marked as the loss's."""
    return name.removeprefix("model.") if name.startswith("model.") else f"(loss).{name.removeprefix('criterion.')}"


def _named_state(step: nn.Module) -> dict[str, Tensor]:
    """Return parameters and buffers under every name that they have."""
    return {**dict(step.named_parameters(remove_duplicate=False)), **dict(step.named_buffers(remove_duplicate=False))}


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
        if isinstance(error, DATA_DEPENDENT):
            raise _untraceable(error, step) from error
        shapes = ", ".join(str(tuple(t.shape)) for group in example for t in group)
        at = f"{describe_location(error)}: {first_line(error)}"
        message = f"the model does not run on the example batch of shapes {shapes}{at}"
        raise _untraceable(error, step, example=message) from error
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
    step: StepModule, groups: Sequence[LayerGroup], example: tuple[Any, ...], tell: Callable[[str], None]
) -> None:
    """Refuse a step that does not compute the same every time: a trace has it once."""
    for group in groups:
        group.settle()
    model, (inputs, targets) = step.model, example
    batch = [*((f"input.{i}", t) for i, t in enumerate(inputs)), *((f"target.{i}", t) for i, t in enumerate(targets))]
    try:
        found = repeat_step(lambda: step(*example), model, _named_state(step) | dict(batch))
    except Exception as error:  # of torch, which does not follow all operators, or of the model in a later step
        tell(f"it is not known whether every step computes the same{describe_location(error)}: {first_line(error)}")
        return
    refuse_difference(found, model, tell)


def _untraceable(error: Exception, step: StepModule, *, example: str = "") -> Untraceable:
    model = step.model
    modules = find_modules_of(error, model)
    there = f", in module {modules[0]} ({type(model.get_submodule(modules[0])).__name__})" if modules else ""
    reason = "it branches on a value, or on a size that depends on data" if _is_branch(error) else first_line(error)
    facts = f"the model cannot be traced{describe_location(error)}{there}: {reason}"
    return Untraceable(facts, modules=modules, example=example)


def _is_branch(error: Exception) -> bool:
    return isinstance(error, DataDependentOutputException | GuardOnDataDependentSymNode)


@keep_quiet()
def _draft(
    exported: torch.export.ExportedProgram, step: StepModule, autocast: str, unroller: Unroller | None
) -> tuple[Draft, dict[str, Tensor]]:
    draft = Draft()
    lowering = Lowering(draft, autocast=getattr(torch, autocast) if autocast else None, unroller=unroller)
    constants = _enter_placeholders(exported, step, lowering)
    outputs = list(zip(exported.graph_signature.output_specs, lowering.run(exported.graph.nodes), strict=True))
    for spec, node in outputs:
        if spec.kind == OutputKind.BUFFER_MUTATION:
            lowering.assign(_first_names(step)[_in_step(str(spec.target))], node)
    lowering.store()
    draft.results = [lowering.tensor(node) for spec, node in outputs if spec.kind == OutputKind.USER_OUTPUT]
    return draft, constants


def _check_constants(constants: Mapping[str, Any], model: nn.Module) -> None:
    """Refuse code that holds on to the caller's model: its parameters would be constants, without a gradient."""
    memory = {p.untyped_storage()._cdata: name for name, p in model.named_parameters()}
    for value in constants.values():
        name = memory.get(value.untyped_storage()._cdata) if isinstance(value, Tensor) else None
        if name is not None:
            raise BadInput(
                "E320",
                f"the model's parameter {name} is used from outside of the model, by the loss for example",
                fix="let the model return what the loss needs of it",
            )


def _first_names(step: nn.Module) -> dict[str, str]:
    """Return the public names of parameters and buffers; a tied one goes by its first name."""
    first: dict[int, str] = {}
    state = _named_state(step)
    for name, tensor in state.items():
        first.setdefault(id(tensor), _public_name(name))
    return {name: first[id(tensor)] for name, tensor in state.items()}


def _enter_placeholders(
    exported: torch.export.ExportedProgram, step: nn.Module, lowering: Lowering
) -> dict[str, Tensor]:
    """Enter parameters, buffers, constants and the batch, and return the constants by name."""
    state, names = _named_state(step), _first_names(step)
    constants: dict[str, Tensor] = {}
    nodes = {node.name: node for node in exported.graph.nodes if node.op == "placeholder"}
    for spec in exported.graph_signature.input_specs:
        if isinstance(spec.arg, ConstantArgument):
            continue
        node = nodes[spec.arg.name]
        kind, name = TENSOR_KINDS.get(spec.kind, ""), _in_step(spec.target or "")
        if kind in ("parameter", "buffer"):
            kind = "frozen" if kind == "parameter" and not state[name].requires_grad else kind
            name = names[name]
        elif kind == "constant":
            value = exported.constants[str(spec.target)].detach().clone()
            name = _constant_name(value)
            constants[name] = value
        else:
            kind, _, position = node.name.partition("s_")  # "inputs_0", "targets_1"
            name = f"{kind}.{position}"
        lowering.enter(node, draft_tensor(name, node.meta["val"], kind))
    return constants


def _in_step(name: str) -> str:
    """Return the name of a parameter or buffer in the step, which may not be all that is traced."""
    return name.removeprefix("step.")


def _constant_name(value: Tensor) -> str:
    """Name a constant by its content, so that it has the same name in the training and the evaluation graph."""
    content = value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    described = f"{value.dtype} {tuple(value.shape)}".encode()
    return f"constant.{hashlib.sha256(described + content).hexdigest()[:12]}"
