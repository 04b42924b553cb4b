"""The portfolio: ways to cut a graph over k machines, each a list of placed boxes that the simulator then judges.

METIS on block graphs of several sets of cut axes, slices of every layer, a contiguous split by dynamic programming,
grid tiles.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from .block import CutAxes, block_graph, blocks, paired_axes, placed, spatial_axes, unit_axes
from .box import Box, split_evenly, volume
from .cluster import Cluster
from .cut import Cut, Placed, fused, together
from .errors import Infeasible
from .graph import Graph, Op
from .metis import metis

BLOCKS_MAX = 20_000  # a plan of more blocks takes minutes; coarser sets of cut axes then have to do


@dataclass(frozen=True)
class Candidate:
    """A named cut over all machines of the cluster."""

    name: str
    cut: Cut


def candidates(graph: Graph, cluster: Cluster, *, seed: int) -> Iterator[Candidate]:
    """All candidates in a fixed order; those that cannot use every machine are left out."""
    count = len(cluster)
    makers = [
        ("slices", slices(graph, count)),
        ("stages", stages(graph, cluster)),
        ("even stages", stages(graph, cluster, traffic=False)),
        ("tiles", tiles(graph, count)),
    ]
    for name, boxes in makers:
        if boxes is not None:
            yield from _whole_cluster(graph, name, count, boxes)
    for axes in cut_axes(graph, count):
        yield from _by_metis(graph, cluster, axes, seed)


def _whole_cluster(graph: Graph, name: str, count: int, boxes: Mapping[str, Sequence[Placed]]) -> Iterator[Candidate]:
    joined = together(graph, boxes)
    if len({machine for pieces in joined.values() for _, machine in pieces}) == count:
        yield Candidate(name, Cut(count, fused(count, joined)))


def _by_metis(graph: Graph, cluster: Cluster, axes: CutAxes, seed: int) -> Iterator[Candidate]:
    vertices = blocks(graph, axes)
    if not len(cluster) <= len(vertices) <= BLOCKS_MAX:
        return
    total = sum(machine.flops_per_s for machine in cluster.machines)
    shares = [machine.flops_per_s / total for machine in cluster.machines]
    machine_of = metis(block_graph(graph, vertices), len(cluster), seed=seed, shares=shares)
    yield from _whole_cluster(graph, f"metis {axes.name}", len(cluster), placed(vertices, machine_of))


def cut_axes(graph: Graph, count: int) -> list[CutAxes]:
    """The sets of axes to start METIS from: none gives a pipeline, units slices, pairs Megatron's, space tiles."""
    units, space, pairs = unit_axes(graph), spatial_axes(graph), paired_axes(graph)
    sets = [CutAxes("layers", frozenset(), 1)]
    for parts in (count, 4 * count):
        sets.append(CutAxes(f"units/{parts}", units, parts))
        sets.append(CutAxes(f"pairs/{parts}", pairs, parts, reductions=True))
    for parts in sorted({_side(count), 2 * _side(count)}):
        sets.append(CutAxes(f"space/{parts}", space, parts))
    sets.append(CutAxes(f"units+space/{_side(count)}", units | space, _side(count)))
    distinct: dict[tuple[frozenset[int], int, bool], CutAxes] = {}
    for axes in sets:
        distinct.setdefault((axes.axes, axes.parts if axes.axes else 1, axes.reductions), axes)
    return list(distinct.values())


def _side(count: int) -> int:
    """The side of the smallest square grid of at least `count` tiles."""
    return next(side for side in itertools.count(1) if side * side >= count)


def slices(graph: Graph, count: int) -> dict[str, list[Placed]] | None:
    """Slices of every layer: every operator cut along its widest loop of units, else of any axis but the batch."""
    units, batch = unit_axes(graph), frozenset(graph.batch_axes)
    return {op.name: _sliced(op, count, units, batch) for op in graph.ops}


def _sliced(op: Op, count: int, units: frozenset[int], batch: frozenset[int]) -> list[Placed]:
    loops = [(i, loop) for i, loop in enumerate(op.nest.loops) if loop.kind == "parallel" and loop.axis not in batch]
    preferred = [item for item in loops if item[1].axis in units] or loops
    if not preferred:
        return [(op.nest.box, 0)]
    at, loop = max(preferred, key=lambda item: (item[1].size, -item[0]))
    return [
        ((*op.nest.box[:at], interval, *op.nest.box[at + 1 :]), machine)
        for machine, interval in enumerate(split_evenly(loop.size, count))
    ]


def tiles(graph: Graph, count: int) -> dict[str, list[Placed]] | None:
    """Image rows and columns in a grid of `count` tiles; operators without an image go whole to one machine in turn."""
    space = spatial_axes(graph)
    rows, columns = _grid(count)
    if not space:
        return None
    out: dict[str, list[Placed]] = {}
    for op in graph.ops:
        at = [i for i, loop in enumerate(op.nest.loops) if loop.axis in space and loop.kind == "parallel"][:2]
        out[op.name] = _tiled(op.nest.box, at, rows, columns) if len(at) == 2 else [(op.nest.box, 0)]
    return out


def _grid(count: int) -> tuple[int, int]:
    rows = max(r for r in range(1, int(count**0.5) + 1) if count % r == 0)
    return rows, count // rows


def _tiled(box: Box, at: Sequence[int], rows: int, columns: int) -> list[Placed]:
    first, second = at
    pieces: list[Placed] = []
    for r, high in enumerate(split_evenly(box[first][1], rows)):
        for c, wide in enumerate(split_evenly(box[second][1], columns)):
            tile = [*box]
            tile[first], tile[second] = high, wide
            pieces.append((tuple(tile), r * columns + c))
    return pieces


def stages(graph: Graph, cluster: Cluster, *, traffic: bool = True) -> dict[str, list[Placed]] | None:
    """Whole operators in contiguous stages, by dynamic programming over the operators in order.

    Minimises the largest stage: its compute, plus (with `traffic`) the bytes that enter it, at the speed of its machine
    and link (PipeDream, section 3.1, without replication). None where there are fewer operators than machines.
    """
    ops, count = graph.ops, len(cluster)
    if len(ops) < count:
        return None
    enters = _entering_seconds(graph, cluster) if traffic else [0.0] * (len(ops) + 1)
    flops = [0.0, *itertools.accumulate(op.flops for op in ops)]
    best: list[list[float]] = [[float("inf")] * (len(ops) + 1) for _ in range(count + 1)]
    begin = [[0] * (len(ops) + 1) for _ in range(count + 1)]
    best[0][0] = 0.0
    for stage in range(1, count + 1):
        speed = cluster.machines[stage - 1].flops_per_s
        for stop in range(stage, len(ops) + 1):
            for start in range(stage - 1, stop):
                load = 3 * (flops[stop] - flops[start]) / speed + 2 * enters[start]
                cost = max(best[stage - 1][start], load)
                if cost < best[stage][stop]:
                    best[stage][stop], begin[stage][stop] = cost, start
    edges = [len(ops)]
    for stage in range(count, 0, -1):
        edges.append(begin[stage][edges[-1]])
    edges.reverse()
    machine_of = [stage for stage, (a, b) in enumerate(itertools.pairwise(edges)) for _ in range(a, b)]
    return {op.name: [(op.nest.box, machine)] for op, machine in zip(ops, machine_of, strict=True)}


def _entering_seconds(graph: Graph, cluster: Cluster) -> list[float]:
    """Seconds to move the values that cross in front of each operator."""
    position = {op.name: i for i, op in enumerate(graph.ops)}
    last_use: dict[str, int] = {}
    for i, op in enumerate(graph.ops):
        for name in op.inputs:
            last_use[name] = i
    crossing = [0.0] * (len(graph.ops) + 1)
    for name, maker in graph.producers.items():
        info = graph.tensors[name]
        for cut_at in range(position[maker] + 1, last_use.get(name, position[maker]) + 1):
            crossing[cut_at] += volume(info.box) * info.element_bytes / cluster.bandwidth
    return [seconds + cluster.latency_s if seconds else 0.0 for seconds in crossing]


def most_machines(graph: Graph) -> int:
    """An upper bound on the machines that a cut can use: the points of all loops that may be cut."""
    total = 0
    for op in graph.ops:
        points = 1
        for loop in op.nest.loops:
            points *= loop.size if loop.kind == "parallel" else 1
        total += points
    return total


def require(graph: Graph, count: int) -> None:
    """Raise Infeasible where the model has fewer blocks than there are machines."""
    most = most_machines(graph)
    if count > most:
        raise Infeasible(
            "E402", f"{count} machines for a model that divides into {most} blocks at most", fix=f"--machines {most}"
        )
