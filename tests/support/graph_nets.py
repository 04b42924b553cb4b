"""Graph neural networks written by hand: messages along edges, added up, or weighed by a softmax, at the nodes."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from zoo import Case, real

from cutset.models.task import Data

NODES, EDGES = 10, 24


class Convolution(nn.Module):
    """A layer of a graph convolution (Kipf and Welling, 2017)."""

    source: Tensor
    target: Tensor

    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, out)
        register_edges(self)

    def forward(self, x: Tensor) -> Tensor:
        degree = torch.ones(NODES, dtype=x.dtype).index_add(0, self.target, torch.ones(EDGES, dtype=x.dtype))
        weight = degree.rsqrt()
        messages = self.linear(x)[self.source] * (weight[self.source] * weight[self.target])[:, None]
        return torch.zeros(NODES, messages.shape[1], dtype=x.dtype).index_add(0, self.target, messages)


class Attention(nn.Module):
    """A layer of GATv2 (Brody et al., 2022): the softmax over the edges of a node is written out."""

    source: Tensor
    target: Tensor

    def __init__(self, width: int, heads: int, size: int) -> None:
        super().__init__()
        self.heads, self.size = heads, size
        self.left, self.right = nn.Linear(width, heads * size), nn.Linear(width, heads * size)
        self.weight = nn.Parameter(torch.randn(heads, size) / size)
        register_edges(self)

    def forward(self, x: Tensor) -> Tensor:
        left = self.left(x).view(NODES, self.heads, self.size)[self.source]
        right = self.right(x).view(NODES, self.heads, self.size)[self.target]
        scores = (F.leaky_relu(left + right, 0.2) * self.weight).sum(-1)
        none = torch.full((NODES, self.heads), -1e9, dtype=x.dtype)
        largest = torch.index_reduce(none, 0, self.target, scores.detach(), "amax")
        weights = torch.exp(scores - largest[self.target])
        total = torch.zeros(NODES, self.heads, dtype=x.dtype).index_add(0, self.target, weights)
        shares = weights / total[self.target]
        out = torch.zeros(NODES, self.heads, self.size, dtype=x.dtype)
        return out.index_add(0, self.target, left * shares[:, :, None]).flatten(1)


def register_edges(module: nn.Module) -> None:
    """Give a module the edges of a graph, every node of which has one at least."""
    generator = torch.Generator().manual_seed(5)
    extra = torch.randint(0, NODES, (2, EDGES - NODES), generator=generator)
    ring = torch.stack([torch.arange(NODES).roll(1), torch.arange(NODES)])
    source, target = torch.cat([ring, extra], 1)
    module.register_buffer("source", source)
    module.register_buffer("target", target)


GRAPH_NETS = {
    "graph convolution": Case(
        lambda: nn.Sequential(Convolution(4, 6), nn.ReLU(), Convolution(6, 3)),
        lambda: Data((real(NODES, 4),), (real(NODES, 3),)),
        F.mse_loss,
    ),
    "graph attention": Case(
        lambda: nn.Sequential(Attention(4, 2, 3), nn.ELU(), Attention(6, 2, 2)),
        lambda: Data((real(NODES, 4),), (real(NODES, 4),)),
        F.mse_loss,
    ),
}
