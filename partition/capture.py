"""From a module to a `Graph`: torch.export on fake CPU tensors, the loss included, without allocating a weight.

Training and evaluation are captured separately, since an exported module cannot change its mode. Operators are not decomposed.
In-place operators on values become their plain twins; those on buffers stay.
"""

import copy
import hashlib
import os
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode
from torch.export.graph_signature import ConstantArgument, InputKind
from torch.fx import Node
from torch.utils._pytree import tree_leaves

from .arguments import encode, named
from .errors import BadInput
from .graph import Graph
from .resolve import Draft, DraftOp, resolve
from .signature import DraftTensor

KINDS = {
    InputKind.PARAMETER: "parameter",
    InputKind.BUFFER: "buffer",
    InputKind.CONSTANT_TENSOR: "constant",
}
DROPPED = ("aten._assert_tensor_metadata", "aten.sym_constrain_range", "aten._assert_scalar", "aten._assert_async")


class _Step(nn.Module):
    """The module and its loss as one: what a training step computes. Without a loss the first tensor of the output."""

    def __init__(self, model: nn.Module, loss: Callable[..., Tensor] | None) -> None:
        super().__init__()
        self.model = model
        self.criterion = loss  # a submodule where it is a module: its class weights are then captured like any buffer

    def forward(self, inputs: tuple[Tensor, ...], targets: tuple[Tensor, ...]) -> Tensor:
        output = self.model(*inputs)
        if self.criterion is not None:
            return self.criterion(output, *targets)
        first = next(leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor))
        # A last operator of its own, so that the output can be collected on one machine whatever computed it.
        return torch.ops.aten.alias(first)


def capture(
    model: nn.Module,
    loss: Callable[..., Tensor] | None,
    inputs: Sequence[Tensor],
    targets: Sequence[Tensor] = (),
) -> tuple[Graph, dict[str, Tensor]]:
    """The graph of a training step, or of evaluation where `loss` is None, and the values of constants made by the model's code.

    model: a module on any device, meta included; it is not changed. inputs, targets: an example batch, of which only shapes
    and dtypes count. Raises BadInput naming the source line where the example does not fit the model or it cannot be traced.
    """
    with FakeTensorMode(allow_non_fake_inputs=True):
        step = _without_storage(_Step(model, loss)).train(loss is not None)
        example = (tuple(_empty(t) for t in inputs), tuple(_empty(t) for t in targets) if loss is not None else ())
        _try(step, example)
    try:
        exported = torch.export.export(step, example, strict=False)
    except Exception as error:
        raise _untraceable(error) from error
    draft, constants = _draft(exported, step)
    return resolve(draft), constants


def state_values(model: nn.Module, loss: Callable[..., Tensor], constants: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The values of all state of a graph by name: parameters and buffers of `model` and of a loss module, and constants."""
    values = dict(constants)
    for name, tensor in _named_state(_Step(model, loss)).items():
        values.setdefault(name.removeprefix("model."), tensor.detach())
    return values


def _named_state(step: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers under every name they have."""
    return {**dict(step.named_parameters(remove_duplicate=False)), **dict(step.named_buffers(remove_duplicate=False))}


def _empty(tensor: Tensor) -> Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu")


def _without_storage(module: nn.Module) -> nn.Module:
    """A copy on fake CPU tensors; the caller's module stays as it is, and tied weights stay tied."""
    memo: dict[int, Any] = {}
    for tensor in (*module.parameters(), *module.buffers()):
        empty = _empty(tensor)
        memo[id(tensor)] = nn.Parameter(empty, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else empty
    return copy.deepcopy(module, memo)


def _try(step: nn.Module, example: tuple[Any, ...]) -> None:
    """Run the step once without data, so that a plain mistake gets a plain answer."""
    try:
        result = step(*example)
    except Exception as error:
        if isinstance(error, DataDependentOutputException | DynamicOutputShapeException):
            raise _untraceable(error) from error
        shapes = ", ".join(str(tuple(t.shape)) for group in example for t in group)
        raise BadInput(
            "E321",
            f"the model does not run on the example batch of shapes {shapes}{_where(error)}: {_first_line(error)}",
            fix="check the example batch of the task, or --input",
        ) from error
    if step.criterion is not None and (not isinstance(result, Tensor) or result.dim() != 0):
        shape = tuple(result.shape) if isinstance(result, Tensor) else type(result).__name__
        raise BadInput("E322", f"the loss must be a scalar tensor, not {shape}", fix="take the mean over the batch")


def _untraceable(error: Exception) -> BadInput:
    return BadInput(
        "E320",
        f"the model cannot be traced{_where(error)}: {_first_line(error)}",
        fix="write branches on tensor values with torch.where; or train it uncut, data parallel only, with --machines 1",
    )


def _first_line(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[0].strip() if lines else type(error).__name__


def _where(error: BaseException) -> str:
    """The innermost line outside torch that led to the error."""
    torch_home = os.path.dirname(torch.__file__)
    frames = traceback.extract_tb(error.__traceback__)
    mine = [f for f in frames if not f.filename.startswith((torch_home, "<")) and f.filename != __file__]
    cause = error.__cause__ or error.__context__
    if not mine:
        return _where(cause) if cause is not None else ""
    return f" at {mine[-1].filename}:{mine[-1].lineno} ({(mine[-1].line or '').strip()})"


def _draft(exported: torch.export.ExportedProgram, step: nn.Module) -> tuple[Draft, dict[str, Tensor]]:
    draft, names = Draft(), dict[str, str]()
    constants = _placeholders(exported, step, draft, names)
    for node in exported.graph.nodes:
        if node.op == "call_function":
            _call(node, draft, names)
        elif node.op == "output":
            draft.results = [names[n.name] for n in tree_leaves(node.args) if isinstance(n, Node)][-1:]
    return draft, constants


def _placeholders(
    exported: torch.export.ExportedProgram, step: nn.Module, draft: Draft, names: dict[str, str]
) -> dict[str, Tensor]:
    """Enter parameters, buffers, constants and the batch; a tied parameter is one tensor, under its first name."""
    first_name: dict[int, str] = {}
    owners = _named_state(step)
    for name, tensor in owners.items():
        first_name.setdefault(id(tensor), name)
    constants: dict[str, Tensor] = {}
    nodes = {node.name: node for node in exported.graph.nodes if node.op == "placeholder"}
    for spec in exported.graph_signature.input_specs:
        if isinstance(spec.arg, ConstantArgument):
            continue
        node = nodes[spec.arg.name]
        kind, name = KINDS.get(spec.kind, ""), spec.target or ""
        if kind in ("parameter", "buffer"):
            owner = owners[name]
            name = first_name[id(owner)].removeprefix("model.")
            kind = "frozen" if kind == "parameter" and not owner.requires_grad else kind
        elif kind == "constant":
            value = exported.constants[name].detach().clone()
            name = _constant_name(value)
            constants[name] = value
        else:
            kind, _, position = node.name.partition("s_") if "_" in node.name else (node.name, "", "0")
            name = f"{kind}.{position}"
        names[node.name] = name
        if name not in draft.tensors:
            draft.tensors[name] = _tensor(name, node.meta["val"], kind)
    return constants


def _constant_name(value: Tensor) -> str:
    """By content, so that the training and the evaluation graph call the same constant the same."""
    content = value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    described = f"{value.dtype} {tuple(value.shape)}".encode()
    return f"constant.{hashlib.sha256(described + content).hexdigest()[:12]}"


def _tensor(name: str, value: Tensor, kind: str) -> DraftTensor:
    dtype = str(value.dtype).removeprefix("torch.")
    return DraftTensor(name, tuple(value.shape), dtype, kind, tuple(value.stride()), value.element_size())


def _call(node: Node, draft: Draft, names: dict[str, str]) -> None:
    target = str(node.target)
    if target.startswith(DROPPED):
        return
    if "getitem" in target:
        source, index = node.args
        names[node.name] = f"{source.name}.{index}"  # type: ignore[union-attr]
        return
    mutated = _plain_twin(node, draft, names)
    overload = mutated or node.target
    arguments = encode(named(overload, node.args, node.kwargs), names)
    values = node.meta.get("val")
    several = isinstance(values, tuple | list)
    outputs = []
    for i, value in enumerate(values if several else [values]):  # type: ignore[arg-type]
        name = f"{node.name}.{i}" if several else node.name
        if isinstance(value, Tensor):
            draft.tensors[name] = _tensor(name, value, "value")
            outputs.append(name)
        elif value is not None:
            raise BadInput(
                "E320",
                f"the model cannot be traced at {_source(node)}: {target} gives a {type(value).__name__}, not a tensor",
                fix="keep values in tensors; or train it uncut, data parallel only, with --machines 1",
            )
    names[node.name] = node.name
    if mutated is not None:
        names[node.args[0].name] = node.name  # type: ignore[union-attr]
    draft.ops.append(DraftOp(node.name, str(overload), arguments, tuple(outputs), _module(node), _source(node)))


def _plain_twin(node: Node, draft: Draft, names: dict[str, str]) -> Any:
    """The plain operator in place of one that overwrites a value; None where it writes nothing, or a buffer."""
    packet = node.target._overloadpacket.__name__  # type: ignore[union-attr]
    if not packet.endswith("_") or packet.endswith("__"):
        return None
    written = node.args[0]
    if not isinstance(written, Node) or draft.tensors[names[written.name]].kind != "value":
        return None
    twin = getattr(getattr(torch.ops, node.target.namespace), packet[:-1])  # type: ignore[union-attr]
    return getattr(twin, node.target._overloadname)  # type: ignore[union-attr]


def _module(node: Node) -> str:
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    path = stack[-1][0] if stack else ""
    return str(path).removeprefix("L['self'].").removeprefix("model").lstrip(".")


def _source(node: Node) -> str:
    """File and line of the model's own code that led to this operator."""
    home = os.path.dirname(torch.__file__)
    lines = [
        line.strip() for line in (node.meta.get("stack_trace") or "").splitlines() if line.strip().startswith("File")
    ]
    mine = [line for line in lines if home not in line and __file__ not in line]
    if not mine:
        return ""
    file, _, rest = mine[-1].removeprefix("File ").partition(", line ")
    return f"{os.path.basename(file.strip(chr(34)))}:{rest.partition(',')[0]}"
