"""Regular cuts, which other systems make as well: stages, slices of layers, parts of the batch, tiles of images."""

import itertools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ..cluster.machines import Cluster
from ..dataflow.cut import PlacedBox
from ..ir.box import volume
from ..ir.graph import Graph, Op
from ..mincut.cut_axes import spatial_axes, unit_axes
from .device_mesh import DeviceMesh, Layout, placed_boxes


def contiguous_stages(
    graph: Graph, cluster: Cluster, speeds: Sequence[float], *, traffic: bool = True
) -> list[int] | None:
    """Assign operators to contiguous stages so that the slowest stage is as fast as possible.

    Dynamic programming over the operators in order (PipeDream, Narayanan et al., SOSP 2019, section 3.1, without
    replication): best[s][j], the slowest of s stages for the first j operators, is the minimum over i of
    max(best[s - 1][i], time of operators i..j on stage s). With `traffic` that time includes the bytes that enter.

    speeds: FLOP/s of all machines of each stage. Returns the stage of every operator, or None where there are fewer
    operators than stages.
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
        slowest = np.full(len(ops) + 1, np.inf)
        for stop in range(stage + 1, len(ops) + 1):
            load = 3 * (work[stop] - work[stage:stop]) / speed + 2 * enters[stage:stop]
            cost = np.maximum(best[stage:stop], load)
            at = int(cost.argmin())
            slowest[stop], begin[stage, stop] = cost[at], stage + at
        best = slowest
    edges = [len(ops)]
    for stage in reversed(range(count)):
        edges.append(int(begin[stage, edges[-1]]))
    edges.reverse()
    return [stage for stage, (a, b) in enumerate(itertools.pairwise(edges)) for _ in range(a, b)]


def _entering_seconds(graph: Graph, cluster: Cluster) -> npt.NDArray[np.float64]:
    """Seconds to send the values that are live in front of each operator."""
    position = {op.name: i for i, op in enumerate(graph.ops)}
    last_use: dict[str, int] = {}
    for i, op in enumerate(graph.ops):
        for name in op.inputs:
            last_use[name] = i
    crossing = np.zeros(len(graph.ops) + 1)
    for name, maker in graph.producers.items():
        info, start = graph.tensors[name], position[maker]
        crossing[start + 1 : last_use.get(name, start) + 1] += (
            volume(info.box) * info.travelling_bytes / cluster.bandwidth
        )
    return np.where(crossing > 0, crossing + cluster.latency_s, 0.0)


Boxes = dict[str, Sequence[PlacedBox]]


def slice_layers(graph: Graph, line: DeviceMesh) -> Boxes | None:
    """Cut every operator along its widest loop of hidden units that it makes, else of those that it sums over.

    An operator that has none is cut along any axis but the batch. line: a mesh of one dimension. None where no operator
    is wide enough.
    """
    units, batch = unit_axes(graph), frozenset(graph.batch_axes)
    out: Boxes = {op.name: _slice_operator(op, line, units, batch) for op in graph.ops}
    return out if any(len(pieces) > 1 for pieces in out.values()) else None


def _slice_operator(op: Op, line: DeviceMesh, units: frozenset[int], batch: frozenset[int]) -> list[PlacedBox]:
    loops = [(i, loop) for i, loop in enumerate(op.nest.loops) if loop.kind != "fixed" and loop.axis not in batch]
    made = [(i, loop) for i, loop in loops if loop.kind == "parallel"]
    hidden = [(i, loop) for i, loop in made if loop.axis in units] or [(i, x) for i, x in loops if x.axis in units]
    wide = [(i, loop) for i, loop in hidden or made if loop.size >= line.shape[0]]
    if not wide:
        return [(op.nest.box, line.machines[0])]
    at = max(wide, key=lambda item: (item[1].size, -item[0]))[0]
    return boxes_of_layout(op, line, ((0, at),))


def divide_batch(graph: Graph, line: DeviceMesh) -> Boxes | None:
    """Cut every operator along the batch, where it has one, first where it makes output; others stay whole.

    line: a mesh of one dimension. None where no operator has as many samples as there are machines.
    """
    out: Boxes = {op.name: _divide_operator(op, line, graph.batch_axes) for op in graph.ops}
    return out if any(len(pieces) > 1 for pieces in out.values()) else None


def _divide_operator(op: Op, line: DeviceMesh, batch: Sequence[int]) -> list[PlacedBox]:
    loops = [
        (i, loop)
        for i, loop in enumerate(op.nest.loops)
        if loop.axis in batch and loop.kind != "fixed" and loop.size >= line.shape[0]
    ]
    at = min(loops, key=lambda item: (item[1].kind != "parallel", batch.index(item[1].axis)), default=None)
    return boxes_of_layout(op, line, () if at is None else ((0, at[0]),))


def tile_images(graph: Graph, grid: DeviceMesh) -> Boxes | None:
    """Cut image rows and columns along a mesh, also where they are summed over; other operators stay whole."""
    space = spatial_axes(graph)
    out: Boxes = {}
    for op in graph.ops:
        at = [i for i, loop in enumerate(op.nest.loops) if loop.axis in space and loop.kind != "fixed"][:2]
        wide = len(at) == len(grid.shape) and all(
            op.nest.loops[i].size >= n for i, n in zip(at, grid.shape, strict=True)
        )
        out[op.name] = boxes_of_layout(op, grid, tuple(enumerate(at)) if wide else ())
    return out if any(len(pieces) > 1 for pieces in out.values()) else None


def boxes_of_layout(op: Op, mesh: DeviceMesh, layout: Layout) -> list[PlacedBox]:
    """The boxes of an operator in a layout of a mesh."""
    if not layout:
        return [(op.nest.box, mesh.machines[0])]
    return placed_boxes(mesh.boxes([loop.size for loop in op.nest.loops], layout))
