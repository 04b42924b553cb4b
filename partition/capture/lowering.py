"""From exported nodes to draft operators, each in its plain form: nothing overwrites a value, nothing reads one for its
shape only.

An in-place operator becomes its plain twin, and what shares memory with what it overwrote is made anew when it is next
read: `y[:, 0] += 1` is a select, an add and a select_scatter. An overwritten buffer gets its last value by a copy at
the end. The parts of `chunk`, `split` and `unbind` are slices, which can be cut. Code under `torch.no_grad` reads
detached tensors, and code under `torch.autocast` cast ones.
"""

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node
from torch.utils._pytree import tree_leaves

from ..ir.arguments import call, decode, encode, named, tensors_in
from ..ir.autocast import casts
from .canonical_form import PAINTING, PARTS, packet, plain_form, twin, value_of
from .axis_inference import Draft, DraftOp
from ..operators.movement import STORE
from ..operators.signature import DraftTensor
from .source_location import module_path, module_paths, source_line
from ..operators.registry import find
from .tracing_error import Untraceable

aten = torch.ops.aten
Arguments = dict[str, Any]
Way = tuple[Any, Arguments] | None  # how a view is made of its source: by which operator (None: by none), with what

SAME: Way = (None, {})
DROPPED = (
    "_assert_tensor_metadata",
    "sym_constrain_range",
    "sym_constrain_range_for_size",
    "_assert_scalar",
    "_assert_async",
)
RESHAPING = ("reshape", "flatten", "unflatten", "squeeze", "unsqueeze")


def untraceable(node: Node, facts: str, *, fix: str) -> Untraceable:
    """The error of a node that has no plain form."""
    modules = [path for path in module_paths(node) if path]
    there = f", in module {modules[0]}" if modules else ""
    facts = f"the model cannot be traced at {source_line(node) or node.name}{there}: {facts}"
    return Untraceable(facts, rewrite=fix, modules=modules)


class Recorder:
    """Enters nodes into a draft. Which tensor a node stands for changes when its memory is overwritten."""

    def __init__(self, draft: Draft, *, autocast: torch.dtype | None = None) -> None:
        self._draft = draft
        self._names: set[str] = set()
        self._tensor: dict[Node, str] = {}  # what holds a node's value now; absent where it must be made anew
        self._source: dict[Node, tuple[Node, Way]] = {}  # of views: the node they show, and how they are made of it
        self._sharing: dict[int, list[Node]] = {}  # nodes by the memory that they have in common
        self._inlined: dict[Node, Sequence[Node]] = {}  # results of an inner graph
        self._results: dict[tuple[Node, int], str] = {}  # of operators with several results, each entered on its own
        self._state: dict[Node, DraftTensor] = {}  # what a placeholder stands for at first
        self._stores: dict[str, Node] = {}  # overwritten buffers
        self._flowing: set[str] = set()  # tensors through which a gradient flows
        self._no_grad = False
        self._autocast = autocast  # the dtype of the region that is recorded
        self._casts: dict[tuple[str, torch.dtype], str] = {}  # cast once, as by torch, which remembers weights

    def enter(self, node: Node, tensor: DraftTensor) -> None:
        """A placeholder and the tensor that it stands for; a tied parameter is entered once."""
        self._state[node] = self._draft.tensors.setdefault(tensor.name, tensor)
        if tensor.kind == "parameter":
            self._flowing.add(tensor.name)
        self._hold(node, tensor.name)

    def run(self, nodes: Iterable[Node]) -> Sequence[Node]:
        """Record all operators; the nodes of the results."""
        results: Sequence[Node] = ()
        for node in nodes:
            if node.op == "call_function":
                self._call(node)
            elif node.op == "output":
                results = [leaf for leaf in tree_leaves(node.args) if isinstance(leaf, Node)]
        return results

    def tensor(self, node: Node) -> str:
        """The name of the tensor that holds the value of `node` now."""
        if node not in self._tensor:
            source, way = self._source[node]
            if way is None:
                fix = "write without in-place operators"
                raise untraceable(node, f"{node.target} is read after its memory was overwritten", fix=fix)
            made, arguments = way
            tensor = self.tensor(source)
            self._tensor[node] = self._apply(node, made, tensor, arguments, value_of(node)) if made else tensor
        return self._tensor[node]

    def assign(self, buffer: str, node: Node) -> None:
        """`node` is the last value of a buffer."""
        self._stores[buffer] = node

    def store(self) -> None:
        """Give overwritten buffers their last value."""
        for buffer, node in self._stores.items():
            target, source = {"tensor": buffer}, {"tensor": self.tensor(node)}
            arguments: Arguments = {"self": target, "src": source, "non_blocking": False}
            info = self._draft.tensors[buffer]
            name = self._unique(f"{buffer}.store")
            self._draft.tensors[name] = replace(info, name=name, kind="value")
            self._draft.ops.append(DraftOp(name, STORE, arguments, (name,), "", "", (buffer,)))

    # One node ----------------------------------------------------------------------------------------------------

    def _call(self, node: Node) -> None:
        if node.target is operator.getitem:
            self._item(node)
        elif isinstance(node.target, torch._ops.HigherOrderOperator):
            self._inline(node)
        elif not isinstance(node.target, torch._ops.OpOverload):
            raise untraceable(node, f"{node.target} does not work on tensors", fix="keep values in tensors")
        elif packet(node) not in (*DROPPED, *PARTS):
            parameters = node.target._schema.arguments
            written = [p.name for p in parameters if p.alias_info is not None and p.alias_info.is_write]
            if len(written) > 1:
                raise untraceable(node, f"{node.target} overwrites several tensors", fix="write without it")
            self._overwrite(node, written[0]) if written else self._record(node)

    def _record(self, node: Node) -> None:
        target, arguments = self._plain_form(node)
        value = node.meta.get("val")
        if isinstance(value, tuple | list) and find(str(target)) is not None:
            self._record_each(node, target, arguments)
            return
        if not isinstance(value, Tensor):
            made = self._emit(node, target, arguments, value if isinstance(value, tuple | list) else [value])
            if len(made) == 1:
                self._tensor[node] = made[0]
            return
        (tensor,) = self._emit(node, target, arguments, [value])
        rest = {name: given for name, given in arguments.items() if name != "self"}
        source = next((n for n in node.all_input_nodes if _shares(n, node)), None)
        direct = source is not None and source is node.args[0] and "self" in arguments
        self._hold(node, tensor, source=source, way=(target, rest) if direct else None)

    def _record_each(self, node: Node, target: Any, arguments: Arguments) -> None:
        """One operator for each result that is used, so that it can be cut."""
        used = {user.args[1] for user in node.users if user.target is operator.getitem}
        for index in (i for i in range(len(node.meta["val"])) if i in used):
            (tensor,) = self._emit(node, target, {**arguments, "@output": index}, [node.meta["val"][index]])
            self._results[node, index] = tensor

    def _plain_form(self, node: Node) -> tuple[Any, Arguments]:
        target, args, kwargs = plain_form(node)
        arguments = encode(named(target, args, kwargs), self._operands(node))
        if "sparse" in arguments:  # gradients add up in dense buffers
            arguments["sparse"] = False
        return target, arguments

    def _operands(self, node: Node) -> Callable[[Node], str]:
        """The tensors that an operator reads, cast where autocast does so."""
        if self._autocast is None or not isinstance(node.target, torch._ops.OpOverload):
            return self.tensor
        found = casts(node, self._autocast)
        if found is None:
            facts = f"what {node.target} casts within itself under torch.autocast cannot be planned"
            raise untraceable(node, facts, fix='write torch.autocast("cpu", enabled=False) around it')
        return lambda operand: self._cast(node, operand, found[operand]) if operand in found else self.tensor(operand)

    def _cast(self, node: Node, operand: Node, dtype: torch.dtype) -> str:
        """An operand of `node` in another dtype. Parameters, and what has no gradient, are cast once."""
        tensor = self.tensor(operand)
        if (tensor, dtype) in self._casts:
            return self._casts[tensor, dtype]
        arguments = {**named(aten.to.dtype, (), {}), **_dtype(dtype), "self": {"tensor": tensor}}
        value, name = value_of(operand).to(dtype), f"{tensor}.{_name(dtype)}"
        (made,) = self._emit(node, aten.to.dtype, arguments, [value], name=name)
        if tensor not in self._flowing or self._draft.tensors[tensor].kind == "parameter":
            self._casts[tensor, dtype] = made
        return made

    def _item(self, node: Node) -> None:
        """One of several results."""
        whole, index = node.args
        assert isinstance(whole, Node)
        assert isinstance(index, int)
        if whole in self._inlined:
            inner = self._inlined[whole][index]
            self._hold(node, self.tensor(inner), source=inner, way=SAME)
        elif (whole, index) in self._results:
            self._hold(node, self._results[whole, index])
        elif packet(whole) in PARTS:
            source, made, arguments = PARTS[packet(whole)](whole, index)
            tensor = self.tensor(source)
            tensor = self._apply(node, made, tensor, arguments, value_of(node)) if made else tensor
            self._hold(node, tensor, source=source, way=(made, arguments))
        else:
            shared = next((n for n in whole.all_input_nodes if _shares(n, node)), None)
            name = self._tensor[whole]
            self._hold(node, name if len(whole.meta["val"]) == 1 else f"{name}.{index}", source=shared)

    def _apply(self, node: Node, overload: Any, tensor: str, arguments: Mapping[str, Any], value: Tensor) -> str:
        """Enter an operator on `tensor`; its output."""
        complete = {**named(overload, (), {}), **arguments, "self": {"tensor": tensor}}
        return self._emit(node, overload, complete, [value])[0]

    def _emit(
        self, node: Node, target: Any, arguments: Arguments, values: Sequence[Any], *, name: str = ""
    ) -> list[str]:
        """Enter an operator and its outputs, which are numbered where there are several. name: else the node's."""
        name = self._unique(name or node.name)
        outputs = []
        for i, value in enumerate(values):
            if isinstance(value, Tensor):
                outputs.append(name if len(values) == 1 else f"{name}.{i}")
                self._draft.tensors[outputs[-1]] = draft_tensor(outputs[-1], value, "value")
            elif value is not None:
                kind = type(value).__name__
                raise untraceable(node, f"{target} gives a {kind}, not a tensor", fix="keep values in tensors")
        if len(values) != 1:
            self._tensor[node] = name
        if target is not aten.detach.default and self._flowing.intersection(tensors_in(arguments).values()):
            self._flowing.update(outputs)
        writes = _statistics(str(target), arguments)
        place = module_path(node), source_line(node)
        self._draft.ops.append(DraftOp(name, str(target), arguments, tuple(outputs), *place, writes))
        return outputs

    def _unique(self, name: str) -> str:
        unique, number = name, 1
        while unique in self._names or unique in self._draft.tensors:
            number += 1
            unique = f"{name}~{number}"
        self._names.add(unique)
        return unique

    def _hold(self, node: Node, tensor: str, *, source: Node | None = None, way: Way = None) -> None:
        """`tensor` is the value of `node`, a view of `source` if there is one."""
        self._tensor[node] = tensor
        self._sharing.setdefault(_memory(node), []).append(node)
        if source is not None:
            stops = way is not None and way[0] is aten.detach.default and self.tensor(source) in self._flowing
            same = not stops and _layout(source) == _layout(node)
            self._source[node] = (source, SAME if same else way)

    # Inner graphs ------------------------------------------------------------------------------------------------

    def _inline(self, node: Node) -> None:
        """Record an inner graph in place: of `torch.no_grad` and its kin, or of `torch.autocast`."""
        name = str(node.target)
        at = next((i for i, arg in enumerate(node.args) if isinstance(arg, Node) and arg.op == "get_attr"), None)
        if name not in ("wrap_with_set_grad_enabled", "wrap_with_autocast") or at is None:
            raise untraceable(node, f"the operator {name} cannot be planned", fix="write the model without it")
        held = node.args[at]
        assert isinstance(held, Node)
        inner = getattr(held.graph.owning_module, str(held.target))
        blamed = next((n for n in inner.graph.nodes if n.op == "call_function"), node)
        no_grad = name == "wrap_with_set_grad_enabled" and not node.args[0]
        if name == "wrap_with_set_grad_enabled" and self._no_grad and not no_grad:
            raise untraceable(blamed, "gradients are enabled inside of torch.no_grad", fix="move that code out of it")
        for placeholder, outer in zip(inner.graph.find_nodes(op="placeholder"), node.args[at + 1 :], strict=True):
            assert isinstance(outer, Node)
            self._pass_in(placeholder, outer, no_grad=no_grad)
        before = self._no_grad, self._autocast
        self._no_grad |= no_grad
        if name == "wrap_with_autocast":
            self._autocast = self._entered(*node.args[:3])
        self._inlined[node] = self.run(inner.graph.nodes)
        self._no_grad, self._autocast = before
        if self._autocast is None:
            self._casts.clear()

    def _entered(self, device: Any, dtype: Any, enabled: Any) -> torch.dtype | None:
        """The dtype of autocast within a region; regions of other devices say nothing of the CPU."""
        if device != "cpu":
            return self._autocast
        lower: torch.dtype = dtype or torch.get_autocast_dtype("cpu")
        return lower if enabled else None

    def _pass_in(self, placeholder: Node, outer: Node, *, no_grad: bool) -> None:
        tensor = self.tensor(outer)
        if not no_grad or tensor not in self._flowing:
            self._hold(placeholder, tensor, source=outer, way=SAME)
            return
        tensor = self._apply(placeholder, aten.detach.default, tensor, {}, value_of(outer))
        self._hold(placeholder, tensor, source=outer, way=(aten.detach.default, {}))

    # Overwriting -------------------------------------------------------------------------------------------------

    def _overwrite(self, node: Node, written: str) -> None:
        """Record an in-place operator as its plain twin."""
        given = named(node.target, node.args, node.kwargs)
        held, overload = given[written], twin(node.target, written)
        if overload is None or not isinstance(held, Node):
            raise untraceable(node, f"{node.target} overwrites a tensor", fix="write it without the in-place operator")
        plain = {name: value for name, value in given.items() if name != "out"}
        if written != "out":  # the twin may call its first argument otherwise
            plain = {overload._schema.arguments[0].name: plain.pop(written), **plain}
        arguments, value = encode(named(overload, (), plain), self.tensor), value_of(node)
        if packet(node) in PAINTING:
            old = self._apply(node, aten.detach.default, self.tensor(held), {}, value)
            arguments[overload._schema.arguments[0].name] = {"tensor": old}
        if torch.Tag.inplace_view in node.target.tags:  # type: ignore[union-attr]
            self._view(node, held, overload, arguments)
            return
        if overload is aten.copy.default:
            self._write(node, held, self._copied(node, arguments["src"]["tensor"]))
            self._hold(node, self._tensor[held], source=held, way=SAME)
            return
        dtype = self._dtype(overload, arguments) or value.dtype
        made = torch.empty_strided(value.shape, value.stride(), dtype=dtype, device="meta")
        (tensor,) = self._emit(node, overload, arguments, [made])
        if dtype != value.dtype:  # x.add_(y) keeps the dtype of x, x.add(y) widens
            tensor = self._apply(node, aten.to.dtype, tensor, _dtype(value.dtype), value)
        self._write(node, held, tensor)
        self._hold(node, tensor, source=held, way=SAME)

    def _view(self, node: Node, source: Node, overload: Any, arguments: Arguments) -> None:
        (tensor,) = self._emit(node, overload, arguments, [value_of(node)])
        rest = {name: given for name, given in arguments.items() if name != "self"}
        self._hold(node, tensor, source=source, way=(overload, rest))

    def _copied(self, node: Node, tensor: str) -> str:
        """`tensor` with the dtype and the shape of what it is copied into."""
        value, info = value_of(node), self._draft.tensors[tensor]
        if info.dtype != str(value.dtype).removeprefix("torch."):
            tensor = self._apply(
                node, aten.to.dtype, tensor, _dtype(value.dtype), self._on_meta(tensor).to(value.dtype)
            )
        if info.shape == tuple(value.shape):
            return tensor
        return self._apply(node, aten.expand.default, tensor, {"size": list(value.shape)}, value)

    def _dtype(self, overload: Any, arguments: Arguments) -> torch.dtype | None:
        """The dtype of an operator's result where its tensors have several."""
        names = tensors_in(arguments).values()
        if len({self._draft.tensors[name].dtype for name in names}) == 1:
            return None
        result: Tensor = call(str(overload), {name: decode(given, self._on_meta) for name, given in arguments.items()})
        return result.dtype

    def _on_meta(self, name: str) -> Tensor:
        info = self._draft.tensors[name]
        return torch.empty(info.shape, dtype=getattr(torch, info.dtype), device="meta")

    def _write(self, node: Node, held: Node, tensor: str) -> None:
        """`held` now is `tensor`: put it back into what it is a view of, and forget what else shares the memory."""
        chain = [held]
        while chain[-1] in self._source:
            chain.append(self._source[chain[-1]][0])
        old = {source: self.tensor(source) for source in chain[1:]}
        for sharing in self._sharing[_memory(held)]:
            self._tensor.pop(sharing, None)
        self._tensor[held] = tensor
        for view, source in pairwise(chain):
            self._tensor[source] = self._put_back(node, view, source, old[source])
        state = self._state.get(chain[-1])
        if state is not None and state.kind == "buffer":
            self._stores[state.name] = chain[-1]
        elif state is not None and state.kind != "input":
            raise untraceable(node, f"{state.name} is overwritten", fix="register it as a buffer")

    def _put_back(self, node: Node, view: Node, source: Node, old: str) -> str:
        """`source` with the new values of its view in place."""
        way, tensor, value = self._source[view][1], self._tensor[view], value_of(source)
        if way == SAME:
            return tensor
        made, arguments = way if way is not None else (None, {})
        packet = made._overloadpacket.__name__ if made is not None else ""
        if packet in ("select", "slice"):
            put = getattr(aten, f"{packet}_scatter").default
            return self._apply(node, put, old, {**arguments, "src": {"tensor": tensor}}, value)
        if packet in RESHAPING:
            return self._apply(node, aten.reshape.default, tensor, {"shape": list(value.shape)}, value)
        if packet in ("transpose", "t"):
            return self._apply(node, made, tensor, arguments, value)
        if packet == "permute":
            rank = value.dim()
            order = [d % rank for d in arguments["dims"]]
            return self._apply(node, made, tensor, {"dims": [order.index(d) for d in range(rank)]}, value)
        through = f"a tensor is overwritten through {packet or view.target}"
        raise untraceable(node, through, fix="use torch.where or torch.cat")


def draft_tensor(name: str, value: Tensor, kind: str) -> DraftTensor:
    """A tensor as the trace has it."""
    dtype = str(value.dtype).removeprefix("torch.")
    return DraftTensor(name, tuple(value.shape), dtype, kind, tuple(value.stride()), value.element_size())


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _dtype(dtype: torch.dtype) -> Arguments:
    return {"dtype": {"dtype": _name(dtype)}}


def _memory(node: Node) -> int:
    return int(value_of(node).untyped_storage()._cdata)


def _shares(node: Node, other: Node) -> bool:
    return isinstance(node.meta.get("val"), Tensor) and _memory(node) == _memory(other)


def _layout(node: Node) -> tuple[Any, ...]:
    value = value_of(node)
    return tuple(value.shape), value.stride(), value.storage_offset(), value.dtype


def _statistics(target: str, arguments: Arguments) -> tuple[str, ...]:
    """The buffers that a normalisation overwrites, where its schema does not say so."""
    flag = {"aten.batch_norm.default": "training", "aten.instance_norm.default": "use_input_stats"}.get(target)
    if flag is None or not arguments[flag]:
        return ()
    given = [arguments[name] for name in ("running_mean", "running_var")]
    return tuple(value["tensor"] for value in given if value is not None)
