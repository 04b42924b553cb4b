"""Rules that follow the gradient, each in the form of its paper or of torch.optim.

The Adagrad of DistBelief (Dean et al., NIPS 2012, section 4.1): eta_i = gamma / sqrt(sum of g_ij^2 over j <= now).
"""

import torch
from torch import Tensor

from ...errors import UsageError
from . import fused_kernels as fused
from .optimizer import Rule, Update


class SGD(Rule, frozen=True, tag="sgd"):
    """value -= lr * gradient; with momentum (and nesterov) or weight_decay as torch.optim.SGD has them.

    With nesterov, lr 0.7 and momentum 0.9 it is the outer rule of DiLoCo (Douillard et al., 2023).
    """

    lr: float
    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.demand_share("momentum", "weight_decay")
        if self.nesterov and not self.momentum:
            facts = f"nesterov of rule sgd is {self.nesterov!r} with momentum {self.momentum!r}; it looks ahead by that"
            raise UsageError("E255", facts, fix="--rule sgd:momentum=0.9,nesterov=true")

    @property
    def local_rate(self) -> float:
        """The worker steps as the shard does, where the step is of the gradient alone."""
        return 0.0 if self.momentum or self.weight_decay else self.lr

    def state(self, value: Tensor) -> dict[str, Tensor]:
        """momentum: the moving sum of gradients, where there is one."""
        return {"momentum": torch.zeros_like(value)} if self.momentum else {}

    def apply(self, value: Tensor, gradient: Tensor, state: dict[str, Tensor], update: Update) -> None:
        """One pass."""
        if self.local_rate:
            value.add_(gradient, alpha=-self.lr)
            return
        fused.sgd(
            value, gradient, state.get("momentum"),
            lr=self.lr, beta=self.momentum, nesterov=self.nesterov, decay=self.weight_decay,
        )  # fmt: skip


class Add(Rule, frozen=True, tag="add"):
    """value += lr * gradient: for differences that methods push, and for counting."""

    lr: float = 1.0

    def apply(self, value: Tensor, gradient: Tensor, state: dict[str, Tensor], update: Update) -> None:
        """One pass."""
        value.add_(gradient, alpha=self.lr)


class Adagrad(Rule, frozen=True, tag="adagrad"):
    """value -= lr * gradient / sqrt(sum of squared gradients, this one included); no epsilon.

    local_rate: a plain step of the worker between fetches; by default it takes none, as it does not know the sums.
    """

    lr: float
    local_rate: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.demand_not_below("local_rate")

    def state(self, value: Tensor) -> dict[str, Tensor]:
        """sum: of the squared gradients.

        It begins with the smallest normal number, so that 0 / 0 is a step of 0, and that of a gradient whose square
        underflows is not above lr. Beside the square of a gradient of 1e-15 in float32, 1e-145 in float64, that is less
        than the last bit.
        """
        return {"sum": torch.full_like(value, torch.finfo(value.dtype).tiny)}

    def apply(self, value: Tensor, gradient: Tensor, state: dict[str, Tensor], update: Update) -> None:
        """One pass."""
        fused.adagrad(value, gradient, state["sum"], lr=self.lr, eps=0.0, decay=0.0)


class TorchAdagrad(Rule, frozen=True, tag="adagrad-torch"):
    """torch.optim.Adagrad: with eps beside the root, and sums that begin at `initial`."""

    lr: float
    eps: float = 1e-10
    initial: float = 0.0
    lr_decay: float = 0.0
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.demand_above("eps")
        self.demand_share("weight_decay")
        self.demand_not_below("initial", "lr_decay")

    def rate(self, update: Update) -> float:
        """Less with every update, by `lr_decay`."""
        return self.lr / (1 + (update.number - 1) * self.lr_decay)

    def state(self, value: Tensor) -> dict[str, Tensor]:
        """sum: of the squared gradients."""
        return {"sum": torch.full_like(value, self.initial)}

    def apply(self, value: Tensor, gradient: Tensor, state: dict[str, Tensor], update: Update) -> None:
        """One pass."""
        fused.adagrad(value, gradient, state["sum"], lr=self.rate(update), eps=self.eps, decay=self.weight_decay)


class RMSprop(Rule, frozen=True, tag="rmsprop"):
    """torch.optim.RMSprop: value -= lr * gradient / (root of a running mean of its square + eps)."""

    lr: float
    alpha: float = 0.99
    eps: float = 1e-8
    momentum: float = 0.0
    centered: bool = False
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.demand_share("alpha", "momentum", "weight_decay")
        self.demand_above("eps")

    def state(self, value: Tensor) -> dict[str, Tensor]:
        """square: the running mean of the squared gradient; mean: that of the gradient; momentum: of the steps."""
        wanted = {"square": True, "mean": self.centered, "momentum": self.momentum > 0}
        return {name: torch.zeros_like(value) for name, has in wanted.items() if has}

    def apply(self, value: Tensor, gradient: Tensor, state: dict[str, Tensor], update: Update) -> None:
        """Block by block."""
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


class Adam(Rule, frozen=True, tag="adam"):
    """torch.optim.Adam: the running mean of the gradient over the root of that of its square (Kingma and Ba, 2015).

    Their bias is corrected by the number of the update, also that of rows which not every update has touched.
    """

    lr: float
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.demand_share("beta1", "beta2", "weight_decay")
        self.demand_above("eps")

    def state(self, value: Tensor) -> dict[str, Tensor]:
        """mean, square: the running means of the gradient and of its square."""
        return {"mean": torch.zeros_like(value), "square": torch.zeros_like(value)}

    def apply(self, value: Tensor, gradient: Tensor, state: dict[str, Tensor], update: Update) -> None:
        """One pass; weight decay is added to the gradient."""
        self._step(value, gradient, state, update, apart=False)

    def _step(self, value: Tensor, gradient: Tensor, state: dict[str, Tensor], update: Update, *, apart: bool) -> None:
        fused.adam(
            value, gradient, state["mean"], state["square"], number=update.number, lr=self.lr,
            betas=(self.beta1, self.beta2), eps=self.eps, decay=self.weight_decay, apart=apart,
        )  # fmt: skip


class AdamW(Adam, frozen=True, tag="adamw"):
    """torch.optim.AdamW: Adam with weight decay beside the gradient (Loshchilov and Hutter, 2019)."""

    weight_decay: float = 0.01

    def apply(self, value: Tensor, gradient: Tensor, state: dict[str, Tensor], update: Update) -> None:
        """One pass."""
        self._step(value, gradient, state, update, apart=True)
