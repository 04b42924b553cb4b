"""From an exported program to a `Draft`: parameters, buffers, constants and batch by their names, then the nodes."""

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.export.graph_signature import ConstantArgument, InputKind, OutputKind

from ...errors import BadInput
from ..draft.draft import Draft, draft_tensor
from ..operators.step_module import StepModule
from ..recurrence.recurrent_call import Unroller
from ..trace.recurrent_stand_ins import WHOLE
from .lowering import Lowering
from .traced_code import keep_quiet

TENSOR_KINDS = {
    InputKind.PARAMETER: "parameter",
    InputKind.BUFFER: "buffer",
    InputKind.CONSTANT_TENSOR: "constant",
}


@keep_quiet()
def draft_exported(
    exported: torch.export.ExportedProgram, step: StepModule, autocast: str, unroller: Unroller | None
) -> tuple[Draft, dict[str, Tensor]]:
    """Return the draft of an exported step and the values of its constants, by name.

    step: what was exported, for the names of parameters and buffers. autocast: the dtype in which torch.autocast
    computes, or "". unroller: makes operators of the time steps of recurrent nets; None leaves them whole.
    """
    # Also in the graphs of higher-order operators, such as that of a checkpoint.
    for graph in [inner.graph for inner in exported.graph_module.modules() if isinstance(inner, fx.GraphModule)]:
        for node in graph.nodes:
            node.target = WHOLE.get(node.target, node.target)
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


def check_constants(constants: Mapping[str, Any], model: nn.Module) -> None:
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
    state = list_state(step)
    for name, tensor in state.items():
        first.setdefault(id(tensor), _public_name(name))
    return {name: first[id(tensor)] for name, tensor in state.items()}


def list_state_names(step: nn.Module) -> list[str]:
    """Return the public names of parameters and buffers in the order of a step."""
    return list(dict.fromkeys(_first_names(step).values()))


def _enter_placeholders(
    exported: torch.export.ExportedProgram, step: nn.Module, lowering: Lowering
) -> dict[str, Tensor]:
    """Enter parameters, buffers, constants and the batch, and return the constants by name."""
    state, names = list_state(step), _first_names(step)
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


def collect_state(model: nn.Module, loss: Callable[..., Tensor], constants: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the values of a graph's states by name: parameters and buffers of model and loss module, and constants."""
    values = dict(constants)
    for name, tensor in list_state(StepModule(model, loss)).items():
        values.setdefault(_public_name(name), tensor.detach())
    return values


def _public_name(name: str) -> str:
    """Return the public name of a parameter or buffer of a step: the one in the model, or marked as the loss's."""
    return name.removeprefix("model.") if name.startswith("model.") else f"(loss).{name.removeprefix('criterion.')}"


def list_state(step: nn.Module) -> dict[str, Tensor]:
    """Return parameters and buffers under every name that they have."""
    return {**dict(step.named_parameters(remove_duplicate=False)), **dict(step.named_buffers(remove_duplicate=False))}
