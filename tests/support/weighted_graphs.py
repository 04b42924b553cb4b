"""Graphs for the tests of what lies under the planner: any weighted graph, and a transformer's layers."""

from typing import Any

import networkx as nx
import numpy as np
import torch
from torch import nn

from cutset.partition.capture.export import capture
from cutset.partition.ir.graph import Graph
from cutset.partition.mincut.csr_graph import CsrGraph, build_csr_graph


def weighted(graph: nx.Graph, flops: Any = 1.0, size: float = 10) -> CsrGraph:
    """flops: of all vertices, or of some, the others 1; edges weigh `size`, or what their attribute `bytes` says."""
    some = flops if isinstance(flops, dict) else dict.fromkeys(graph, flops)
    work = np.array([some.get(vertex, 1.0) for vertex in range(len(graph))])
    ends = np.array(graph.edges, dtype=np.int64).reshape(-1, 2)
    sizes = np.array([data.get("bytes", size) for _, _, data in graph.edges(data=True)], dtype=np.float64)
    return build_csr_graph(work, ends[:, 0], ends[:, 1], sizes)


class Layer(nn.Module):
    """A transformer layer: norm first, queries, keys and values from one product, no dropout."""

    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.norm_1, self.norm_2, self.heads = nn.LayerNorm(width), nn.LayerNorm(width), heads
        self.projections, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, width = x.shape
        split = self.projections(self.norm_1(x)).view(batch, tokens, 3, self.heads, width // self.heads)
        queries, keys, values = split.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = nn.functional.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, tokens, width))
        return x + self.down(nn.functional.gelu(self.up(self.norm_2(x))))


def transformer(layers: int, *, width: int, heads: int, tokens: int, batch: int = 1) -> Graph:
    """A stack of layers with hidden units four times as wide, and a mean for a loss."""
    model = nn.Sequential(*(Layer(width, heads, 4 * width) for _ in range(layers)))
    return capture(model, lambda y: y.mean(), [torch.zeros(batch, tokens, width)])[0]
