"""From a module to a `Graph` by torch.export on fake CPU tensors, the loss included, without allocating a weight.

Training and evaluation are captured separately, since an exported module cannot change its mode. Operators are not
decomposed.
"""

import contextlib
import hashlib
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode
from torch.export.graph_signature import ConstantArgument, InputKind, OutputKind

from ...errors import BadInput
from ..ir.autocast import autocast_context
from ..ir.empty_copy import empty_copy, empty_like
from ..ir.graph import Graph
from ..ir.output_layout import OutputLayout, describe_output, list_tensors
from ..operators.generator_state import thread_generator_state
from ..recurrence.recurrent_call import Unroller
from ..trace.detached_data import DetachedData
from ..trace.global_caches import keep_global_caches
from ..trace.gradient_modes import show_gradient_modes
from ..trace.read_outputs import find_read_tensors
from ..trace.repeated_steps import repeat_step
from .axis_inference import build_graph
from .custom_gradients import RefuseDroppedGradients, refuse_functions, refuse_hooks
from .draft import Draft, draft_tensor
from .leaf_selection import select_leaf_modules
from .leaf_wrapping import LeafTrials, wrap_leaf_modules
from .lowering import Lowering
from .source_location import describe_location, first_line
from .tracing_error import Untraceable, find_leaf_globs, find_modules_of, refuse_difference

TENSOR_KINDS = {
    InputKind.PARAMETER: "parameter",
    InputKind.BUFFER: "buffer",
    InputKind.CONSTANT_TENSOR: "constant",
}


class _Step(nn.Module):
    """The module and its loss as one, which a training step computes; without a loss, some tensors of the output.

    names: of the last inputs, which go by keyword. wanted: which tensors, by number.
    """

    def __init__(self, model: nn.Module, loss: Callable[..., Tensor] | None, names: Sequence[str] = ()) -> None:
        super().__init__()
        self.model, self.names = model, tuple(names)
        self.wanted: tuple[int, ...] = (0,)
        self.criterion = loss  # a submodule where it is a module: its class weights are then captured like any buffer

    def run(self, inputs: tuple[Tensor, ...]) -> Any:
        """Return what the model gives."""
        count = len(inputs) - len(self.names)
        return self.model(*inputs[:count], **dict(zip(self.names, inputs[count:], strict=True)))

    def forward(self, inputs: tuple[Tensor, ...], targets: tuple[Tensor, ...]) -> Tensor | tuple[Tensor, ...]:
        output = self.run(inputs)
        if self.criterion is not None:
            loss: Tensor = self.criterion(output, *targets)
            return loss
        tensors = list_tensors(output)
        if not tensors:
            raise TypeError(f"the model returns a {type(output).__name__} without a tensor")
        # A last operator for each, so that it can be collected on one machine whatever computed it.
        return tuple(torch.ops.aten.alias(tensors[number]) for number in self.wanted)


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
    readers: Sequence[Callable[..., Any]] = (),
    tell: Callable[[str], None] = lambda note: None,
) -> tuple[Graph, dict[str, Tensor]]:
    """Return the graph of a training step, or of evaluation where `loss` is None, and the model code's constants.

    model: a module on any device, meta included; it is not changed. inputs, targets: an example batch, of which only
    shapes and dtypes count. input_names: of the last inputs, which the model gets by keyword. leaf_modules: globs; a
    module whose name matches one becomes one operator, whose inside is not traced. autocast: the dtype in which
    torch.autocast computes model and loss; its casts become operators. unrolled: recurrent nets have their time steps
    as operators. trust: do not check that all steps compute what the first does. readers: who reads the output in
    evaluation, called as `reader(output, *targets)`; the graph computes what they read, by default the first tensor.
    tell: gets notes on what the user should know. Raises BadInput where the example does not fit the model, and
    Untraceable where it cannot be traced, both naming the source line.
    """
    names = select_leaf_modules(model, leaf_modules).names
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    whole, layout = _Step(model, loss, input_names), None
    with mode:
        memo = {t: empty_like(t) for t in (*whole.parameters(), *whole.buffers())}
        fake_targets = tuple(empty_like(t) for t in targets)
        example = tuple(empty_like(t) for t in inputs), fake_targets if loss is not None else ()
    trials: LeafTrials = {}

    def make_step() -> _Step:
        """Copy the step: what a run leaves in its modules, a table for example, is made of that run's fake tensors."""
        step = empty_copy(whole, memo.__getitem__)
        assert isinstance(step, _Step)
        step.train(loss is not None)
        wrap_leaf_modules(step.get_submodule("model"), model, names, trials)
        return step

    step, probe, repeated = make_step(), make_step(), make_step()
    try:
        if loss is not None:
            refuse_hooks(model, names)
        with _traced_code(probe, autocast), mode:
            _try_step(probe, example)
            if loss is None and readers:
                layout = _choose_results([step, repeated], probe.run(example[0]), readers, fake_targets)
        with _traced_code(step, autocast):
            exported = _export(step, example)
        _check_constants(exported.constants, model)
        draft, constants = _draft(exported, step, autocast, Unroller(tell) if unrolled else None)
        if not trust:
            with _traced_code(repeated, autocast), mode:
                _compare_steps(repeated, example, tell)
    except Untraceable as error:
        raise error.suggest(find_leaf_globs(model, error.modules, names), leaf_modules) from error
    return msgspec.structs.replace(thread_generator_state(build_graph(draft)), output=layout), constants


def _choose_results(
    steps: Sequence[_Step], output: Any, readers: Sequence[Callable[..., Any]], targets: Sequence[Tensor]
) -> OutputLayout:
    """Have steps compute what is read of an output; return its layout."""
    wanted = find_read_tensors(output, readers, targets)
    for step in steps:
        step.wanted = wanted
    return describe_output(output, wanted)


def _export(step: nn.Module, example: tuple[Any, ...]) -> torch.export.ExportedProgram:
    try:
        return torch.export.export(step, example, strict=False)
    except BadInput:
        raise
    except Exception as error:
        raise _untraceable(error, step) from error


@contextlib.contextmanager
def _traced_code(step: nn.Module, autocast: str) -> Iterator[None]:
    """Run the code of a step as it is to be traced."""
    with (
        keep_global_caches([*step.modules(), step.criterion]),
        show_gradient_modes(),
        DetachedData(),
        autocast_context(autocast, cached=False),
        _quiet(),
    ):
        yield


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence torch's messages about the model; what matters becomes an error of ours."""
    log = logging.getLogger("torch._subclasses.fake_tensor")
    before = log.disabled
    log.disabled = True
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.disabled = before


def collect_state(model: nn.Module, loss: Callable[..., Tensor], constants: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the values of a graph's states by name: parameters and buffers of model and loss module, and constants."""
    values = dict(constants)
    for name, tensor in _named_state(_Step(model, loss)).items():
        values.setdefault(_public_name(name), tensor.detach())
    return values


def _public_name(name: str) -> str:
    """Return the public name of a parameter or buffer of a step: the one in the model, or marked as the loss's."""
    return name.removeprefix("model.") if name.startswith("model.") else f"(loss).{name.removeprefix('criterion.')}"


def _named_state(step: nn.Module) -> dict[str, Tensor]:
    """Return parameters and buffers under every name that they have."""
    return {**dict(step.named_parameters(remove_duplicate=False)), **dict(step.named_buffers(remove_duplicate=False))}


def _try_step(step: nn.Module, example: tuple[Any, ...]) -> None:
    """Run the step once without data, so that a plain mistake gets a plain error."""
    model, buffers = step.get_submodule("model"), dict(step.named_buffers())
    try:
        with RefuseDroppedGradients():
            result = step(*example)
    except Untraceable as error:
        raise error.in_modules(find_modules_of(error, model)) from error
    except BadInput:
        raise
    except Exception as error:
        if isinstance(error, DataDependentOutputException | DynamicOutputShapeException):
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
    if not isinstance(result, Tensor) or result.dim() != 0:
        shape = tuple(result.shape) if isinstance(result, Tensor) else type(result).__name__
        raise BadInput("E322", f"the loss must be a scalar tensor, not {shape}", fix="take the mean over the batch")
    refuse_functions(result, model, lambda: step(*example))


def _compare_steps(step: nn.Module, example: tuple[Any, ...], tell: Callable[[str], None]) -> None:
    """Refuse a step that does not compute the same every time: a trace has it once."""
    model, (inputs, targets) = step.get_submodule("model"), example
    batch = [*((f"input.{i}", t) for i, t in enumerate(inputs)), *((f"target.{i}", t) for i, t in enumerate(targets))]
    try:
        repeated = repeat_step(lambda: step(*example), model, _named_state(step) | dict(batch))
    except Exception as error:  # of torch, which does not follow all operators, or of the model in a later step
        tell(f"it is not known whether every step computes the same{describe_location(error)}: {first_line(error)}")
        return
    refuse_difference(repeated, model, tell)


def _untraceable(error: Exception, step: nn.Module, *, example: str = "") -> Untraceable:
    model = step.get_submodule("model")
    modules = find_modules_of(error, model)
    there = f", in module {modules[0]} ({type(model.get_submodule(modules[0])).__name__})" if modules else ""
    facts = f"the model cannot be traced{describe_location(error)}{there}: {first_line(error)}"
    return Untraceable(facts, modules=modules, example=example)


def _draft(
    exported: torch.export.ExportedProgram, step: nn.Module, autocast: str, unroller: Unroller | None
) -> tuple[Draft, dict[str, Tensor]]:
    draft = Draft()
    lowering = Lowering(draft, autocast=getattr(torch, autocast) if autocast else None, unroller=unroller)
    constants = _enter_placeholders(exported, step, lowering)
    with _quiet():
        results = lowering.run(exported.graph.nodes)
    outputs = list(zip(exported.graph_signature.output_specs, results, strict=True))
    for spec, node in outputs:
        if spec.kind == OutputKind.BUFFER_MUTATION:
            lowering.assign(_first_names(step)[str(spec.target)], node)
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
        kind, name = TENSOR_KINDS.get(spec.kind, ""), spec.target or ""
        if kind in ("parameter", "buffer"):
            kind = "frozen" if kind == "parameter" and not state[name].requires_grad else kind
            name = names[name]
        elif kind == "constant":
            value = exported.constants[name].detach().clone()
            name = _constant_name(value)
            constants[name] = value
        else:
            kind, _, position = node.name.partition("s_")  # "inputs_0", "targets_1"
            name = f"{kind}.{position}"
        lowering.enter(node, draft_tensor(name, node.meta["val"], kind))
    return constants


def _constant_name(value: Tensor) -> str:
    """Name a constant by its content, so that it has the same name in the training and the evaluation graph."""
    content = value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    described = f"{value.dtype} {tuple(value.shape)}".encode()
    return f"constant.{hashlib.sha256(described + content).hexdigest()[:12]}"
