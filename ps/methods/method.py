"""`Method`: how replicas train together - the loop of each worker, and what the shards do with its pushes.

A method is one small file: a frozen Struct whose fields are its options, and its name in methods.py.
"""

from collections.abc import Callable
from typing import Any, ClassVar

import msgspec

from ...errors import UsageError
from ..client.client import Client
from ..optimizers.registry import AnyRule
from .training_loop import Share


class Serving(msgspec.Struct, frozen=True):
    """What shards do.

    rule: how they apply an update. replicas: that train from the beginning. gather: so many replicas' pushes on the
    same version make one update, of their mean, and later ones are dropped; 0 where every push is an update.
    """

    rule: AnyRule
    replicas: int = 1
    gather: int = 0


class Method(msgspec.Struct, frozen=True):
    """The loop of a worker, and what it needs of the shards. Methods are plain data, so they travel in messages.

    whole: all parameters of a machine must lie on one shard. together: the replicas cannot go on without one that was
    lost, so the run ends then. leased: replicas are given batches as they come to need them (leases.py), and may join
    and leave while the run goes on; else they take turns, so that a run can be repeated exactly. pushes: gradients go
    to the shards.
    """

    whole: ClassVar[bool] = False
    together: ClassVar[bool] = False
    leased: ClassVar[bool] = False
    pushes: ClassVar[bool] = True

    @property
    def name(self) -> str:
        """As it is asked for."""
        return str(self.__struct_config__.tag)

    def serving(self, rule: AnyRule, replicas: int) -> Serving:
        """What the shards of a run with the user's rule do; by default every push is an update."""
        return Serving(rule, replicas)

    @property
    def period(self) -> int:
        """Steps of a replica between two pushes; checkpoints are made after a multiple of them."""
        return 1

    def local_rate(self, rule: AnyRule) -> float:
        """The rate of the plain step that a worker takes with each gradient it pushes; 0, the default, for none."""
        return 0.0

    def updates(self, steps: int, replicas: int) -> int:
        """About the version of the shards once every replica has taken so many steps."""
        return steps * replicas

    def check(self, rule: AnyRule, replicas: int, steps: int) -> None:
        """UsageError where a run of so many steps of each replica with that rule cannot work."""

    def enter(self, client: Client, step: int) -> int:
        """The step that a worker begins with, this one or a later one; asked before it is leased anything."""
        return step

    def train(self, share: Share[Any]) -> None:
        """Train to the end of the share; all pushes are acknowledged then. Replica 0 has put values to the shards."""
        raise NotImplementedError

    def demand_count(self, field: str, least: int) -> None:
        """UsageError unless a field is a whole number of at least `least`."""
        value = getattr(self, field)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            facts = f"{self.name}'s {field} is {value!r}; it must be a whole number of at least {least}"
            raise UsageError("E260", facts, fix=f"--method {self.name}:{field}={least}")

    def demand_number(self, field: str, what: str, holds: Callable[[float], bool], *, proper: float) -> None:
        """UsageError unless a field is a number that is `what`; proper: one that is."""
        value = getattr(self, field)
        if isinstance(value, bool) or not isinstance(value, int | float) or not holds(value):
            facts = f"{self.name}'s {field} is {value!r}; it must be {what}"
            raise UsageError("E266", facts, fix=f"--method {self.name}:{field}={proper:g}")

    def demand_undelayed(self, rule: AnyRule) -> None:
        """UsageError where the rule makes up for what lies between a fetch and its push, which is nothing here."""
        if rule.delayed:
            facts = f"rule {rule.name} makes up for the delay of single pushes, and method {self.name} has none"
            raise UsageError("E262", facts, fix="--method downpour, or --rule sgd")
