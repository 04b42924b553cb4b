"""Optimizers that compensate the delay between the values that a gradient was computed on and those that it changes.

AdaDelay: Sra, Yu, Li and Smola, "AdaDelay: Delay Adaptive Distributed Stochastic Convex Optimization", 2015. DC-ASGD:
Zheng et al., "Asynchronous Stochastic Gradient Descent with Delay Compensation", ICML 2017. Its w_bak(m), the values
that replica m has, is what the reply to its last fetch contained. A push does not change that: a replica that pushes
again before it fetches has computed on the same values.
"""

import math
from typing import ClassVar

import torch
from torch import Tensor

from .fused_kernels import in_blocks
from .optimizer import Optimizer, Update


class AdaDelay(Optimizer, frozen=True, tag="adadelay"):
    """value -= lr / (beta + sqrt(t + tau)) * gradient, where t is the number of the update and tau its delay."""

    lr: float
    beta: float = 1.0
    compensates_delay: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.demand_not_below("beta")

    @property
    def default_lr(self) -> float:
        """The first steps are of half of it, the thousandth of a thirtieth."""
        return 1.0

    def rate(self, update: Update) -> float:
        """Return lr / (beta + sqrt(t + tau)), the paper's alpha(t, tau)."""
        return self.lr / (self.beta + math.sqrt(update.number + update.tau))

    def apply(self, value: Tensor, gradient: Tensor, state: dict[str, Tensor], update: Update) -> None:
        """Update in one pass."""
        value.add_(gradient, alpha=-self.rate(update))


class _Compensated(Optimizer, frozen=True):
    """The base of both DC-ASGD optimizers, which approximates the gradient at the present values.

    To first order, g(w_t) = g(w_bak) + H * (w_t - w_bak), and lam * g * g stands in for the Hessian H (section 3).
    State: fetched-R, the values w_bak that replica R has; so each replica costs one more copy of the parameters. A
    replica takes plain steps until it has fetched.
    """

    lr: float
    compensates_delay: ClassVar[bool] = True

    @property
    def default_lr(self) -> float:
        """That of plain SGD."""
        return 0.1

    @property
    def needs_every_fetch(self) -> bool:
        """A push must have been computed on the values that were fetched last."""
        return True

    def on_fetch(self, value: Tensor, state: dict[str, Tensor], replica: int) -> None:
        """Keep w_bak(replica)."""
        name = f"fetched-{replica}"
        if name in state:
            state[name].copy_(value)
        else:
            state[name] = value.clone()


class DCConstant(_Compensated, frozen=True, tag="dc-asgd-c"):
    """DC-ASGD-c, constant: value -= lr * (g + lam * g * g * (value - w_bak))."""

    lam: float = 0.04

    def __post_init__(self) -> None:
        super().__post_init__()
        self.demand_not_below("lam")

    def apply(self, value: Tensor, gradient: Tensor, state: dict[str, Tensor], update: Update) -> None:
        """Update block by block."""
        in_blocks(self._apply_block, value, gradient, state.get(f"fetched-{update.replica}", value))

    def _apply_block(self, v: Tensor, g: Tensor, backup: Tensor) -> None:
        correction = torch.sub(v, backup).mul_(g).mul_(g)  # g * g * (w_t - w_bak)
        v.add_(correction.mul_(self.lam).add_(g), alpha=-self.lr)


class DCAdaptive(_Compensated, frozen=True, tag="dc-asgd-a"):
    """DC-ASGD-a, adaptive: lam_t = lam / sqrt(MeanSquare(t) + eps) replaces the constant lam.

    MeanSquare(t) = mean * MeanSquare(t - 1) + (1 - mean) * g^2. State: also square-R, MeanSquare over the gradients of
    replica R.
    """

    lam: float = 2.0
    mean: float = 0.95
    eps: float = 1e-7

    def __post_init__(self) -> None:
        super().__post_init__()
        self.demand_not_below("lam")
        self.demand_fraction("mean")
        self.demand_above("eps")

    def on_fetch(self, value: Tensor, state: dict[str, Tensor], replica: int) -> None:
        """Keep w_bak(replica); its MeanSquare begins at 0."""
        super().on_fetch(value, state, replica)
        if f"square-{replica}" not in state:
            state[f"square-{replica}"] = torch.zeros_like(value)

    def apply(self, value: Tensor, gradient: Tensor, state: dict[str, Tensor], update: Update) -> None:
        """Update block by block."""
        backup, square = (state.get(f"{name}-{update.replica}") for name in ("fetched", "square"))
        if backup is None or square is None:
            value.add_(gradient, alpha=-self.lr)
        else:
            in_blocks(self._apply_block, value, gradient, backup, square)

    def _apply_block(self, v: Tensor, g: Tensor, backup: Tensor, square: Tensor) -> None:
        square.mul_(self.mean).addcmul_(g, g, value=1 - self.mean)  # MeanSquare(t)
        correction = torch.sub(v, backup).mul_(g).mul_(g)  # g * g * (w_t - w_bak)
        correction.div_(square.add(self.eps).sqrt_())
        v.add_(correction.mul_(self.lam).add_(g), alpha=-self.lr)
