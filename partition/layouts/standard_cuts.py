"""Whole operators in contiguous stages, by dynamic programming over the operators in order.

The largest stage is least: its compute, plus (with `traffic`) the bytes that enter it, at the speed of its machines and
network (PipeDream, Narayanan et al., SOSP 2019, section 3.1, without replication).
"""

import itertools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ..ir.box import volume
from ..cluster.machines import Cluster
from ..ir.graph import Graph


def stage_of(graph: Graph, cluster: Cluster, speeds: Sequence[float], *, traffic: bool = True) -> list[int] | None:
    """The stage of every operator, in order; None where there are fewer operators than stages.

    speeds: FLOP/s of each stage's machines together.
    """
    ops, count = graph.ops, len(speeds)
    if len(ops) < count:
        return None
    enters = _entering_seconds(graph, cluster) if traffic else np.zeros(len(ops) + 1)
    work = np.array([0.0, *itertools.accumulate(op.flops for op in ops)])
    best = np.full(len(ops) + 1, np.inf)
    best[0] = 0.0
    begin = np.zeros((count, len(ops) + 1), dtype=np.int64)
    for stage, speed in enumerate(speeds):
        least = np.full(len(ops) + 1, np.inf)
        for stop in range(stage + 1, len(ops) + 1):
            load = 3 * (work[stop] - work[stage:stop]) / speed + 2 * enters[stage:stop]
            cost = np.maximum(best[stage:stop], load)
            at = int(cost.argmin())
            least[stop], begin[stage, stop] = cost[at], stage + at
        best = least
    edges = [len(ops)]
    for stage in reversed(range(count)):
        edges.append(int(begin[stage, edges[-1]]))
    edges.reverse()
    return [stage for stage, (a, b) in enumerate(itertools.pairwise(edges)) for _ in range(a, b)]


def _entering_seconds(graph: Graph, cluster: Cluster) -> npt.NDArray[np.float64]:
    """Seconds to move the values that cross in front of each operator."""
    position = {op.name: i for i, op in enumerate(graph.ops)}
    last_use: dict[str, int] = {}
    for i, op in enumerate(graph.ops):
        for name in op.inputs:
            last_use[name] = i
    crossing = np.zeros(len(graph.ops) + 1)
    for name, maker in graph.producers.items():
        info, made = graph.tensors[name], position[maker]
        crossing[made + 1 : last_use.get(name, made) + 1] += volume(info.box) * info.element_bytes / cluster.bandwidth
    return np.where(crossing > 0, crossing + cluster.latency_s, 0.0)
