"""`DeviceMesh`: machines in a grid of one or two dimensions, and `Layout`: which loop of an operator each dimension
cuts.

A box a machine: the machines of a row share an interval of one loop, those of a column one of another, as in GSPMD
(Xu et al., 2021, section 3). Both dimensions on the image's rows and columns give tiles; heads and hidden units give
Megatron's pairs; one on units that are made and one on units that are summed over give tiles of a weight matrix.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from ..ir.box import Box
from ..ir.graph import LoopInfo
from .proportional_split import split_by_speed

Ints = npt.NDArray[np.int64]

Layout = tuple[tuple[int, int], ...]  # (dimension of the mesh, loop that it cuts), outermost first; () is one machine


@dataclass(frozen=True)
class DeviceMesh:
    """shape: machines along each dimension; machines: their numbers, row by row; speeds: FLOP/s of each.

    total: machines of the cluster, in the mesh or not.
    """

    shape: tuple[int, ...]
    machines: tuple[int, ...]
    speeds: tuple[float, ...]
    total: int

    @cached_property
    def digits(self) -> Ints:
        """Coordinates of each machine of the mesh: [machines, dimensions]."""
        return np.array(list(itertools.product(*(range(n) for n in self.shape))), dtype=np.int64)

    @cached_property
    def _known(self) -> dict[tuple[tuple[int, ...], Layout], Ints]:
        """Boxes that were computed; many operators of a model have loops of the same sizes."""
        return {}

    def boxes(self, sizes: Sequence[int], layout: Layout) -> Ints:
        """The interval of every loop on every machine of the cluster: [total, loops, 2]; empty where it has no part."""
        key = tuple(sizes), layout
        if key not in self._known:
            self._known[key] = self._boxes(*key)
        return self._known[key]

    def _boxes(self, sizes: tuple[int, ...], layout: Layout) -> Ints:
        out = np.zeros((self.total, len(sizes), 2), dtype=np.int64)
        intervals = np.zeros((len(self.machines), len(sizes), 2), dtype=np.int64)
        intervals[:, :, 1] = sizes
        if not layout:
            out[self.machines[0]] = intervals[0]
            return out
        dimensions: dict[int, list[int]] = {}  # of the mesh, that cut each loop; the outermost loop first
        for dimension, loop in layout:
            dimensions.setdefault(loop, []).append(dimension)
        grid = np.arange(len(self.machines), dtype=np.int64).reshape(self.shape)
        grid = grid.transpose(list(itertools.chain(*dimensions.values())))
        grid = grid.reshape([math.prod(self.shape[d] for d in cut_by) for cut_by in dimensions.values()])
        self._cut(intervals, grid, {loop: sizes[loop] for loop in dimensions})
        out[list(self.machines)] = intervals
        return out

    def _cut(self, intervals: Ints, grid: Ints, loops: Mapping[int, int]) -> float:
        """Write the parts of `loops` into `intervals`; return the speed that the slowest part allows.

        loops: the size of each, outermost first, one for each dimension of `grid`, which has positions of machines.
        The inner loops are cut first: their rounding says how fast the machines of a row are together, by which the
        outer loop is cut.
        """
        if not loops:
            return self.speeds[int(grid)]
        (loop, size), *inner = loops.items()
        speeds = [self._cut(intervals, row, dict(inner)) for row in grid]  # in points of the outer loop
        parts = list(itertools.pairwise(split_by_speed(size, speeds)))
        for row, part in zip(grid, parts, strict=True):
            intervals[row, loop] = part
        return min(speed / (stop - start) for speed, (start, stop) in zip(speeds, parts, strict=True))


def enumerate_layouts(loops: Sequence[LoopInfo], shape: Sequence[int]) -> list[Layout]:
    """Enumerate all ways to give each dimension of a mesh a loop that is long enough.

    One machine where there is none.
    """
    free = [i for i, loop in enumerate(loops) if loop.kind != "fixed" and loop.size > 1]
    layouts: list[Layout] = []
    for chosen in itertools.product(free, repeat=len(shape)):
        parts = dict.fromkeys(chosen, 1)
        for dimension, loop in enumerate(chosen):
            parts[loop] *= shape[dimension]
        if any(loops[loop].size < count for loop, count in parts.items()):
            continue
        pairs = list(enumerate(chosen))
        layouts.append(tuple(pairs))
        if len(set(chosen)) == 1 and len(chosen) > 1:  # the other dimension outermost is another order of the machines
            layouts.append(tuple(reversed(pairs)))
    return layouts or [()]


def reduce_scatter_layout(
    mesh: DeviceMesh, sizes: Sequence[int], layout: Layout, *, parallel: Sequence[int], summed: Sequence[int]
) -> Layout:
    """The layout of the owners of partial sums: mesh dimensions that cut `summed` loops cut `parallel` ones instead.

    sizes: of all loops. Parts of one region then end on the machines that made them, a share each (reduce-scatter).
    """
    kept = tuple(pair for pair in layout if pair[1] not in summed)
    parts = dict.fromkeys(parallel, 1)
    for dimension, loop in kept:
        parts[loop] *= mesh.shape[dimension]
    for dimension, loop in layout:
        if loop not in summed:
            continue
        room = {i: sizes[i] // parts[i] for i in parallel if sizes[i] // parts[i] >= mesh.shape[dimension]}
        if not room:
            return ()
        widest = max(room, key=lambda i: (room[i], -i))
        parts[widest] *= mesh.shape[dimension]
        kept = (*kept, (dimension, widest))
    return kept


def placed_boxes(intervals: Ints) -> list[tuple[Box, int]]:
    """Boxes and their machines, of [machines, axes, 2] as `DeviceMesh.boxes` gives.

    Machines without a part are left out.
    """
    rows = intervals.tolist()
    return [
        (tuple((a, b) for a, b in row), machine)
        for machine, row in enumerate(rows)
        if row and all(a < b for a, b in row)
    ]
