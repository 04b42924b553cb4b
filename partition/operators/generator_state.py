"""The state of torch's generator as a value of the graph: a block by hand that draws hands it on to what draws next.

How much a block draws may depend on data, so that nobody can tell the state but who has run it.
"""

import msgspec

from ..ir.graph import Graph, Operand
from .leaf_module import BLOCK
from ..ir.random_ops import noise_name

STATE = "@state"  # the operand: the state after the block that drew last


def hand_on(graph: Graph) -> Graph:
    """The graph in which every operator that draws after a block reads the state that the block leaves."""
    last, ops = "", []
    for op in graph.ops:
        draws = noise_name(op.name) in graph.tensors
        if draws and last:
            read = Operand(STATE, last, (None,), once=False)
            nest = msgspec.structs.replace(op.nest, operands=(*op.nest.operands, read))
            op = msgspec.structs.replace(op, nest=nest)
        if draws and op.target == BLOCK:
            last = op.outputs[-1]
        ops.append(op)
    return msgspec.structs.replace(graph, ops=tuple(ops))


def origins(graph: Graph) -> dict[str, str]:
    """For every draw, by the name of its noise, the state from which its run of draws begins: "" for the seed's."""
    out = {}
    for op in graph.ops:
        if noise_name(op.name) in graph.tensors:
            states = [operand.tensor for operand in op.nest.operands if operand.argument == STATE]
            out[noise_name(op.name)] = states[0] if states else ""
    return out
