"""`Method`: how replicas train together - the loop of each worker, and what the shards do with its pushes.

A method is one small file: a frozen Struct whose fields are its options, and its name in methods.py.
"""

from typing import Any

import msgspec

from ..partition.errors import UsageError
from .rules import AnyRule
from .share import Share


class Serving(msgspec.Struct, frozen=True):
    """What shards do.

    rule: how they apply an update. replicas: that train from the beginning. gather: so many replicas' pushes on the
    same version make one update, of their mean, and later ones are dropped; 0 where every push is an update.
    """

    rule: AnyRule
    replicas: int = 1
    gather: int = 0


class Method(msgspec.Struct, frozen=True):
    """The loop of a worker, and what it needs of the shards. Methods are plain data, so they travel in messages."""

    @property
    def name(self) -> str:
        """As it is asked for."""
        return str(self.__struct_config__.tag)

    def serving(self, rule: AnyRule, replicas: int) -> Serving:
        """What the shards of a run with the user's rule do; by default every push is an update."""
        return Serving(rule, replicas)

    def local_rate(self, rule: AnyRule) -> float:
        """The rate of the plain step that a worker takes with each gradient it pushes; 0, the default, for none."""
        return 0.0

    def check(self, rule: AnyRule, replicas: int, steps: int) -> None:
        """UsageError where a run of so many steps of each replica with that rule cannot work."""

    def train(self, share: Share[Any]) -> None:
        """Train to the end of the share; all pushes are acknowledged then. Replica 0 has put values to the shards."""
        raise NotImplementedError

    def demand_count(self, field: str, least: int) -> None:
        """UsageError unless a field is a whole number of at least `least`."""
        value = getattr(self, field)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            facts = f"{self.name}'s {field} is {value!r}; it must be a whole number of at least {least}"
            raise UsageError("E260", facts, fix=f"--method {self.name}:{field}={least}")

    def demand_undelayed(self, rule: AnyRule) -> None:
        """UsageError where the rule makes up for what lies between a fetch and its push, which is nothing here."""
        if rule.delayed:
            facts = f"rule {rule.name} makes up for the delay of single pushes, and method {self.name} has none"
            raise UsageError("E262", facts, fix="--method downpour, or --rule sgd")
