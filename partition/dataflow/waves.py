"""Waves: by how many products an operator comes after the inputs, in groups; later waves are segments of their own.

Where the layers of a recurrent net are on several machines, a layer can start on the first time steps while the one
below computes later ones. For that a machine must send the first steps before it computes the later ones: a segment
sends when it ends, so it ends with a wave.
"""

from ..cluster.cost_model import class_of
from ..ir.graph import Graph
from ..operators.sharding.cost_class import CONTRACTION


def find_depths(graph: Graph) -> dict[str, int]:
    """The largest number of products on a path from the inputs up to and with each operator."""
    depth: dict[str, int] = {}
    for op in graph.ops:
        before = max((depth[graph.producers[name]] for name in op.inputs if name in graph.producers), default=0)
        depth[op.name] = before + (class_of(op) == CONTRACTION)
    return depth


def find_waves(graph: Graph, length: int) -> dict[str, int]:
    """The wave of each operator, `length` products deep; all are one wave where it is 0.

    They are counted from the end: the last product, the largest one of a language model, is in no segment whose end
    another machine waits for.
    """
    if not length:
        return dict.fromkeys((op.name for op in graph.ops), 0)
    depths = find_depths(graph)
    deepest = max(depths.values(), default=0)
    last = -(-deepest // length)
    return {name: last - -(-(deepest - depth) // length) for name, depth in depths.items()}
