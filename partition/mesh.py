"""`Mesh`: machines in a grid of one or two dimensions, and `Layout`: which loop of an operator each dimension cuts.

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

from .box import Box
from .graph import LoopInfo

Ints = npt.NDArray[np.int64]

Layout = tuple[tuple[int, int], ...]  # (dimension of the mesh, loop that it cuts), outermost first; () is one machine


@dataclass(frozen=True)
class Mesh:
    """shape: machines along each dimension; machines: their numbers, row by row; speeds: FLOP/s of each.

    total: machines of the cluster, in the mesh or not.
    """

    shape: tuple[int, ...]
    machines: tuple[int, ...]
    speeds: tuple[float, ...]
    total: int

    @cached_property
    def digits(self) -> Ints:
        """Where each machine of the mesh stands: [machines, dimensions]."""
        return np.array(list(itertools.product(*(range(n) for n in self.shape))), dtype=np.int64)

    @cached_property
    def _speed(self) -> npt.NDArray[np.float64]:
        return np.array(self.speeds, dtype=np.float64).reshape(self.shape)

    def boxes(self, sizes: Sequence[int], layout: Layout) -> Ints:
        """The interval of every loop on every machine of the cluster: [total, loops, 2]; empty where it has no part."""
        out = np.zeros((self.total, len(sizes), 2), dtype=np.int64)
        mine = np.zeros((len(self.machines), len(sizes), 2), dtype=np.int64)
        mine[:, :, 1] = sizes
        if not layout:
            out[self.machines[0]] = mine[0]
            return out
        for at, (dimension, loop) in enumerate(layout):
            before = tuple(d for d, _ in layout[:at])
            least = math.prod(self.shape[d] for d, other in layout[at + 1 :] if other == loop)
            mine[:, loop] = self._cut(mine[:, loop], dimension, before, least)
        out[list(self.machines)] = mine
        return out

    def _cut(self, intervals: Ints, dimension: int, before: tuple[int, ...], least: int) -> Ints:
        """Each machine's part of its interval, by its place along `dimension`; speeds count within its place so far.

        least: into how many parts each part is cut afterwards, which it must be long enough for.
        """
        rest = tuple(d for d in range(len(self.shape)) if d not in (*before, dimension))
        up_to = np.cumsum(self._speed.sum(axis=rest, keepdims=True), axis=dimension)
        shares = np.insert(up_to / up_to.take([-1], axis=dimension), 0, 0.0, axis=dimension)
        length, parts = intervals[:, 1] - intervals[:, 0], self.shape[dimension]
        edges = []
        for side in (0, 1):
            share = np.broadcast_to(shares.take(range(side, parts + side), axis=dimension), self.shape).reshape(-1)
            number = self.digits[:, dimension] + side
            edge = np.floor(length * share + 1e-9).astype(np.int64)
            edges.append(intervals[:, 0] + np.clip(edge, number * least, length - (parts - number) * least))
        return np.stack(edges, axis=1)


def layouts(loops: Sequence[LoopInfo], shape: Sequence[int]) -> list[Layout]:
    """All ways to give each dimension of a mesh a loop that is long enough; one machine where there is none."""
    free = [i for i, loop in enumerate(loops) if loop.kind != "fixed" and loop.size > 1]
    found: list[Layout] = []
    for chosen in itertools.product(free, repeat=len(shape)):
        parts = dict.fromkeys(chosen, 1)
        for dimension, loop in enumerate(chosen):
            parts[loop] *= shape[dimension]
        if any(loops[loop].size < count for loop, count in parts.items()):
            continue
        pairs = list(enumerate(chosen))
        found.append(tuple(pairs))
        if len(set(chosen)) == 1 and len(chosen) > 1:  # the other dimension outermost is another order of the machines
            found.append(tuple(reversed(pairs)))
    return found or [()]


def scattered(
    mesh: Mesh, sizes: Sequence[int], layout: Layout, *, parallel: Sequence[int], summed: Sequence[int]
) -> Layout:
    """The layout of a sum's owners: dimensions of the mesh that cut `summed` loops cut `parallel` ones instead.

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


def as_boxes(intervals: Ints) -> list[tuple[Box, int]]:
    """Boxes and their machines, of [machines, axes, 2] as `Mesh.boxes` gives; machines without a part are left out."""
    rows = intervals.tolist()
    return [
        (tuple((a, b) for a, b in row), machine)
        for machine, row in enumerate(rows)
        if row and all(a < b for a, b in row)
    ]
