"""A recurrent operator in a trace, and the graph of its unrolled form, which can stand in its place."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils._pytree import tree_leaves

from ..ir.arguments import bind_arguments
from ..ir.graph import Graph
from .unrolled_form import GATES, RecurrentCall, unroll, unroll_cell

aten = torch.ops.aten
LAYERS = {
    "aten.lstm.input": "lstm",
    "aten.gru.input": "gru",
    "aten.rnn_tanh.input": "rnn_tanh",
    "aten.rnn_relu.input": "rnn_relu",
}
CELLS = {
    "aten.lstm_cell.default": "lstm",
    "aten.gru_cell.default": "gru",
    "aten.rnn_tanh_cell.default": "rnn_tanh",
    "aten.rnn_relu_cell.default": "rnn_relu",
}
MAX_CELLS = 400  # cells of a model that are unrolled, about 2,000 operators; a plan of more takes minutes


def is_recurrent(target: str) -> bool:
    """Whether an operator has an unrolled form."""
    return target in LAYERS or target in CELLS


def has_recurrent(graph: Graph) -> bool:
    """Whether a graph has recurrent operators that are whole."""
    return any(is_recurrent(op.target) for op in graph.ops)


class Unroller:
    """Makes graphs of the unrolled form of recurrent operators, as long as they are not too many.

    tell: gets a note where one stays whole.
    """

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell, self._cells = tell, 0

    def unroll(self, node: fx.Node) -> fx.Graph | None:
        """Return the graph of an operator's unrolled form; None where it has none, or too many time steps.

        The graph's placeholders are the operator's input nodes in the order of `inputs_of`, its results the operator's.
        """
        target = str(node.target)
        if not is_recurrent(target):
            return None
        bound = bind_arguments(node.target, node.args, node.kwargs)
        cells = 1 if target in CELLS else _describe(bound, target, node).cells
        if not cells or self._cells + cells > MAX_CELLS:
            self._tell(
                f"{node.target} with {cells} time steps in all layers and directions stays whole: at most {MAX_CELLS} "
                "of a model become operators of their own"
            )
            return None
        self._cells += cells
        return _trace(node, _unrolled_function(bound, target, node))


def inputs_of(node: fx.Node) -> list[fx.Node]:
    """Return the tensors that a recurrent operator is called with, in order, each once."""
    return list(dict.fromkeys(leaf for leaf in tree_leaves((node.args, node.kwargs)) if isinstance(leaf, fx.Node)))


Function = Callable[[Mapping[fx.Node, Any]], Sequence[Any]]  # from the values of nodes to the results


def _unrolled_function(bound: Mapping[str, Any], target: str, node: fx.Node) -> Function:
    if target in LAYERS:
        net = _describe(bound, target, node)
        states = bound["hx"] if net.kind == "lstm" else [bound["hx"]]
        return lambda value: unroll(
            net, value[bound["input"]], [value[n] for n in states], [value[n] for n in bound["params"]]
        )
    kind = CELLS[target]
    states = bound["hx"] if kind == "lstm" else [bound["hx"]]
    weights = [bound[name] for name in ("w_ih", "w_hh", "b_ih", "b_hh")]
    hidden = _value(bound["w_hh"]).shape[1]
    return lambda value: unroll_cell(
        kind, value[bound["input"]], [value[n] for n in states], [n and value[n] for n in weights], hidden=hidden
    )


def _describe(bound: Mapping[str, Any], target: str, node: fx.Node) -> RecurrentCall:
    kind = LAYERS[target]
    x, layers, directions = _value(bound["input"]), bound["num_layers"], 1 + bound["bidirectional"]
    time, batch = (1, 0) if bound["batch_first"] else (0, 1)
    w_hh = _value(bound["params"][1])
    return RecurrentCall(
        kind,
        steps=x.shape[time],
        batch=x.shape[batch],
        hidden=w_hh.shape[0] // GATES[kind],
        features=w_hh.shape[1],
        layers=layers,
        directions=directions,
        biases=bound["has_biases"],
        weights=len(bound["params"]) // (layers * directions),
        dropout=bound["dropout"] if bound["train"] else 0.0,
        batch_first=bound["batch_first"],
    )


def _value(node: fx.Node) -> Tensor:
    value = node.meta["val"]
    assert isinstance(value, Tensor)
    return value


def _trace(node: fx.Node, function: Function) -> fx.Graph:
    """Trace a function on proxies of a node's inputs, and give each node its value without data and its place."""
    graph = fx.Graph()
    tracer = fx.proxy.GraphAppendingTracer(graph)
    outer = inputs_of(node)
    proxies = {n: fx.Proxy(graph.placeholder(f"{node.name}_{n.name}"), tracer) for n in outer}
    results = function(proxies)
    graph.output(tuple(proxy.node for proxy in results))
    placed = {key: node.meta[key] for key in ("stack_trace", "nn_module_stack") if key in node.meta}
    values: dict[fx.Node, Any] = {}
    placeholders = dict(zip(graph.find_nodes(op="placeholder"), outer, strict=True))
    with torch.no_grad():
        for inner in graph.nodes:
            if inner.op == "placeholder":
                values[inner] = _on_meta(_value(placeholders[inner]))
            elif inner.op == "call_function":
                args, kwargs = fx.node.map_arg((inner.args, inner.kwargs), values.__getitem__)
                values[inner] = inner.target(*args, **kwargs)
                inner._rename(f"{node.name}_{inner.name}")
            inner.meta = {**placed, "val": values.get(inner)}
    return graph


def _on_meta(tensor: Tensor) -> Tensor:
    """Return a tensor without values; plain ones are followed faster than those of a trace."""
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
