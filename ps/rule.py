"""`Rule`: how a push changes the parameters of a shard. Rules are plain data, so they travel in messages and files.

Adagrad is that of DistBelief (Dean et al., NIPS 2012, section 4.1): eta_i = gamma / sqrt(sum of g_ij^2 over j <= now).
"""

import math
from typing import Any, Protocol

import msgspec
import torch
from torch import Tensor

from ..partition.errors import UsageError

BLOCK = 1 << 16  # elements of an update that stay in the cache between its kernels


class Rule(Protocol):
    """Changes one flat slice of parameters by one gradient."""

    @property
    def lr(self) -> float:
        """The learning rate."""
        ...

    @property
    def local_rate(self) -> float:
        """The rate of the step that a worker takes itself between fetches; 0 for none."""
        ...

    def state(self, value: Tensor) -> dict[str, Tensor]:
        """What the rule remembers about `value`, as it is before the first push; each tensor as long as `value`."""
        ...

    def apply(self, value: Tensor, gradient: Tensor, state: dict[str, Tensor]) -> None:
        """Change `value` and `state` in place; elements are independent, so slices may be applied apart."""
        ...


class SGD(msgspec.Struct, frozen=True, tag="sgd"):
    """value -= lr * gradient."""

    lr: float

    def __post_init__(self) -> None:
        _check_rate("sgd", "lr", self.lr)

    @property
    def local_rate(self) -> float:
        """The worker steps as the shard does."""
        return self.lr

    def state(self, value: Tensor) -> dict[str, Tensor]:
        """Nothing."""
        return {}

    def apply(self, value: Tensor, gradient: Tensor, state: dict[str, Tensor]) -> None:
        """One fused pass."""
        value.add_(gradient, alpha=-self.lr)


class Adagrad(msgspec.Struct, frozen=True, tag="adagrad"):
    """value -= lr * gradient / sqrt(sum of squared gradients, this one included); no epsilon.

    local_rate: a plain step of the worker between fetches; by default it takes none, as it does not know the sums.
    """

    lr: float
    local_rate: float = 0.0

    def __post_init__(self) -> None:
        _check_rate("adagrad", "lr", self.lr)
        if self.local_rate != 0.0:
            _check_rate("adagrad", "local_rate", self.local_rate)

    def state(self, value: Tensor) -> dict[str, Tensor]:
        """sum: of the squared gradients."""
        return {"sum": torch.zeros_like(value)}

    def apply(self, value: Tensor, gradient: Tensor, state: dict[str, Tensor]) -> None:
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


AnyRule = SGD | Adagrad
RULES: dict[str, type[AnyRule]] = {"sgd": SGD, "adagrad": Adagrad}


def rule(name: str, lr: float) -> AnyRule:
    """The rule of this name with learning rate `lr`; UsageError lists the names where there is none."""
    kind = RULES.get(name)
    if kind is None:
        raise UsageError("E252", f"no rule {name!r}; there are {', '.join(sorted(RULES))}", fix="--rule sgd")
    return kind(lr)


def from_plain(data: Any) -> AnyRule:
    """The rule of which `data` is the plain form (`msgspec.to_builtins(rule)`)."""
    try:
        found: AnyRule = msgspec.convert(data, type=AnyRule)
    except msgspec.ValidationError as error:
        names = ", ".join(sorted(RULES))
        raise UsageError("E254", f"{data!r} is no rule: {error}", fix=f"use one of {names}") from error
    return found


def _check_rate(name: str, field: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
        raise UsageError(
            "E253", f"{field} of rule {name} is {value!r}; it must be a finite number above 0", fix=f"--{field} 0.05"
        )
