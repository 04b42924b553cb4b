"""`NodeValues`: which tensor of the draft holds the value of a node, while in-place operators overwrite memory.

What shares memory with what was overwritten is made anew when it is next read: `y[:, 0] += 1` becomes a select, an add
and a select_scatter, and a view of `y` that is read later is taken of the select_scatter's result.
"""

from itertools import pairwise
from typing import Any

import torch
from torch.fx import Node

from ..draft.draft import Arguments, DraftBuilder
from ..operators.sharding.signature import DraftTensor
from .canonical_form import is_dynamic, traced_value
from .tracing_error import untraceable_node

aten = torch.ops.aten
ViewRecipe = tuple[Any, Arguments] | None  # by which operator (None: by none) a view is made of its source, with what

SAME: ViewRecipe = (None, {})
RESHAPING = ("reshape", "flatten", "unflatten", "squeeze", "unsqueeze")


class NodeValues:
    """The tensors that hold the values of nodes, and of which nodes they are views."""

    def __init__(self, builder: DraftBuilder) -> None:
        self._builder = builder
        self._tensor: dict[Node, str] = {}  # absent where the value must be made anew
        self._source: dict[Node, tuple[Node, ViewRecipe]] = {}  # of views: the node they show, and how they are made
        self._sharing: dict[int, list[Node]] = {}  # nodes by the memory that they have in common
        self._placeholders: dict[Node, DraftTensor] = {}  # what a placeholder stands for at first
        self._stores: dict[str, Node] = {}  # the nodes of the last values of overwritten buffers

    def enter(self, node: Node, tensor: DraftTensor) -> None:
        """Enter a placeholder and the tensor that it stands for."""
        self._placeholders[node] = self._builder.enter(tensor)
        self.hold(node, tensor.name)

    def hold(self, node: Node, tensor: str, *, source: Node | None = None, recipe: ViewRecipe = None) -> None:
        """Let `tensor` be the value of `node`, which is a view of `source` if that is given."""
        self.hold_results(node, tensor)
        if not isinstance(node.meta.get("val"), torch.Tensor):  # a number
            return
        self._sharing.setdefault(_memory(node), []).append(node)
        if source is not None:
            is_detach = recipe is not None and recipe[0] is aten.detach.default
            stops_gradient = is_detach and self._builder.has_gradient(self.tensor(source))
            same = not stops_gradient and _layout(source) == _layout(node)
            self._source[node] = (source, SAME if same else recipe)

    def hold_results(self, node: Node, name: str) -> None:
        """Let `name` be the tensor of `node`, or begin the names of its tensors where it has several results."""
        self._tensor[node] = name

    def tensor(self, node: Node) -> str:
        """Return the name of the tensor that holds the value of `node` now."""
        if node not in self._tensor:
            source, recipe = self._source[node]
            if recipe is None:
                facts = f"{node.target} is read after its memory was overwritten"
                raise untraceable_node(node, facts, fix="write without in-place operators")
            overload, arguments = recipe
            tensor = self.tensor(source)
            if overload:
                tensor = self._builder.apply(node, overload, tensor, arguments, traced_value(node))
            self._tensor[node] = tensor
        return self._tensor[node]

    def overwrite(self, node: Node, written: Node, tensor: str) -> None:
        """Let `tensor` be the value of `written` from now on.

        It is put back into what `written` is a view of, and what else shares the memory is forgotten.
        """
        chain = [written]
        while chain[-1] in self._source:
            chain.append(self._source[chain[-1]][0])
        state = self._placeholders.get(chain[-1])
        if state is not None and state.kind not in ("buffer", "input"):
            raise untraceable_node(node, f"{state.name} is overwritten", fix="register it as a buffer")
        old = {source: self.tensor(source) for source in chain[1:]}
        for sharing in self._sharing[_memory(written)]:
            self._tensor.pop(sharing, None)
        self._tensor[written] = tensor
        for view, source in pairwise(chain):
            self._tensor[source] = self._write_back(node, view, source, old[source])
        if state is not None and state.kind == "buffer":
            self._stores[state.name] = chain[-1]

    def _write_back(self, node: Node, view: Node, source: Node, old: str) -> str:
        """Return the tensor of `source` with the new values of its view in place; `old` is that of before."""
        recipe, tensor, value = self._source[view][1], self._tensor[view], traced_value(source)
        if recipe == SAME:
            return tensor
        overload, arguments = recipe if recipe is not None else (None, {})
        name = overload._overloadpacket.__name__ if overload is not None else ""
        if name in ("select", "slice"):
            scatter = getattr(aten, f"{name}_scatter").default
            return self._builder.apply(node, scatter, old, {**arguments, "src": {"tensor": tensor}}, value)
        if is_dynamic(view):
            raise untraceable_node(node, "a view whose size depends on data is overwritten", fix="use torch.where")
        if name in RESHAPING:
            return self._builder.apply(node, aten.reshape.default, tensor, {"shape": list(value.shape)}, value)
        if name in ("transpose", "t"):
            return self._builder.apply(node, overload, tensor, arguments, value)
        if name == "permute":
            rank = value.dim()
            order = [d % rank for d in arguments["dims"]]
            inverse = [order.index(d) for d in range(rank)]
            return self._builder.apply(node, overload, tensor, {"dims": inverse}, value)
        if name == "detach":
            facts = "a tensor with a gradient is overwritten by way of .data, detach() or torch.no_grad"
            raise untraceable_node(node, facts, fix="compute a new tensor instead")
        facts = f"a tensor is overwritten through {name or view.target}"
        raise untraceable_node(node, facts, fix="use torch.where or torch.cat")

    def assign(self, buffer: str, node: Node) -> None:
        """Let `node` be the last value of a buffer."""
        self._stores[buffer] = node

    def store(self) -> None:
        """Give all overwritten buffers their last values."""
        for buffer, node in self._stores.items():
            self._builder.store(buffer, self.tensor(node))


def shares_memory(node: Node, other: Node) -> bool:
    """Whether `node` is a tensor in the same memory as `other`."""
    return isinstance(node.meta.get("val"), torch.Tensor) and _memory(node) == _memory(other)


def _memory(node: Node) -> int:
    return int(traced_value(node).untyped_storage()._cdata)


def _layout(node: Node) -> tuple[list[str], torch.dtype]:
    value = traced_value(node)
    # By their names, since nobody knows whether sizes that depend on data are equal.
    return [str(size) for size in (*value.shape, *value.stride(), value.storage_offset())], value.dtype
