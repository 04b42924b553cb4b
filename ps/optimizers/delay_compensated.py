"""Rules that make up for the delay between the values that a gradient was computed on and those that it changes.

AdaDelay: Sra, Yu, Li and Smola, 2015. DC-ASGD: Zheng et al., "Asynchronous Stochastic Gradient Descent with Delay
Compensation", ICML 2017, whose w_bak(m) - the values that replica m has - are what its last fetch was sent. A push
changes nothing about that: a replica that pushes again before it fetches has computed on the same values.
"""

import math
from typing import ClassVar

import torch
from torch import Tensor

from .fused_kernels import in_blocks
from .optimizer import Rule, Update


class AdaDelay(Rule, frozen=True, tag="adadelay"):
    """value -= lr / (beta + sqrt(t + tau)) * gradient, t being the update's number and tau its delay."""

    lr: float
    beta: float = 1.0
    delayed: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.demand_not_below("beta")

    def rate(self, update: Update) -> float:
        """The published rate."""
        return self.lr / (self.beta + math.sqrt(update.number + update.tau))

    def apply(self, value: Tensor, gradient: Tensor, state: dict[str, Tensor], update: Update) -> None:
        """One pass."""
        value.add_(gradient, alpha=-self.rate(update))


class _Compensated(Rule, frozen=True):
    """state: fetched-R, the values that replica R has; one more copy of the parameters a replica.

    A replica that was not seen to fetch takes plain steps until it does.
    """

    lr: float
    delayed: ClassVar[bool] = True

    @property
    def remembers(self) -> bool:
        """What is pushed must have been computed on what was fetched last."""
        return True

    def fetched(self, value: Tensor, state: dict[str, Tensor], replica: int) -> None:
        """Keep w_bak."""
        name = f"fetched-{replica}"
        if name in state:
            state[name].copy_(value)
        else:
            state[name] = value.clone()


class DCConstant(_Compensated, frozen=True, tag="dc-asgd-c"):
    """value -= lr * (g + lam * g * g * (value - what the replica has)): g as it would be at the present value."""

    lam: float = 0.04

    def __post_init__(self) -> None:
        super().__post_init__()
        self.demand_not_below("lam")

    def apply(self, value: Tensor, gradient: Tensor, state: dict[str, Tensor], update: Update) -> None:
        """Block by block."""
        in_blocks(self._block, value, gradient, state.get(f"fetched-{update.replica}", value))

    def _block(self, v: Tensor, g: Tensor, had: Tensor) -> None:
        moved = torch.sub(v, had).mul_(g).mul_(g)
        v.add_(moved.mul_(self.lam).add_(g), alpha=-self.lr)


class DCAdaptive(_Compensated, frozen=True, tag="dc-asgd-a"):
    """dc-asgd-c with lam / sqrt(a running mean of the squared gradient) in place of lam.

    state: also square-R, the mean over the gradients of replica R.
    """

    lam: float = 2.0
    mean: float = 0.95
    eps: float = 1e-7

    def __post_init__(self) -> None:
        super().__post_init__()
        self.demand_not_below("lam")
        self.demand_share("mean")
        self.demand_above("eps")

    def fetched(self, value: Tensor, state: dict[str, Tensor], replica: int) -> None:
        """Keep w_bak; the mean begins at 0."""
        super().fetched(value, state, replica)
        if f"square-{replica}" not in state:
            state[f"square-{replica}"] = torch.zeros_like(value)

    def apply(self, value: Tensor, gradient: Tensor, state: dict[str, Tensor], update: Update) -> None:
        """Block by block."""
        had, square = (state.get(f"{name}-{update.replica}") for name in ("fetched", "square"))
        if had is None or square is None:
            value.add_(gradient, alpha=-self.lr)
        else:
            in_blocks(self._block, value, gradient, had, square)

    def _block(self, v: Tensor, g: Tensor, had: Tensor, square: Tensor) -> None:
        square.mul_(self.mean).addcmul_(g, g, value=1 - self.mean)
        moved = torch.sub(v, had).mul_(g).mul_(g)
        moved.div_(square.add(self.eps).sqrt_())
        v.add_(moved.mul_(self.lam).add_(g), alpha=-self.lr)
