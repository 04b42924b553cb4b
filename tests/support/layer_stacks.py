"""Stacks of layers that are alike, and of layers that only look so: what may be traced once, and what may not."""

import itertools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

DEPTH, WIDTH = 6, 8
COUNT = {"calls": 0}


class Layer(nn.Module):
    """A residual layer. scale: read in forward; index: not."""

    def __init__(self, index: int = 0, *, p: float = 0.1, scale: float = 1.0) -> None:
        super().__init__()
        self.norm, self.wide, self.narrow = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 16), nn.Linear(16, WIDTH)
        self.drop, self.index, self.scale = nn.Dropout(p), index, scale

    def forward(self, x: Tensor) -> Tensor:
        return x + self.drop(self.narrow(F.gelu(self.wide(self.norm(x))))) * self.scale


class Stack(nn.Module):
    """Layers one after another."""

    def __init__(self, make: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(make(i) for i in range(DEPTH))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class Branch(Layer):
    """Reads its index."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).relu() if self.index == 3 else super().forward(x)


class Called(Layer):
    """Has a call of its own."""

    def __call__(self, x: Tensor, flag: bool = True) -> Tensor:
        return super().__call__(x) if flag else x


class Doubled(Layer):
    """Computes in a call of its own."""

    def __call__(self, x: Tensor) -> Tensor:
        return super().__call__(x * 2) + x


class CalledOtherwise(Layer):
    """Has a call of its own without that of torch."""

    def __call__(self, x: Tensor) -> Tensor:
        return self.forward(x)


class Window(Layer):
    """Every other layer sees a part of what comes, as in Gemma."""

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self.window = 2 if index % 2 else WIDTH

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + x[:, : self.window].mean()


class Counted(Layer):
    """Counts in an object that all layers share, and does something else at the fourth call."""

    def __init__(self, shared: Any) -> None:
        super().__init__()
        self.shared = shared

    def forward(self, x: Tensor) -> Tensor:
        self.shared["calls"] += 1
        return super().forward(x).relu() if self.shared["calls"] % DEPTH == 4 else super().forward(x)


class CountedInGlobal(Layer):
    """Counts in a global table."""

    def forward(self, x: Tensor) -> Tensor:
        COUNT["calls"] += 1
        return super().forward(x).tanh() if COUNT["calls"] % DEPTH == 5 else super().forward(x)


class CountedInClass(Layer):
    """Counts in its class."""

    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        CountedInClass.calls += 1
        return super().forward(x).tanh() if CountedInClass.calls % DEPTH == 5 else super().forward(x)


class Iterated(Layer):
    """Takes numbers of an iterator that all layers share."""

    def __init__(self, numbers: Any) -> None:
        super().__init__()
        self.numbers = numbers

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (1 + next(self.numbers) % DEPTH)


class Cached(Layer):
    """Makes a table at the first call, which the others find."""

    def __init__(self, tables: dict[int, Tensor]) -> None:
        super().__init__()
        self.tables = tables

    def forward(self, x: Tensor) -> Tensor:
        if WIDTH not in self.tables:
            self.tables[WIDTH] = torch.arange(WIDTH) / WIDTH
        return super().forward(x) * self.tables[WIDTH]


class Remembering(Layer):
    """Leaves what it has computed in an attribute, which the model reads."""

    def forward(self, x: Tensor) -> Tensor:
        self.left = super().forward(x)
        return self.left


class RememberingStack(Stack):
    """Adds what layers leave."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + sum(layer.left for layer in self.layers)


class Residual(Layer):
    """Appends to a list that goes through all layers, and reads its first entry."""

    def forward(self, x: Tensor, seen: list[Tensor]) -> Tensor:  # type: ignore[override]
        seen.append(x)
        return super().forward(x) + seen[0] + len(seen)


class ResidualStack(Stack):
    """Hands a list through all layers."""

    def forward(self, x: Tensor) -> Tensor:
        seen: list[Tensor] = []
        for layer in self.layers:
            x = layer(x, seen)
        return x + seen[2]


class Statistics(Layer):
    """Overwrites buffers, of a batch norm and of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.batch = nn.BatchNorm1d(WIDTH)
        self.register_buffer("mean", torch.zeros(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.mean.mul_(0.9).add_(x.mean(0))
        return self.batch(super().forward(x)) - self.mean


class Shared(Layer):
    """Has a buffer that it shares with the other layers."""

    def __init__(self, table: Tensor, weight: nn.Parameter | None = None) -> None:
        super().__init__()
        self.register_buffer("table", table)
        if weight is not None:
            self.wide.weight = weight

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.table


class Mixed(Layer):
    """Computes in several modes, and returns more than one tensor in a tuple."""

    def forward(self, x: Tensor, mask: Tensor | None = None, *, flag: bool = False) -> tuple[Tensor, Any]:  # type: ignore[override]
        with torch.no_grad():
            still = self.norm(x).softmax(-1)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = self.wide(x).float()
        y = super().forward(x) + y[:, :WIDTH] * still
        return (y if mask is None else y * mask), {"kept": x, "still": still.detach(), "flag": flag}


class MixedStack(Stack):
    """Calls layers in several ways."""

    def forward(self, x: Tensor) -> Tensor:
        mask = x > 0
        for i, layer in enumerate(self.layers):
            x, more = layer(x, mask if i > 1 else None, flag=i == 4)
            x = x + more["kept"] + more["still"]
        return x


class Overwriting(Layer):
    """Overwrites its argument."""

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        return x.mul_(0.5) + y


class OverwritingStack(Stack):
    """Overwrites what layers give it, and views of that."""

    def forward(self, x: Tensor) -> Tensor:
        x = x * 1
        for layer in self.layers:
            x = layer(x)
            x[:, 0] += 1
            x.view(-1)[:3].mul_(2)
        return x


class TwiceStack(Stack):
    """Calls every layer twice, in two places."""

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        for layer in reversed(self.layers):
            x = checkpoint(layer, x, use_reentrant=False)
        return x


class ModesStack(Stack):
    """Calls layers in different modes."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            for layer in self.layers[:2]:
                x = layer(x)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            for layer in self.layers[2:5]:
                x = layer(x)
        return self.layers[5](x)


class ScaledStack(Stack):
    """Sets an attribute of each layer before it calls it."""

    def forward(self, x: Tensor) -> Tensor:
        for i, layer in enumerate(self.layers):
            layer.scale = 1.0 + i // 2
            x = layer(x)
        return x


class Apart(nn.Module):
    """Layers of torch alone, whose source lines are those of their callers."""

    def __init__(self) -> None:
        super().__init__()
        for i in range(4):
            setattr(self, f"layer_{i}", nn.TransformerEncoderLayer(WIDTH, 2, 16, batch_first=True, dropout=0.1))

    def forward(self, x: Tensor) -> Tensor:
        x = x[None]
        x = self.layer_0(x)
        x = self.layer_1(x)
        x = self.layer_2(x)
        return self.layer_3(x)[0]


class HalfFrozen(Stack):
    """Some parameters have no gradient."""

    def __init__(self, make: Callable[[int], nn.Module]) -> None:
        super().__init__(make)
        for i, layer in enumerate(self.layers):
            layer.get_submodule("wide").requires_grad_(i % 3 != 1)


def hooked() -> Stack:
    """Return layers of which one has a hook."""
    stack = Stack(Layer)
    stack.layers[3].register_forward_hook(lambda module, args, output: output * 2)
    return stack


def evaluating() -> Stack:
    """Return layers whose activations differ, as functions that they hold."""
    stack = Stack(Layer)
    for i, layer in enumerate(stack.layers):
        layer.act = F.relu if i % 2 else torch.tanh
        layer.forward = lambda x, layer=layer: layer.act(Layer.forward(layer, x))  # type: ignore[method-assign]
    return stack


def with_shared(weight: nn.Parameter | None) -> Stack:
    """Return layers that share a buffer, and a weight if it is given."""
    table = torch.ones(WIDTH)
    return Stack(lambda i: Shared(table, weight))


def tied_in_one() -> Stack:
    """Return layers of which one uses another's weight."""
    stack = Stack(Layer)
    stack.layers[4].wide.weight = stack.layers[1].wide.weight
    return stack


def same_module() -> Stack:
    """Return layers of which two are one module under two names."""
    stack = Stack(Layer)
    stack.layers[4] = stack.layers[2]
    return stack


def counted(shared: dict[str, int]) -> Stack:
    """Return layers that count in a table."""
    return Stack(lambda i: Counted(shared))


ALIKE: dict[str, Callable[[], nn.Module]] = {
    "alike": lambda: Stack(Layer),
    "buffers": lambda: Stack(lambda i: Statistics()),
    "shared buffer": lambda: with_shared(None),
    "tied weight": lambda: with_shared(nn.Parameter(torch.ones(16, WIDTH))),
    "modes within": lambda: MixedStack(Mixed),
    "overwritten results": lambda: OverwritingStack(Layer),
    "called twice": lambda: TwiceStack(Layer),
    "torch's layers": Apart,
    "windows": lambda: Stack(Window),
    "scaled": lambda: ScaledStack(Layer),
}
UNLIKE: dict[str, Callable[[], nn.Module]] = {
    "dropout": lambda: Stack(lambda i: Layer(p=i / 10)),
    "attribute": lambda: Stack(lambda i: Layer(scale=1.0 + (i == 4))),
    "zero's sign": lambda: Stack(lambda i: Layer(scale=-0.0 if i == 4 else 0.0)),
    "type of a number": lambda: Stack(lambda i: Layer(scale=True if i == 4 else 1.0)),
    "index in a branch": lambda: Stack(Branch),
    "counter in a shared table": lambda: counted({"calls": 0}),
    "counter in a global": lambda: Stack(CountedInGlobal),
    "counter in a class": lambda: Stack(CountedInClass),
    "iterator": lambda: (lambda numbers: Stack(lambda i: Iterated(numbers)))(itertools.count()),
    "shared table": lambda: (lambda tables: Stack(lambda i: Cached(tables)))({}),
    "left in an attribute": lambda: RememberingStack(Remembering),
    "list of residuals": lambda: ResidualStack(Residual),
    "overwritten arguments": lambda: OverwritingStack(Overwriting),
    "modes around": lambda: ModesStack(Layer),
    "frozen": lambda: HalfFrozen(Layer),
    "hook": hooked,
    "functions": evaluating,
    "tied in one": tied_in_one,
    "one module twice": same_module,
    "one mode": lambda: Stack(lambda i: Layer().train(i != 3)),
}
