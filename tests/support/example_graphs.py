"""Small graphs for the tests of the planner's parts."""

import itertools

import torch
from torch import nn

from cutset.partition.capture.export import capture
from cutset.partition.ir.graph import Graph

CROSS_ENTROPY = nn.functional.cross_entropy


def chain(*widths: int, batch: int = 4) -> Graph:
    """Linear layers without bias or activation, and a cross entropy."""
    layers = [nn.Linear(a, b, bias=False) for a, b in itertools.pairwise(widths)]
    x, y = torch.zeros(batch, widths[0]), torch.zeros(batch, dtype=torch.int64)
    return capture(nn.Sequential(*layers), CROSS_ENTROPY, [x], [y])[0]


def conv_line(length: int, *, batch: int = 1) -> Graph:
    """Two 1-D convolutions of width 3 with one channel: each output reads its neighbours."""
    model = nn.Sequential(nn.Conv1d(1, 1, 3, padding=1, bias=False), nn.Conv1d(1, 1, 3, padding=1, bias=False))
    return capture(model, lambda y: y.mean(), [torch.zeros(batch, 1, length)])[0]


class Mlp(nn.Module):
    """A residual MLP block as in a transformer: norm, up, down, add."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(self.norm(x))))


def mlp_block(tokens: int, width: int, hidden: int) -> Graph:
    """The block's graph, with a mean for a loss."""
    model = nn.Sequential(nn.Linear(width, width), Mlp(width, hidden))
    return capture(model, lambda y: y.mean(), [torch.zeros(tokens, width)])[0]
