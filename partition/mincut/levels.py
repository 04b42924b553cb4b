"""Level groups: operators that run at about the same time, whose work is to be divided evenly by itself.

With only the total balanced, every partitioner rediscovers a pipeline, and run lock-step that is no faster than one
machine. So METIS gets one balance constraint a group (metis.py).
"""

import math
from collections import defaultdict
from collections.abc import Container, Mapping

from .cut_axes import HEAVY, is_view
from ..cluster.cost_model import EMBEDDING, class_of
from ..ir.graph import Graph
from .metis import LEVELS_MAX

LIGHT_SHARE = 1e-3  # of all FLOPs; what is below makes no level of its own


def level_groups(graph: Graph, limit: int = LEVELS_MAX) -> dict[str, int]:
    """The group of every operator, from 0; -1 for those that only move data.

    A level is a topological depth, counted over operators with real work; neighbouring levels are merged to groups of
    similar work. Within a group of several levels a pipeline is even, so the more groups the better. Light operators,
    if there are any, are a group of their own, the last. At most `limit` groups.
    """
    heavy = heavy_ops(graph)
    depth = _depths(graph, heavy)
    light = [op.name for op in graph.ops if op.name not in heavy and not is_view(op) and op.flops > 0]
    work: dict[int, float] = defaultdict(float)
    for op in graph.ops:
        if op.name in heavy:
            work[depth[op.name]] += op.flops
    group = _merged(work, max(1, limit - 1 if light else limit))
    last = min(max(group.values(), default=-1) + 1, limit - 1)
    out = dict.fromkeys((op.name for op in graph.ops), -1) | dict.fromkeys(light, last)
    return out | {name: group[depth[name]] for name in heavy}


def heavy_ops(graph: Graph) -> set[str]:
    """Operators with real work: products, convolutions and attention that are not negligible in this graph."""
    least = LIGHT_SHARE * math.fsum(op.flops for op in graph.ops)
    return {op.name for op in graph.ops if class_of(op) in HEAVY - {EMBEDDING} and op.flops > least}


def _depths(graph: Graph, heavy: Container[str]) -> dict[str, int]:
    """Operators with real work on the longest way to each operator, itself included."""
    out: dict[str, int] = {}
    producers = graph.producers
    for op in graph.ops:
        before = max((out[producers[name]] for name in op.inputs if name in producers), default=0)
        out[op.name] = before + (op.name in heavy)
    return out


def _merged(work: Mapping[int, float], limit: int) -> dict[int, int]:
    """Levels in order, to at most `limit` groups: each goes where the middle of its work falls."""
    if len(work) <= limit:
        return {level: i for i, level in enumerate(sorted(work))}
    total, before = math.fsum(work.values()), 0.0
    place: dict[int, int] = {}
    for level in sorted(work):
        place[level] = min(limit - 1, int(limit * (before + work[level] / 2) / total))
        before += work[level]
    number = {old: new for new, old in enumerate(sorted(set(place.values())))}
    return {level: number[old] for level, old in place.items()}
