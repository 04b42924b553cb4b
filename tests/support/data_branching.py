"""Models and losses that no trace can show whole: branches on values, gradients of their own, draws by chance."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x).relu())


class Branch(Net):
    """Goes one of two ways."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        return self.last(h.relu() if h.sum() > 0 else -h)


class Inner(nn.Module):
    """Holds a module that branches."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.inner = nn.Linear(6, 6), Branch()

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(self.before(x))


class Straight(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.sign()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient / 2


class Quantised(Net):
    """Has a gradient of its own."""

    def forward(self, x: Tensor) -> Tensor:
        return self.last(Straight.apply(self.first(x)))


class Penalised(Net):
    """Adds the norm of a gradient, whose gradient is taken in turn (WGAN-GP)."""

    def forward(self, x: Tensor) -> Tensor:
        x = x.clone().requires_grad_()
        y = self.last(self.first(x).tanh())
        (slope,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        return y + slope.norm()


class Statistics(Net):
    """Assigns a running mean of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(5))

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        self.mean = 0.9 * self.mean + 0.1 * y.detach().mean(0)
        return y - self.mean


class Layers(nn.Module):
    """Leaves out layers by chance."""

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.probability, self.last = probability, nn.Linear(6, 5)
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.2)) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            drawn = torch.rand([])
            if not self.training or not drawn < self.probability:
                x = layer(x)
        return self.last(x)


class Sampled(nn.Module):
    """Draws its codes, as variational autoencoders do."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 4), nn.Linear(2, 5)

    def forward(self, x: Tensor) -> Tensor:
        mean, scale = self.first(x).chunk(2, -1)
        codes = torch.distributions.Normal(mean, scale.exp())
        return self.last(codes.rsample()) + codes.log_prob(mean).mean()


class Grows(Net):
    """Returns as many rows as the data says."""

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        return y[y[:, 0] > 0] if y[:, 0].max() > 0 else y


def harder(output: Tensor, target: Tensor) -> Tensor:
    loss = F.cross_entropy(output, target)
    return loss if loss < 1 else 2 * loss


def mean_of_squares(output: Tensor, target: Tensor) -> Tensor:
    return output.square().mean()


# A model, its loss, and the leaf modules that are found for them.
BRANCHING = {
    "branch": (Branch, F.cross_entropy, ("(model)",)),
    "inner": (Inner, F.cross_entropy, ("inner",)),
    "quantised": (Quantised, F.cross_entropy, ("(model)",)),
    "penalised": (Penalised, F.cross_entropy, ("(model)",)),
    "statistics": (Statistics, F.cross_entropy, ("(model)",)),
    "layers by chance": (lambda: Layers(0.5), F.cross_entropy, ("(model)",)),
    "all layers": (lambda: Layers(0.0), F.cross_entropy, ()),
    "sampled": (Sampled, F.cross_entropy, ()),
    "loss": (Net, harder, ("(loss)",)),
    "step": (Grows, mean_of_squares, ("(step)",)),
}
