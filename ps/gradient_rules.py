"""Rules that follow the gradient: SGD, Adagrad.

Adagrad is that of DistBelief (Dean et al., NIPS 2012, section 4.1): eta_i = gamma / sqrt(sum of g_ij^2 over j <= now).
"""

import torch
from torch import Tensor

from .rule import Rule, Update, check_rate

BLOCK = 1 << 16  # elements of an update that stay in the cache between its kernels


class SGD(Rule, frozen=True, tag="sgd"):
    """value -= lr * gradient."""

    @property
    def local_rate(self) -> float:
        """The worker steps as the shard does."""
        return self.lr

    def apply(self, value: Tensor, gradient: Tensor, state: dict[str, Tensor], update: Update) -> None:
        """One fused pass."""
        value.add_(gradient, alpha=-self.lr)


class Adagrad(Rule, frozen=True, tag="adagrad"):
    """value -= lr * gradient / sqrt(sum of squared gradients, this one included); no epsilon.

    local_rate: a plain step of the worker between fetches; by default it takes none, as it does not know the sums.
    """

    local_rate: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.local_rate != 0.0:
            check_rate("adagrad", "local_rate", self.local_rate)

    def state(self, value: Tensor) -> dict[str, Tensor]:
        """sum: of the squared gradients."""
        return {"sum": torch.zeros_like(value)}

    def apply(self, value: Tensor, gradient: Tensor, state: dict[str, Tensor], update: Update) -> None:
        """Block by block, so that the five kernels find their operands in the cache."""
        root = torch.empty(min(BLOCK, value.numel()), dtype=value.dtype)
        size = torch.empty_like(root)
        blocks = zip(*(torch.split(flat, BLOCK) for flat in (value, gradient, state["sum"])), strict=True)
        for v, g, total in blocks:
            self._apply_block(v, g, total, root[: v.numel()], size[: v.numel()])

    def _apply_block(self, v: Tensor, g: Tensor, total: Tensor, root: Tensor, size: Tensor) -> None:
        total.addcmul_(g, g)
        torch.sqrt(total, out=root)
        # sqrt(g * g) is |g| in floating point too, so the root is at least |g| and this changes nothing - except where
        # g * g underflows: there it keeps the step at lr. The smallest normal number makes 0 / 0 a step of 0.
        torch.maximum(root, torch.abs(g, out=size), out=root)
        root.clamp_(min=torch.finfo(v.dtype).tiny)
        v.addcdiv_(g, root, value=-self.lr)
