"""`CsrGraph`: the undirected weighted graph that METIS partitions, in compressed sparse rows.

Weights are float64, so that FLOPs of 1e18 and bytes of 1e15 add up without overflow; they are scaled to integers only
where a partitioner needs integers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from ..ir.box import Ints

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class CsrGraph:
    """n vertices, e edges; each edge stands in the rows of both its ends.

    flops: [n]; starts: [n + 1], where the row of a vertex begins; ends: [2e], neighbours, in order in each row; bytes:
    [2e]. home: [n], the vertex that each must stay with, itself if it is free.
    """

    flops: Floats
    starts: Ints
    ends: Ints
    bytes: Floats
    anchor: Ints

    def __len__(self) -> int:
        return len(self.flops)

    @cached_property
    def rows(self) -> Ints:
        """The vertex in whose row each entry stands: [2e]."""
        return np.repeat(np.arange(len(self), dtype=np.int64), np.diff(self.starts))

    def bytes_between(self, a: int, b: int) -> float:
        """The weight of an edge, 0 where there is none."""
        row = slice(self.starts[a], self.starts[a + 1])
        return float(self.bytes[row][self.ends[row] == b].sum())

    def cut_bytes(self, part_of: Ints | Sequence[int]) -> float:
        """Bytes of the edges whose ends are in different parts."""
        part = np.asarray(part_of)
        return float(self.bytes[part[self.rows] != part[self.ends]].sum()) / 2

    def contract(self) -> tuple["CsrGraph", Ints]:
        """The graph with every vertex merged into its home, and the number that each vertex has there: [n]."""
        kept, number = np.unique(self.anchor, return_inverse=True)
        number = number.reshape(-1).astype(np.int64)
        flops = np.bincount(number, weights=self.flops, minlength=len(kept)).astype(np.float64)
        once = self.rows < self.ends
        return build_csr_graph(flops, number[self.rows[once]], number[self.ends[once]], self.bytes[once]), number

    def subgraph(self, vertices: Ints) -> "CsrGraph":
        """The graph of some vertices, in the order given, and the edges among them."""
        number = np.full(len(self), -1, dtype=np.int64)
        number[vertices] = np.arange(len(vertices))
        keep = (number[self.rows] >= 0) & (number[self.ends] >= 0) & (self.rows < self.ends)
        return build_csr_graph(self.flops[vertices], number[self.rows[keep]], number[self.ends[keep]], self.bytes[keep])


def build_csr_graph(flops: Floats, a: Ints, b: Ints, size: Floats, anchor: Ints | None = None) -> CsrGraph:
    """Build the graph of the edges a[i] - b[i]; parallel edges are added up, loops and edges of no bytes left out.

    flops: [n]; a, b: [edges], below n; size: [edges], bytes. home: [n], every vertex free by default.
    """
    count = len(flops)
    if anchor is None:
        anchor = np.arange(count, dtype=np.int64)
    real = (a != b) & (size > 0)
    a, b, size = a[real], b[real], size[real]
    key, place = np.unique(np.concatenate([a * count + b, b * count + a]), return_inverse=True)
    both = np.bincount(place.reshape(-1), np.concatenate([size, size]), len(key)).astype(np.float64)
    rows, ends = np.divmod(key, max(1, count))
    starts = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=count))]).astype(np.int64)
    return CsrGraph(np.asarray(flops, dtype=np.float64), starts, ends, both, anchor)
