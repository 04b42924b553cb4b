"""A model with one tensor that has three readers, whose loss is its output."""

from torch import Tensor, nn


class Branches(nn.Module):
    """One tensor with three readers, so that the order of their gradients' sum shows in its last bits."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 7)

    def forward(self, x: Tensor) -> Tensor:
        h = self.layer(x)
        return (h * 1.1).sum() + (h.exp() * 0.3).sum() + h.tanh().square().sum()


def loss_of(y: Tensor) -> Tensor:
    return y
