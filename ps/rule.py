"""`Rule`: how an update changes parameters. Rules are plain data, so they travel in messages and files."""

import math
from typing import ClassVar

import msgspec
from torch import Tensor

from ..partition.errors import UsageError


class Update(msgspec.Struct, frozen=True):
    """What a rule may know of an update besides the gradient.

    number: 1 for the first of these values. tau: updates by others since the worker has fetched what it computed the
    gradient on. replica: whose it is; of the first where several are gathered.
    """

    number: int = 1
    tau: int = 0
    replica: int = 0


class Rule(msgspec.Struct, frozen=True):
    """Changes one flat slice of parameters by one gradient. lr: the learning rate.

    delayed: whether it makes up for the delay of single pushes, so that it is of no use without.
    """

    lr: float
    delayed: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_rate(self.name, "lr", self.lr)

    @property
    def name(self) -> str:
        """As it is asked for."""
        return str(self.__struct_config__.tag)

    @property
    def local_rate(self) -> float:
        """The rate of the plain step that a worker takes itself between fetches; 0 for none."""
        return 0.0

    def state(self, value: Tensor) -> dict[str, Tensor]:
        """What the rule remembers about `value`, as it is before the first update; each tensor as long as `value`."""
        return {}

    def apply(self, value: Tensor, gradient: Tensor, state: dict[str, Tensor], update: Update) -> None:
        """Change `value` and `state` in place; elements are independent, so slices may be applied apart.

        It may add tensors as long as `value` to `state`.
        """
        raise NotImplementedError

    def fetched(self, value: Tensor, state: dict[str, Tensor], replica: int) -> None:
        """A worker of the replica is about to be sent `value`."""


def check_rate(name: str, field: str, value: object) -> None:
    """UsageError unless the field `value` of a rule is a finite number above 0."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
        raise UsageError(
            "E253", f"{field} of rule {name} is {value!r}; it must be a finite number above 0", fix=f"--{field} 0.05"
        )
