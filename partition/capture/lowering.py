"""From exported nodes to draft operators in canonical form, in which nothing overwrites a value, and nothing reads one
for its shape only.

An in-place operator becomes its functional twin; an overwritten buffer gets its last value by a copy at the end. The
parts of `chunk`, `split` and `unbind` are slices, which can be cut. Code under `torch.no_grad` reads detached tensors,
and code under `torch.autocast` cast ones.
"""

import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node
from torch.utils._pytree import tree_leaves

from ..draft.draft import Arguments, Draft, DraftBuilder
from ..ir.arguments import bind_arguments, encode, find_tensors
from ..ir.autocast import find_casts
from ..operators.island import NUMBER_FUNCTIONS
from ..operators.registry import find_rule
from ..operators.sharding.signature import DraftTensor
from ..recurrence.recurrent_call import Unroller, inputs_of
from .canonical_form import (
    PAINTING,
    SPLITTERS,
    canonicalise,
    find_functional_twin,
    is_dynamic,
    operator_name,
    traced_value,
)
from .node_values import SAME, NodeValues, shares_memory
from .tracing_error import untraceable_node

aten = torch.ops.aten
DROPPED = (
    "_assert_tensor_metadata",
    "sym_constrain_range",
    "sym_constrain_range_for_size",
    "_assert_scalar",
    "_assert_async",
)

FLOATING = ("float", "bfloat", "complex")
NUMBER_NAMES: dict[Any, str] = {function: name for name, function in NUMBER_FUNCTIONS.items()}


class Lowering:
    """Enters the operators of exported nodes into a draft. unroller: enters recurrent ones in their unrolled form."""

    def __init__(self, draft: Draft, *, autocast: torch.dtype | None = None, unroller: Unroller | None = None) -> None:
        self._builder = DraftBuilder(draft)
        self._values = NodeValues(self._builder)
        self._inlined: dict[Node, Sequence[Node]] = {}  # results of an inner graph
        self._results: dict[tuple[Node, int], str] = {}  # of operators with several results, each entered on its own
        self._no_grad = False
        self._unroller = unroller
        self._autocast = autocast  # the dtype of the region that is being lowered
        self._casts: dict[tuple[str, torch.dtype], str] = {}  # cast once, as by torch, which remembers weights

    def enter(self, node: Node, tensor: DraftTensor) -> None:
        """Enter a placeholder and the tensor that it stands for."""
        self._values.enter(node, tensor)

    def run(self, nodes: Iterable[Node]) -> Sequence[Node]:
        """Enter the operators of all nodes and return the nodes of the results."""
        results: Sequence[Node] = ()
        for node in nodes:
            if node.op == "call_function":
                self._lower(node)
            elif node.op == "output":
                results = [leaf for leaf in tree_leaves(node.args) if isinstance(leaf, Node)]
        return results

    def tensor(self, node: Node) -> str:
        """Return the name of the tensor that holds the value of `node` now."""
        return self._values.tensor(node)

    def assign(self, buffer: str, node: Node) -> None:
        """Let `node` be the last value of a buffer."""
        self._values.assign(buffer, node)

    def store(self) -> None:
        """Give all overwritten buffers their last values."""
        self._values.store()

    # One node ----------------------------------------------------------------------------------------------------

    def _lower(self, node: Node) -> None:
        if node.target is operator.getitem:
            self._lower_item(node)
        elif node.target in NUMBER_NAMES:
            self._lower_number(node)
        elif isinstance(node.target, torch._ops.HigherOrderOperator):
            self._inline(node)
        elif not isinstance(node.target, torch._ops.OpOverload):
            raise untraceable_node(node, f"{node.target} does not work on tensors", fix="keep values in tensors")
        elif operator_name(node) not in DROPPED and not _is_splitter(node) and not self._enter_unrolled(node):
            parameters = node.target._schema.arguments
            written = [p.name for p in parameters if p.alias_info is not None and p.alias_info.is_write]
            if len(written) > 1:
                raise untraceable_node(node, f"{node.target} overwrites several tensors", fix="write without it")
            self._lower_in_place(node, written[0]) if written else self._lower_functional(node)

    def _lower_functional(self, node: Node) -> None:
        target, args, kwargs = canonicalise(node)
        arguments = encode(bind_arguments(target, args, kwargs), self._read_operands(node))
        if "sparse" in arguments:  # gradients add up in dense buffers
            arguments["sparse"] = False
        value = node.meta.get("val")
        splits = find_rule(str(target)) is not None or _has_one_use(node, target)
        if isinstance(value, tuple | list) and splits and not is_dynamic(node):
            self._lower_each_result(node, target, arguments)
            return
        if not isinstance(value, Tensor):
            values = value if isinstance(value, tuple | list) else [value]
            op = self._builder.emit(node, target, arguments, values)
            if len(values) != 1:
                self._values.hold_results(node, op.name)
            if len(op.outputs) == 1:
                self._values.hold_results(node, op.outputs[0])
            return
        (tensor,) = self._builder.emit(node, target, arguments, [value]).outputs
        rest = {name: argument for name, argument in arguments.items() if name != "self"}
        source = next((n for n in node.all_input_nodes if shares_memory(n, node)), None)
        is_view = source is not None and source is node.args[0] and "self" in arguments
        self._values.hold(node, tensor, source=source, recipe=(target, rest) if is_view else None)

    def _lower_number(self, node: Node) -> None:
        """Enter a function of numbers, such as of the sizes of tensors."""
        arguments = encode({str(i): value for i, value in enumerate(node.args)}, self.tensor)
        op = self._builder.emit(node, NUMBER_NAMES[node.target], arguments, [node.meta["val"]])
        self._values.hold_results(node, op.outputs[0])

    def _lower_each_result(self, node: Node, target: Any, arguments: Arguments) -> None:
        """Enter one operator for each result that is used, so that it can be cut."""
        used = {user.args[1] for user in node.users if user.target is operator.getitem}
        for index in (i for i in range(len(node.meta["val"])) if i in used):
            value = node.meta["val"][index]
            (tensor,) = self._builder.emit(node, target, {**arguments, "@output": index}, [value]).outputs
            self._results[node, index] = tensor

    def _lower_item(self, node: Node) -> None:
        """Enter one of several results of a node."""
        whole, index = node.args
        assert isinstance(whole, Node)
        assert isinstance(index, int)
        if whole in self._inlined:
            inner = self._inlined[whole][index]
            self._values.hold(node, self.tensor(inner), source=inner, recipe=SAME)
        elif (whole, index) in self._results:
            self._values.hold(node, self._results[whole, index])
        elif _is_splitter(whole):
            source, overload, arguments = SPLITTERS[operator_name(whole)](whole, index)
            tensor = self.tensor(source)
            if overload:
                tensor = self._builder.apply(node, overload, tensor, arguments, traced_value(node))
            self._values.hold(node, tensor, source=source, recipe=(overload, arguments))
        else:
            shared = next((n for n in whole.all_input_nodes if shares_memory(n, node)), None)
            name = self.tensor(whole)
            self._values.hold(node, name if len(whole.meta["val"]) == 1 else f"{name}.{index}", source=shared)

    # Casts of autocast -------------------------------------------------------------------------------------------

    def _read_operands(self, node: Node) -> Callable[[Node], str]:
        """Return what gives the tensor of an operand of `node`, cast where autocast does so."""
        if self._autocast is None or not isinstance(node.target, torch._ops.OpOverload):
            return self.tensor
        casts = find_casts(node, self._autocast)
        if casts is None:
            facts = f"what {node.target} casts within itself under torch.autocast cannot be planned"
            raise untraceable_node(node, facts, fix='write torch.autocast("cpu", enabled=False) around it')
        return lambda operand: self._cast(node, operand, casts[operand]) if operand in casts else self.tensor(operand)

    def _cast(self, node: Node, operand: Node, dtype: torch.dtype) -> str:
        """Return the tensor of an operand of `node` in another dtype.

        Parameters, and tensors without gradient, are cast once.
        """
        tensor = self.tensor(operand)
        if (tensor, dtype) in self._casts:
            return self._casts[tensor, dtype]
        arguments = {**bind_arguments(aten.to.dtype, (), {}), **_dtype_argument(dtype), "self": {"tensor": tensor}}
        value, name = traced_value(operand).to(dtype), f"{tensor}.{_dtype_name(dtype)}"
        (cast,) = self._builder.emit(node, aten.to.dtype, arguments, [value], name=name).outputs
        if not self._builder.has_gradient(tensor) or self._builder.tensor(tensor).kind == "parameter":
            self._casts[tensor, dtype] = cast
        return cast

    # Inner graphs ------------------------------------------------------------------------------------------------

    def _inline(self, node: Node) -> None:
        """Enter an inner graph in place: that of `torch.no_grad` and its kin, or of `torch.autocast`."""
        name = str(node.target)
        at = next((i for i, arg in enumerate(node.args) if isinstance(arg, Node) and arg.op == "get_attr"), None)
        if name not in ("wrap_with_set_grad_enabled", "wrap_with_autocast") or at is None:
            raise untraceable_node(node, f"the operator {name} cannot be planned", fix="write the model without it")
        attribute = node.args[at]
        assert isinstance(attribute, Node)
        inner = getattr(attribute.graph.owning_module, str(attribute.target))
        no_grad = name == "wrap_with_set_grad_enabled" and not node.args[0]
        if name == "wrap_with_set_grad_enabled" and self._no_grad and not no_grad:
            first = next((n for n in inner.graph.nodes if n.op == "call_function"), node)
            facts = "gradients are enabled inside of torch.no_grad"
            raise untraceable_node(first, facts, fix="move that code out of it")
        for placeholder, outer in zip(inner.graph.find_nodes(op="placeholder"), node.args[at + 1 :], strict=True):
            assert isinstance(outer, Node)
            self._pass_in(placeholder, outer, no_grad=no_grad)
        before = self._no_grad, self._autocast
        self._no_grad |= no_grad
        if name == "wrap_with_autocast":
            self._autocast = self._autocast_within(*node.args[:3])
        self._inlined[node] = self.run(inner.graph.nodes)
        self._no_grad, self._autocast = before
        if self._autocast is None:
            self._casts.clear()

    def _enter_unrolled(self, node: Node) -> bool:
        """Enter a recurrent operator in its unrolled form, if that is wanted; whether it was."""
        unrolled = self._unroller.unroll(node) if self._unroller is not None and self._autocast is None else None
        if unrolled is None:
            return False
        for placeholder, outer in zip(unrolled.find_nodes(op="placeholder"), inputs_of(node), strict=True):
            self._pass_in(placeholder, outer, no_grad=False)
        results = self.run(unrolled.nodes)
        if isinstance(node.meta["val"], Tensor):  # a cell of one state
            self._values.hold(node, self.tensor(results[0]))
        self._inlined[node] = results
        return True

    def _autocast_within(self, device: Any, dtype: Any, enabled: Any) -> torch.dtype | None:
        """Return the dtype of autocast within a region; regions of other devices say nothing of the CPU."""
        if device != "cpu":
            return self._autocast
        lower: torch.dtype = dtype or torch.get_autocast_dtype("cpu")
        return lower if enabled else None

    def _pass_in(self, placeholder: Node, outer: Node, *, no_grad: bool) -> None:
        """Let the placeholder of an inner graph have the value of `outer`, detached under `torch.no_grad`."""
        tensor = self.tensor(outer)
        if not no_grad or not self._builder.has_gradient(tensor):
            self._values.hold(placeholder, tensor, source=outer, recipe=SAME)
            return
        tensor = self._builder.apply(placeholder, aten.detach.default, tensor, {}, traced_value(outer))
        self._values.hold(placeholder, tensor, source=outer, recipe=(aten.detach.default, {}))

    # In-place operators ------------------------------------------------------------------------------------------

    def _lower_in_place(self, node: Node, written: str) -> None:
        """Enter the functional twin of an in-place operator; `written` is the argument that it overwrites."""
        bound = bind_arguments(node.target, node.args, node.kwargs)
        target, twin = bound[written], find_functional_twin(node.target, written)
        if twin is None or not isinstance(target, Node):
            facts = f"{node.target} overwrites a tensor"
            raise untraceable_node(node, facts, fix="write it without the in-place operator")
        functional = {name: value for name, value in bound.items() if name != "out"}
        if written != "out":  # the twin may call its first argument otherwise
            functional = {twin._schema.arguments[0].name: functional.pop(written), **functional}
        arguments, value = encode(bind_arguments(twin, (), functional), self.tensor), traced_value(node)
        if operator_name(node) in PAINTING:
            old = self._builder.apply(node, aten.detach.default, self.tensor(target), {}, value)
            arguments[twin._schema.arguments[0].name] = {"tensor": old}
        if torch.Tag.inplace_view in node.target.tags:  # type: ignore[union-attr]
            (tensor,) = self._builder.emit(node, twin, arguments, [value]).outputs
            rest = {name: argument for name, argument in arguments.items() if name != "self"}
            self._values.hold(node, tensor, source=target, recipe=(twin, rest))
            return
        if twin is aten.copy.default and not is_dynamic(node):
            tensor = self._convert_source(node, arguments["src"]["tensor"])
        else:
            tensor = self._emit_twin(node, twin, arguments)
        self._values.overwrite(node, target, tensor)
        self._values.hold(node, self.tensor(target), source=target, recipe=SAME)

    def _emit_twin(self, node: Node, twin: Any, arguments: Arguments) -> str:
        """Enter a functional twin; its result gets the dtype of the tensor that `node` overwrites."""
        value = traced_value(node)
        if is_dynamic(node):
            (tensor,) = self._builder.emit(node, twin, arguments, [value]).outputs
            dtypes = {self._builder.tensor(name).dtype for name in find_tensors(arguments).values()}
            if {dtype for dtype in dtypes if dtype.startswith(FLOATING)} == {_dtype_name(value.dtype)}:
                return tensor
            return self._builder.apply(node, aten.to.dtype, tensor, _dtype_argument(value.dtype), value)
        dtype = self._builder.promoted_dtype(twin, arguments) or value.dtype
        result = torch.empty_strided(value.shape, value.stride(), dtype=dtype, device="meta")
        (tensor,) = self._builder.emit(node, twin, arguments, [result]).outputs
        if dtype == value.dtype:
            return tensor
        # x.add_(y) keeps the dtype of x, x.add(y) widens it.
        return self._builder.apply(node, aten.to.dtype, tensor, _dtype_argument(value.dtype), value)

    def _convert_source(self, node: Node, tensor: str) -> str:
        """Return the source of a `copy_` with the dtype and the shape of what it is copied into."""
        value, info = traced_value(node), self._builder.tensor(tensor)
        if info.dtype != _dtype_name(value.dtype):
            cast = self._builder.on_meta(tensor).to(value.dtype)
            tensor = self._builder.apply(node, aten.to.dtype, tensor, _dtype_argument(value.dtype), cast)
        if info.shape == tuple(value.shape):
            return tensor
        return self._builder.apply(node, aten.expand.default, tensor, {"size": list(value.shape)}, value)


def _is_splitter(node: Node) -> bool:
    return operator_name(node) in SPLITTERS and not is_dynamic(node)


def _has_one_use(node: Node, target: Any) -> bool:
    """Whether an operator without a written rule is used for one of its results alone, as `slogdet` often is.

    Then it may have a rule that is found by running it. Of several results, each would run the operator once more.
    """
    is_plain = target.namespace == "aten" and all(r.alias_info is None for r in target._schema.returns)
    used = {user.args[1] for user in node.users if user.target is operator.getitem and user.users}
    return is_plain and torch.Tag.nondeterministic_seeded not in target.tags and len(used) == 1


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _dtype_argument(dtype: torch.dtype) -> Arguments:
    return {"dtype": {"dtype": _dtype_name(dtype)}}
