"""`GraphSegment`: the nodes that a call of a layer adds to a trace of torch.export, to be added again for its likes.

They get the names, the module paths and the source lines that they would have if the layer were run: torch's tracer
gives names in the order of the nodes, and the rest is that of the first call with the place of the second.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import Node, Proxy
from torch.fx.experimental.proxy_tensor import get_proxy_slot, track_tensor
from torch.fx.node import map_arg
from torch.utils._mode_utils import no_dispatch
from torch.utils._traceback import CapturedTraceback

_STACK, _LINES = "nn_module_stack", "stack_trace"


class CannotRepeat(Exception):  # noqa: N818  # the layer is then traced each time
    """The nodes of a call cannot be added for another one."""


class GraphSegment:
    """Records what a tracer gets while a call runs. operands: the call's parameters, buffers and argument tensors."""

    def __init__(self, tracer: Any, operands: Sequence[Tensor]) -> None:
        self._tracer, self._operands = tracer, operands
        self._entered = [_find_node(tracer, tensor) for tensor in operands]
        self._last = next(iter(reversed(tracer.graph.nodes)))
        self._stack, self._lines = dict(tracer.module_stack), _format_forward_lines(tracer)
        self._calls = dict(tracer.num_calls)
        self._candidates: dict[str, str] = {}
        self._nodes: list[Node] = []
        self._rebound: dict[int, Node] = {}  # operands whose value is another node's after the call
        self._results: list[Node] = []
        self._result_storages: list[int] = []
        self._called: dict[str, int] = {}  # how often inner modules are
        names = tracer.graph._graph_namespace
        create = names.create_name

        def note(candidate: str, obj: Any) -> str:
            name = create(candidate, obj)
            self._candidates[name] = candidate
            return str(name)

        names.create_name = note

    def stop(self) -> None:
        """Stop to record."""
        del self._tracer.graph._graph_namespace.create_name

    def finish(self, results: Sequence[Tensor]) -> None:
        """Take the nodes since the beginning; raise CannotRepeat where they are not those of this layer alone."""
        node = self._last.next
        while node.op != "root":
            self._nodes.append(node)
            node = node.next
        known = {*self._nodes, *(node for node in self._entered if node is not None)}
        prefix = self._path + "."
        for node in self._nodes:
            if node.op != "call_function" or not known.issuperset(node.all_input_nodes) or len(node.meta) == 0:
                raise CannotRepeat(f"{node} is not of the layer alone")
            stack = list(node.meta[_STACK].items())[len(self._stack) :]
            if any(not path.startswith(prefix) for _, (path, _) in stack):
                raise CannotRepeat(f"{node} is of another module")
            if not node.meta.get(_LINES, "").startswith(self._lines):
                raise CannotRepeat(f"{node} has other callers")
        called = {path: count - self._calls.get(path, 0) for path, count in self._tracer.num_calls.items()}
        self._called = {path: count for path, count in called.items() if count}
        if any(not path.startswith(prefix) for path in self._called):
            raise CannotRepeat("it calls modules that are not its own")
        for position, (tensor, before) in enumerate(zip(self._operands, self._entered, strict=True)):
            after = _find_node(self._tracer, tensor)
            if after is not before and after is not None:
                self._rebound[position] = after
        self._results = [node for node in (_find_node(self._tracer, t) for t in results) if node is not None]
        if len(self._results) != len(results) or not known.issuperset(self._results):
            raise CannotRepeat("a result has no node of the layer")
        self._result_storages = [t.untyped_storage()._cdata for t in results]

    @property
    def _path(self) -> str:
        return str(list(self._stack.values())[-1][0])

    @property
    def rewritten(self) -> frozenset[int]:
        """Positions of the operands that the call overwrites."""
        return frozenset(self._rebound)

    def accepts(self, operands: Sequence[Tensor]) -> bool:
        """Whether other operands are nodes of the trace where those of the recorded call are, and as distinct."""
        pairs: dict[Node | None, Node | None] = {}
        now = [_find_node(self._tracer, tensor) for tensor in operands]
        for entered, other in zip(self._entered, now, strict=True):
            if (entered is None) != (other is None) or pairs.setdefault(entered, other) is not other:
                return False
        return len(set(pairs.values())) == len(pairs)

    def repeat(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> None:
        """Add the nodes for a call with other operands, whose results are to be these tensors."""
        tracer = self._tracer
        nodes: dict[Node, Node] = {}
        for entered, tensor in zip(self._entered, operands, strict=True):
            if entered is not None:
                nodes[entered] = _find_node(tracer, tensor)  # type: ignore[assignment]
        storages = {
            t.untyped_storage()._cdata: other.untyped_storage()
            for t, other in zip(self._operands, operands, strict=True)
        }
        storages |= {
            number: tensor.untyped_storage() for number, tensor in zip(self._result_storages, results, strict=True)
        }
        place = _Place(tracer, self._stack, self._calls, self._lines)
        with no_dispatch():
            for node in self._nodes:
                args, kwargs = map_arg(node.args, nodes.__getitem__), map_arg(node.kwargs, nodes.__getitem__)
                added = tracer.graph.create_node(
                    node.op, node.target, args, kwargs, self._candidates[node.name], node.type
                )
                nodes[node] = added
                added.meta = {**node.meta, _STACK: place.move_stack(node.meta[_STACK])}
                if _LINES in node.meta:
                    added.meta[_LINES] = place.move_lines(node.meta[_LINES])
                if "val" in node.meta:
                    added.meta["val"] = _copy_value(node.meta["val"], storages)
        place.count_calls(self._called)
        for tensor, node in zip(results, self._results, strict=True):
            track_tensor(tensor, Proxy(nodes[node], tracer), constant=None, tracer=tracer)
        for position, node in self._rebound.items():
            track_tensor(operands[position], Proxy(nodes[node], tracer), constant=None, tracer=tracer)


class _Place:
    """The place of a call in the model: the modules around it, how often they were called, the lines that led to it.

    stack, calls, lines: those of the recorded call.
    """

    def __init__(self, tracer: Any, stack: Mapping[str, Any], calls: Mapping[str, int], lines: str) -> None:
        self._tracer, self._old, self._calls, self._old_lines = tracer, list(stack.items()), calls, lines
        self._stack, self._lines = dict(tracer.module_stack), _format_forward_lines(tracer)
        self._stack_now = {
            key: (path, f"{kind.__module__}.{kind.__qualname__}" if isinstance(kind, type) else kind)
            for key, (path, kind) in self._stack.items()
        }
        self._before = dict(tracer.num_calls)
        self._path, self._old_path = str(list(self._stack.values())[-1][0]), str(self._old[-1][1][0])

    def move_stack(self, stack: Mapping[str, Any]) -> dict[str, Any]:
        """Return the modules around a node of the repeated call."""
        moved = dict(self._stack_now)
        for key, (path, kind) in list(stack.items())[len(self._old) :]:
            here = self._path + path[len(self._old_path) :]
            count = int(key.rpartition("@")[2]) if "@" in key else 0
            count += self._before.get(here, 0) - self._calls.get(path, 0)
            moved[f"{here}@{count}" if count else here] = (here, kind)
        return moved

    def move_lines(self, lines: str) -> str:
        """Return the lines that lead to a node of the repeated call."""
        return self._lines + lines[len(self._old_lines) :]

    def count_calls(self, called: Mapping[str, int]) -> None:
        """Count the calls of inner modules. called: how often the recorded call calls its own, by their paths."""
        for path, count in called.items():
            here = self._path + path[len(self._old_path) :]
            self._tracer.num_calls[here] = self._before.get(here, 0) + count


def _find_node(tracer: Any, tensor: Tensor) -> Node | None:
    """Return the node that holds the value of a tensor; None where it is not traced."""
    found = get_proxy_slot(tensor, tracer, None)
    if found is None:
        return None
    if found.constant is not None:
        raise CannotRepeat("a constant with a value")
    node: Node = found.proxy.node
    return node


def _format_forward_lines(tracer: Any) -> str:
    """Return the lines that the tracer would give a node that is made now."""
    frames = tracer._filter_traceback_frames(CapturedTraceback.extract().summary())  # type: ignore[no-untyped-call]
    return "".join(frames.format()).strip()


def _copy_value(value: Any, storages: dict[int, torch.UntypedStorage]) -> Any:
    """Return a value of a node in other memory, which what shared memory shares again. storages: by old ones."""
    if isinstance(value, FakeTensor):
        old = value.untyped_storage()
        storage = storages.get(old._cdata)
        if storage is None:
            storage = storages[old._cdata] = torch.UntypedStorage(old.nbytes(), device="meta")  # type: ignore[no-untyped-call]
        empty = torch.empty(0, dtype=value.dtype, device="meta")
        empty.set_(storage, value.storage_offset(), value.shape, value.stride())
        return FakeTensor(value.fake_mode, empty, value.device)
    if isinstance(value, Tensor):
        raise CannotRepeat("a value that is no fake tensor")
    if isinstance(value, tuple | list):
        return type(value)(_copy_value(one, storages) for one in value)
    return value
