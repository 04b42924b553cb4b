"""Stacks of layers that are handed an object, which they may change, as decoders hand a cache of keys and values."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from layer_stacks import WIDTH
from torch import Tensor, nn

DEPTH = 9
X = torch.zeros(4, WIDTH)


class Shared:
    """Is handed to all layers of one run."""

    def __init__(self, x: Tensor) -> None:
        self.slots = dict[int, Tensor]()
        self.inputs, self.history, self.weights = list[Tensor](), list[Tensor](), list[Tensor]()
        self.calls = 0
        self.total = self.first = self.written = x.mean()


class Handed(nn.Module):
    """A layer that leaves something in what it is handed. use: what else it does with it."""

    def __init__(self, index: int, use: Callable[["Handed", Tensor, Shared], Tensor]) -> None:
        super().__init__()
        self.wide, self.back = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.index, self.use = index, use

    def forward(self, x: Tensor, shared: Shared) -> Tensor:
        shared.inputs.append(x)
        shared.weights.append(self.wide.weight)
        wide = self.wide(x)
        shared.history.append(wide)
        y = x + self.back(wide.relu())
        shared.slots[self.index] = y
        return self.use(self, y, shared)


def leave(layer: Handed, x: Tensor, shared: Shared) -> Tensor:
    return x


class Stack(nn.Module):
    """Hands an object to its layers. finish: what the model makes of both."""

    def __init__(
        self,
        use: Callable[[Handed, Tensor, Shared], Tensor] = leave,
        finish: Callable[["Stack", Tensor, Shared], Any] = lambda model, x, shared: x,
    ) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.layers = nn.ModuleList(Handed(i, use) for i in range(DEPTH))
        self.steps, self.finish = 0, finish

    def hand_out(self, x: Tensor) -> Shared:
        """Return what all layers get."""
        return Shared(x)

    def forward(self, x: Tensor) -> Any:
        x = self.first(x).tanh()
        shared = self.hand_out(x)
        for layer in self.layers:
            x = layer(x, shared)
        return self.finish(self, x, shared)


def count(layer: Handed, x: Tensor, shared: Shared) -> Tensor:
    shared.calls += 1
    return x


class TwoInputs(Stack):
    """Chooses one of its inputs. choose: tells whether it is the first."""

    def __init__(self, choose: Callable[[Shared], bool]) -> None:
        super().__init__()
        self.choose = choose

    def forward(self, x: Tensor, other: Tensor) -> Any:
        y, shared = self.first(x).tanh(), Shared(x)
        for layer in self.layers:
            y = layer(y, shared)
        return y + (x if self.choose(shared) else other)


def loss(output: Any, target: Tensor) -> Tensor:
    return F.mse_loss(output if isinstance(output, Tensor) else output[0], target)
