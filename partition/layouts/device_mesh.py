"""`DeviceMesh`: machines in a grid of one or two dimensions, and `Layout`: which loop of an operator each dimension
cuts.

A box a machine: the machines of a row share an interval of one loop, those of a column one of another, as in GSPMD
(Xu et al., 2021, section 3). Both dimensions on the image's rows and columns give tiles; heads and hidden units give
Megatron's pairs; one on units that are made and one on units that are summed over give tiles of a weight matrix.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from ..ir.box import Box
from ..ir.graph import LoopInfo

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

    @cached_property
    def _shares(self) -> dict[tuple[int, tuple[int, ...]], npt.NDArray[np.float64]]:
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
        for at, (dimension, loop) in enumerate(layout):
            before = tuple(d for d, _ in layout[:at])
            min_length = math.prod(self.shape[d] for d, other in layout[at + 1 :] if other == loop)
            intervals[:, loop] = self._cut(intervals[:, loop], dimension, before, min_length)
        out[list(self.machines)] = intervals
        return out

    def _cut(self, intervals: Ints, dimension: int, before: tuple[int, ...], min_length: int) -> Ints:
        """Each machine's part of its interval, by its place along `dimension`; no part is empty, however slow.

        min_length: into how many parts each part is cut afterwards.
        """
        if (dimension, before) not in self._shares:
            self._shares[dimension, before] = self._share(dimension, before)
        parts = self.shape[dimension]
        start, stop = np.moveaxis(intervals.reshape(*self.shape, 2).take([0], axis=dimension), -1, 0)
        min_edges = min_length * np.arange(parts + 1).reshape(
            [-1 if d == dimension else 1 for d in range(len(self.shape))]
        )
        edges = np.floor((stop - start) * self._shares[dimension, before] + 1e-9).astype(np.int64)
        spare = np.clip(edges - min_edges, 0, stop - start - parts * min_length)
        edges = start + min_edges + np.maximum.accumulate(spare, axis=dimension)
        sides = [edges.take(range(side, parts + side), axis=dimension) for side in (0, 1)]
        return np.stack([np.broadcast_to(side, self.shape).reshape(-1) for side in sides], axis=1)

    def _share(self, dimension: int, before: tuple[int, ...]) -> npt.NDArray[np.float64]:
        """Where the parts along `dimension` begin, of 1, and where the last one stops; speeds count within `before`."""
        rest = tuple(d for d in range(len(self.shape)) if d not in (*before, dimension))
        speed = np.array(self.speeds, dtype=np.float64).reshape(self.shape).sum(axis=rest, keepdims=True)
        up_to = np.insert(speed, 0, 0.0, axis=dimension).cumsum(axis=dimension)
        return np.asarray(up_to / up_to.take([-1], axis=dimension))


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
