"""`Adjacency`: the undirected weighted graph that METIS sees, in compressed rows.

Weights are float64: FLOPs of 1e18 and bytes of 1e15 are added up without overflow, and scaled to integers only where a
partitioner wants them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from ..ir.box import Ints

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Adjacency:
    """n vertices, e edges; each edge stands in the rows of both its ends.

    flops: [n]; starts: [n + 1], where the row of a vertex begins; ends: [2e], neighbours, in order in each row; bytes:
    [2e]. home: [n], the vertex that each is to stay with, itself if it is free.
    """

    flops: Floats
    starts: Ints
    ends: Ints
    bytes: Floats
    home: Ints

    def __len__(self) -> int:
        return len(self.flops)

    @cached_property
    def rows(self) -> Ints:
        """The vertex in whose row each entry stands: [2e]."""
        return np.repeat(np.arange(len(self), dtype=np.int64), np.diff(self.starts))

    def bytes_between(self, a: int, b: int) -> float:
        """The weight of an edge; 0 where there is none."""
        row = slice(self.starts[a], self.starts[a + 1])
        return float(self.bytes[row][self.ends[row] == b].sum())

    def cut_bytes(self, part_of: Ints | Sequence[int]) -> float:
        """Bytes of the edges whose ends are in different parts."""
        part = np.asarray(part_of)
        return float(self.bytes[part[self.rows] != part[self.ends]].sum()) / 2

    def contracted(self) -> tuple["Adjacency", Ints]:
        """The graph with every vertex merged into its home, and the number that each vertex has there: [n]."""
        kept, number = np.unique(self.home, return_inverse=True)
        number = number.reshape(-1).astype(np.int64)
        flops = np.bincount(number, weights=self.flops, minlength=len(kept)).astype(np.float64)
        once = self.rows < self.ends
        return adjacency(flops, number[self.rows[once]], number[self.ends[once]], self.bytes[once]), number

    def within(self, vertices: Ints) -> "Adjacency":
        """The graph of some of the vertices, in the order given, and the edges among them."""
        number = np.full(len(self), -1, dtype=np.int64)
        number[vertices] = np.arange(len(vertices))
        keep = (number[self.rows] >= 0) & (number[self.ends] >= 0) & (self.rows < self.ends)
        return adjacency(self.flops[vertices], number[self.rows[keep]], number[self.ends[keep]], self.bytes[keep])


def adjacency(flops: Floats, a: Ints, b: Ints, size: Floats, home: Ints | None = None) -> Adjacency:
    """The graph of edges a[i] - b[i], added up where there are several; loops and edges of no bytes are left out.

    flops: [n]; a, b: [edges], below n; size: [edges], bytes. home: [n], every vertex free by default.
    """
    count = len(flops)
    if home is None:
        home = np.arange(count, dtype=np.int64)
    real = (a != b) & (size > 0)
    a, b, size = a[real], b[real], size[real]
    key, place = np.unique(np.concatenate([a * count + b, b * count + a]), return_inverse=True)
    both = np.bincount(place.reshape(-1), np.concatenate([size, size]), len(key)).astype(np.float64)
    rows, ends = np.divmod(key, max(1, count))
    starts = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=count))]).astype(np.int64)
    return Adjacency(np.asarray(flops, dtype=np.float64), starts, ends, both, home)
