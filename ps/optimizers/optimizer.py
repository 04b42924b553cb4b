"""`Rule`: how an update changes parameters. Rules are plain data, so they travel in messages and files."""

import math
from collections.abc import Callable
from typing import ClassVar

import msgspec
from torch import Tensor

from ...errors import UsageError


class Update(msgspec.Struct, frozen=True):
    """What a rule may know of an update besides the gradient.

    number: 1 for the first of these values. tau: updates by others since the worker has fetched what it computed the
    gradient on. replica: whose it is; of the first where several are gathered.
    """

    number: int = 1
    tau: int = 0
    replica: int = 0


class Rule(msgspec.Struct, frozen=True):
    """Changes one flat slice of parameters by one gradient.

    delayed: whether it makes up for the delay of single pushes, so that it is of no use without.
    """

    delayed: ClassVar[bool] = False

    def __post_init__(self) -> None:
        self.demand_above("lr")

    @property
    def lr(self) -> float:
        """The learning rate; a field of most rules."""
        raise NotImplementedError

    @property
    def name(self) -> str:
        """As it is asked for."""
        return str(self.__struct_config__.tag)

    @property
    def local_rate(self) -> float:
        """The rate of the plain step that a worker takes itself between fetches; 0 for none."""
        return 0.0

    @property
    def remembers(self) -> bool:
        """Whether it needs to see every fetch before the push that was computed on it, so that none may run ahead."""
        return False

    def rate(self, update: Update) -> float:
        """The learning rate that an update is applied with."""
        return self.lr

    def state(self, value: Tensor) -> dict[str, Tensor]:
        """What the rule remembers about `value`, as it is before the first update; each tensor as long as `value`."""
        return {}

    def apply(self, value: Tensor, gradient: Tensor, state: dict[str, Tensor], update: Update) -> None:
        """Change `value` and `state` in place, and leave `gradient` as it is.

        Elements are independent to the last bit, so slices may be applied apart, and rows without their neighbours. A
        non-finite gradient makes the value non-finite in the same update. What the tensors of `state` are is settled
        by `state` and `fetched`.
        """
        raise NotImplementedError

    def fetched(self, value: Tensor, state: dict[str, Tensor], replica: int) -> None:
        """A worker of the replica is about to be sent `value`. May add tensors as long as that to `state`."""

    def demand_above(self, *fields: str) -> None:
        """UsageError unless fields are finite numbers above 0."""
        for field in fields:
            self._demand(field, "a finite number above 0", lambda x: math.isfinite(x) and x > 0)

    def demand_not_below(self, *fields: str) -> None:
        """UsageError unless fields are finite numbers of at least 0."""
        for field in fields:
            self._demand(field, "a finite number of at least 0", lambda x: math.isfinite(x) and x >= 0)

    def demand_share(self, *fields: str) -> None:
        """UsageError unless fields are in [0, 1)."""
        for field in fields:
            self._demand(field, "at least 0 and below 1", lambda x: 0 <= x < 1)

    def _demand(self, field: str, what: str, holds: Callable[[float], bool]) -> None:
        value = getattr(self, field)
        if not isinstance(value, bool) and isinstance(value, int | float) and holds(value):
            return
        fix = "--lr 0.05" if field == "lr" else f"--rule {self.name}, which leaves {field} as it is by default"
        raise UsageError("E253", f"{field} of rule {self.name} is {value!r}; it must be {what}", fix=fix)
