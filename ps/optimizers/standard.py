"""The standard optimizers, each in the form of its paper or of torch.optim.

`Adagrad` is that of DistBelief (Dean et al., "Large Scale Distributed Deep Networks", NIPS 2012, section 4.1), with a
learning rate for each parameter i at iteration K: eta_(i,K) = gamma / sqrt(sum over j = 1..K of (dw_(i,j))^2).
"""

import math

import torch
from torch import Tensor

from ...errors import UsageError
from . import fused_kernels as fused
from .optimizer import Optimizer, Update


class SGD(Optimizer, frozen=True, tag="sgd"):
    """value -= lr * gradient; momentum, nesterov and weight_decay as in torch.optim.SGD.

    With nesterov, lr 0.7 and momentum 0.9 it is the outer optimizer of DiLoCo (Douillard et al., 2023).
    """

    lr: float
    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.demand_fraction("momentum", "weight_decay")
        if self.nesterov and not self.momentum:
            facts = f"optimizer sgd has nesterov {self.nesterov!r} with momentum {self.momentum!r}, which it needs"
            raise UsageError("E255", facts, fix="--optimizer sgd:momentum=0.9,nesterov=true")

    @property
    def default_lr(self) -> float:
        """A tenth, and less with momentum, which adds up steps in one direction to 1 / (1 - momentum) of them."""
        return round(0.1 * (1 - self.momentum), 6)

    @property
    def local_rate(self) -> float:
        """The worker takes the shard's step itself if that depends on the gradient alone."""
        return 0.0 if self.momentum or self.weight_decay else self.lr

    def init_state(self, value: Tensor) -> dict[str, Tensor]:
        """Return momentum, the moving sum of gradients, if there is any."""
        return {"momentum": torch.zeros_like(value)} if self.momentum else {}

    def apply(self, value: Tensor, gradient: Tensor, state: dict[str, Tensor], update: Update) -> None:
        """Update in one pass."""
        if self.local_rate:
            value.add_(gradient, alpha=-self.lr)
            return
        fused.sgd(
            value, gradient, state.get("momentum"),
            lr=self.lr, beta=self.momentum, nesterov=self.nesterov, decay=self.weight_decay,
        )  # fmt: skip

    def max_change(self, norm: float, size: int, update: Update) -> float | None:
        """Return that of the plain step."""
        return self.local_rate * norm if self.local_rate else None


class Add(Optimizer, frozen=True, tag="add"):
    """value += lr * gradient: for differences of parameters that methods push, and for counting."""

    lr: float = 1.0

    @property
    def default_lr(self) -> float:
        """What is pushed counts in full."""
        return 1.0

    def apply(self, value: Tensor, gradient: Tensor, state: dict[str, Tensor], update: Update) -> None:
        """Update in one pass."""
        value.add_(gradient, alpha=self.lr)

    def max_change(self, norm: float, size: int, update: Update) -> float:
        """Return that of the sum."""
        return self.lr * norm


class Adagrad(Optimizer, frozen=True, tag="adagrad"):
    """value -= lr * gradient / sqrt(sum of squared gradients, this one included); there is no epsilon.

    local_rate: rate of a plain step of the worker between fetches. By default it takes none, as it does not know the
    sums.
    """

    lr: float
    local_rate: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.demand_not_below("local_rate")

    @property
    def default_lr(self) -> float:
        """The first step changes each parameter by this, and later ones by less."""
        return 0.02

    def init_state(self, value: Tensor) -> dict[str, Tensor]:
        """Return sum, of the squared gradients.

        It begins with the smallest normal number, so that 0 / 0 becomes a step of 0, and a gradient whose square
        underflows makes a step of at most lr. Beside the square of a gradient of 1e-15 in float32, or 1e-145 in
        float64, that number is less than the last bit.
        """
        return {"sum": torch.full_like(value, torch.finfo(value.dtype).tiny)}

    def apply(self, value: Tensor, gradient: Tensor, state: dict[str, Tensor], update: Update) -> None:
        """Update in one pass: sum += g^2; value -= lr * g / sqrt(sum)."""
        fused.adagrad(value, gradient, state["sum"], lr=self.lr, eps=0.0, decay=0.0)

    def max_change(self, norm: float, size: int, update: Update) -> float:
        """Return that of a step of lr for each value: the root is no less than the gradient."""
        return self.lr * math.sqrt(size)


class TorchAdagrad(Optimizer, frozen=True, tag="adagrad-torch"):
    """torch.optim.Adagrad: eps is added to the root, and the sums begin at `initial`."""

    lr: float
    eps: float = 1e-10
    initial: float = 0.0
    lr_decay: float = 0.0
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.demand_above("eps")
        self.demand_fraction("weight_decay")
        self.demand_not_below("initial", "lr_decay")

    @property
    def default_lr(self) -> float:
        """That of `Adagrad`."""
        return 0.02

    def rate(self, update: Update) -> float:
        """Return the rate, which falls with every update by `lr_decay`."""
        return self.lr / (1 + (update.number - 1) * self.lr_decay)

    def init_state(self, value: Tensor) -> dict[str, Tensor]:
        """Return sum, of the squared gradients."""
        return {"sum": torch.full_like(value, self.initial)}

    def apply(self, value: Tensor, gradient: Tensor, state: dict[str, Tensor], update: Update) -> None:
        """Update in one pass."""
        fused.adagrad(value, gradient, state["sum"], lr=self.rate(update), eps=self.eps, decay=self.weight_decay)


class RMSprop(Optimizer, frozen=True, tag="rmsprop"):
    """torch.optim.RMSprop: value -= lr * gradient / (root of a running mean of its square + eps)."""

    lr: float
    alpha: float = 0.99
    eps: float = 1e-8
    momentum: float = 0.0
    centered: bool = False
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.demand_fraction("alpha", "momentum", "weight_decay")
        self.demand_above("eps")

    def init_state(self, value: Tensor) -> dict[str, Tensor]:
        """Return square and mean, the running means of the squared gradient and of the gradient, and momentum."""
        needed = {"square": True, "mean": self.centered, "momentum": self.momentum > 0}
        return {name: torch.zeros_like(value) for name, is_needed in needed.items() if is_needed}

    def apply(self, value: Tensor, gradient: Tensor, state: dict[str, Tensor], update: Update) -> None:
        """Update block by block, so that a block stays in the cache between the operations."""
        names = list(state)
        fused.in_blocks(
            lambda v, g, *memory: self._block(v, g, **dict(zip(names, memory, strict=True))),
            value,
            gradient,
            *state.values(),
        )

    def _block(
        self, v: Tensor, g: Tensor, square: Tensor, mean: Tensor | None = None, momentum: Tensor | None = None
    ) -> None:
        if self.weight_decay:
            g = g.add(v, alpha=self.weight_decay)
        square.mul_(self.alpha).addcmul_(g, g, value=1 - self.alpha)
        if mean is None:
            root = square.sqrt()
        else:
            mean.lerp_(g, 1 - self.alpha)
            root = square.addcmul(mean, mean, value=-1).sqrt_()
        root.add_(self.eps)
        if momentum is None:
            v.addcdiv_(g, root, value=-self.lr)
        else:
            v.add_(momentum.mul_(self.momentum).addcdiv_(g, root), alpha=-self.lr)


class Adam(Optimizer, frozen=True, tag="adam"):
    """torch.optim.Adam: value -= lr * m_t / (sqrt(v_t) + eps), m_t and v_t corrected for bias (Kingma and Ba, 2015).

    m_t and v_t are the running means of the gradient and of its square. The correction depends on the number of the
    update t, also in rows that not every update has touched.
    """

    lr: float
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.demand_fraction("beta1", "beta2", "weight_decay")
        self.demand_above("eps")

    def init_state(self, value: Tensor) -> dict[str, Tensor]:
        """Return mean and square, the running means of the gradient and of its square."""
        return {"mean": torch.zeros_like(value), "square": torch.zeros_like(value)}

    def apply(self, value: Tensor, gradient: Tensor, state: dict[str, Tensor], update: Update) -> None:
        """Update in one pass; weight decay is added to the gradient."""
        self._step(value, gradient, state, update, decoupled=False)

    def _step(
        self, value: Tensor, gradient: Tensor, state: dict[str, Tensor], update: Update, *, decoupled: bool
    ) -> None:
        fused.adam(
            value, gradient, state["mean"], state["square"], number=update.number, lr=self.lr,
            betas=(self.beta1, self.beta2), eps=self.eps, decay=self.weight_decay, decoupled=decoupled,
        )  # fmt: skip


class AdamW(Adam, frozen=True, tag="adamw"):
    """torch.optim.AdamW: Adam with decoupled weight decay (Loshchilov and Hutter, 2019)."""

    weight_decay: float = 0.01

    def apply(self, value: Tensor, gradient: Tensor, state: dict[str, Tensor], update: Update) -> None:
        """Update in one pass: value -= lr * weight_decay * value, then Adam's step."""
        self._step(value, gradient, state, update, decoupled=True)
