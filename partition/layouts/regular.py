"""Regular cuts, as one would draw them: slices of every layer, and image rows and columns in a grid of tiles."""

from collections.abc import Sequence

from ..mincut.block_graph import spatial_axes, unit_axes
from ..dataflow.cut import Placed
from ..ir.graph import Graph, Op
from .device_mesh import Layout, Mesh, as_boxes

Boxes = dict[str, Sequence[Placed]]


def slices(graph: Graph, line: Mesh) -> Boxes | None:
    """Every operator cut along its widest loop of units, else of any axis but the batch; machines in a line."""
    units, batch = unit_axes(graph), frozenset(graph.batch_axes)
    out: Boxes = {op.name: _sliced(op, line, units, batch) for op in graph.ops}
    return out if any(len(pieces) > 1 for pieces in out.values()) else None


def _sliced(op: Op, line: Mesh, units: frozenset[int], batch: frozenset[int]) -> list[Placed]:
    loops = [(i, loop) for i, loop in enumerate(op.nest.loops) if loop.kind == "parallel" and loop.axis not in batch]
    hidden = [(i, loop) for i, loop in loops if loop.axis in units] or loops
    wide = [(i, loop) for i, loop in hidden if loop.size >= line.shape[0]]
    if not wide:
        return [(op.nest.box, line.machines[0])]
    at = max(wide, key=lambda item: (item[1].size, -item[0]))[0]
    return laid(op, line, ((0, at),))


def tiles(graph: Graph, grid: Mesh) -> Boxes | None:
    """Image rows and columns along a grid of machines, also where they are summed over; what has none stays whole."""
    space = spatial_axes(graph)
    out: Boxes = {}
    for op in graph.ops:
        at = [i for i, loop in enumerate(op.nest.loops) if loop.axis in space and loop.kind != "fixed"][:2]
        wide = len(at) == len(grid.shape) and all(
            op.nest.loops[i].size >= n for i, n in zip(at, grid.shape, strict=True)
        )
        out[op.name] = laid(op, grid, tuple(enumerate(at)) if wide else ())
    return out if any(len(pieces) > 1 for pieces in out.values()) else None


def laid(op: Op, mesh: Mesh, layout: Layout) -> list[Placed]:
    """The boxes of an operator in a layout."""
    if not layout:
        return [(op.nest.box, mesh.machines[0])]
    return as_boxes(mesh.boxes([loop.size for loop in op.nest.loops], layout))
