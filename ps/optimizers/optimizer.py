"""`Optimizer`: how an update changes parameters. Optimizers are plain data, so they travel in messages and files."""

import math
from collections.abc import Callable, Sequence
from typing import ClassVar, Self

import msgspec
from torch import Tensor

from ...errors import UsageError


class Update(msgspec.Struct, frozen=True):
    """What an optimizer may know of an update besides the gradient.

    number: of the update of these values, from 1. tau: its staleness, the updates by others since the values that the
    gradient was computed on. replica: which computed it; the first one if several gradients were aggregated. progress:
    the fraction of the run's updates that were made before, for schedules; or the factor that a worker gives for the
    rate (`GivenRate`). factors: where it gives another one for each group of parameters, these; `progress` is the last.
    """

    number: int = 1
    tau: int = 0
    replica: int = 0
    progress: float = 0.0
    factors: tuple[float, ...] = ()

    def of_group(self, number: int) -> "Update":
        """Return the update of one group of parameters."""
        return msgspec.structs.replace(self, progress=self.factors[number], factors=()) if self.factors else self

    def at_factors(self, factors: Sequence[float]) -> "Update":
        """Return the update at rates that a worker gives by what they are multiplied by, for each group or for all."""
        return msgspec.structs.replace(self, progress=factors[-1], factors=tuple(factors) if len(factors) > 1 else ())


class Optimizer(msgspec.Struct, frozen=True):
    """Changes one flat slice of parameters by one gradient.

    compensates_delay: whether it corrects for the staleness of single pushes, so that it is of no use without any.
    """

    compensates_delay: ClassVar[bool] = False

    @property
    def groups(self) -> int:
        """The number of groups of parameters that may have rates of their own."""
        return 1

    def __post_init__(self) -> None:
        self.demand_above("lr")

    @property
    def lr(self) -> float:
        """The learning rate; a field of most optimizers."""
        raise NotImplementedError

    @property
    def default_lr(self) -> float:
        """The learning rate where the user names none, with which most models learn something."""
        return 0.001

    @property
    def name(self) -> str:
        """The name on the command line."""
        return str(self.__struct_config__.tag)

    @property
    def local_rate(self) -> float:
        """The rate of the plain step that a worker takes itself between fetches; 0 for none."""
        return 0.0

    @property
    def needs_every_fetch(self) -> bool:
        """Whether a fetch must reach the shard before the push that was computed on it, and none may run ahead."""
        return False

    def rate(self, update: Update) -> float:
        """Return the learning rate of an update."""
        return self.lr

    def of_machine(self, machine: int) -> Self:
        """Return the optimizer of one machine's flat buffer; most are that of all."""
        return self

    def at(self, start: int, stop: int) -> Self:
        """Return the optimizer of a part [start, stop) of one machine's buffer; most are that of all parts."""
        return self

    def init_state(self, value: Tensor) -> dict[str, Tensor]:
        """Return the state before the first update, by name: tensors as long as `value` [n]."""
        return {}

    def apply(self, value: Tensor, gradient: Tensor, state: dict[str, Tensor], update: Update) -> None:
        """Update `value` [n] and `state` in place, and leave `gradient` [n] as it is.

        Elements are independent to the last bit, so slices may be updated apart, and rows without their neighbours. A
        gradient that is not finite makes the value not finite in the same update. Only `init_state` and `on_fetch`
        decide which tensors `state` has.
        """
        raise NotImplementedError

    def max_change(self, norm: float, size: int, update: Update) -> float | None:
        """Return a bound of the norm of the change that an update makes to `size` values; None where none is known.

        norm: of the gradient. With a bound, values need not be looked at after every update to see if they diverge.
        """
        return None

    def on_fetch(self, value: Tensor, state: dict[str, Tensor], replica: int) -> None:
        """Take note that a worker of the replica is about to receive `value`. May add tensors [n] to `state`."""

    def demand_above(self, *fields: str) -> None:
        """Raise UsageError E253 unless the fields are finite numbers above 0."""
        for field in fields:
            self._demand(field, "a finite number above 0", lambda x: math.isfinite(x) and x > 0)

    def demand_not_below(self, *fields: str) -> None:
        """Raise UsageError E253 unless the fields are finite numbers of at least 0."""
        for field in fields:
            self._demand(field, "a finite number of at least 0", lambda x: math.isfinite(x) and x >= 0)

    def demand_fraction(self, *fields: str) -> None:
        """Raise UsageError E253 unless the fields are in [0, 1)."""
        for field in fields:
            self._demand(field, "at least 0 and below 1", lambda x: 0 <= x < 1)

    def _demand(self, field: str, condition: str, holds: Callable[[float], bool]) -> None:
        value = getattr(self, field)
        if not isinstance(value, bool) and isinstance(value, int | float) and holds(value):
            return
        fix = "--lr 0.05" if field == "lr" else f"--optimizer {self.name}, which has a default for {field}"
        raise UsageError("E253", f"{field} of optimizer {self.name} is {value!r}; it must be {condition}", fix=fix)
