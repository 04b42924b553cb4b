"""The state of torch's generator as a value of the graph: a leaf module or an island that draws hands it on.

How much these draw may depend on data, so that only the machine that has run them knows the state.
"""

import msgspec

from ..ir.graph import Graph, Operand
from ..ir.random_ops import random_tensor_name
from .island import ISLAND
from .leaf_module import LEAF_MODULE

STATE = "@state"  # the operand: the state after the operator of these that drew last
DRAWS_AT_WILL = (LEAF_MODULE, ISLAND)


def thread_generator_state(graph: Graph) -> Graph:
    """Return the graph in which every operator drawing after one of `DRAWS_AT_WILL` reads the state that it leaves."""
    last, ops = "", []
    for op in graph.ops:
        is_random = random_tensor_name(op.name) in graph.tensors
        if is_random and last:
            read = Operand(STATE, last, (None,), once=False)
            nest = msgspec.structs.replace(op.nest, operands=(*op.nest.operands, read))
            op = msgspec.structs.replace(op, nest=nest)
        if is_random and op.target in DRAWS_AT_WILL:
            last = op.outputs[-1]
        ops.append(op)
    return msgspec.structs.replace(graph, ops=tuple(ops))


def find_generator_origins(graph: Graph) -> dict[str, str]:
    """Return for every random tensor the state from which its run of draws begins: "" for that of the step's seed."""
    origins = {}
    for op in graph.ops:
        if random_tensor_name(op.name) in graph.tensors:
            states = [operand.tensor for operand in op.nest.operands if operand.argument == STATE]
            origins[random_tensor_name(op.name)] = states[0] if states else ""
    return origins
