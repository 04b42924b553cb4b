"""`Holding`: one slice as its shard holds it - values, the rule's memory of them, and who pushed how often."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..partition.errors import Diverged
from .layout import Slice
from .rule import Rule, Update
from .staleness import Staleness


@dataclass(eq=False)
class Holding:
    """Values and rule state of a slice after `version` pushes; applied: the last push number of each client."""

    slice: Slice
    value: Tensor
    state: dict[str, Tensor]
    version: int = 0
    applied: dict[str, int] = field(default_factory=dict)

    def apply(self, rule: Rule, gradient: Tensor, update: Update, *, worker: str, step: int) -> None:
        """One push; Diverged where the gradient, the values or the rule's state are not finite."""
        self._demand_finite("the gradient", gradient, rule, worker, step)
        rule.apply(self.value, gradient, self.state, update)
        self.version += 1
        for what, tensor in {
            "the parameters": self.value,
            **{f"the rule's {k}": t for k, t in self.state.items()},
        }.items():
            self._demand_finite(what, tensor, rule, worker, step)

    def _demand_finite(self, what: str, tensor: Tensor, rule: Rule, worker: str, step: int) -> None:
        if finite(tensor):
            return
        raise Diverged(
            "E701",
            f"{what} on shard-{self.slice.shard} in the slice of machine {self.slice.machine} ceased to be finite with "
            f"the push of {worker} at step {step}, version {self.version} of the slice",
            fix=f"lower the rate: --lr {rule.lr / 10:g}",
        )


@dataclass
class Record:
    """What happened to one slice since its shard started."""

    pushes: int = 0
    duplicates: int = 0
    late: int = 0  # pushes that came after the update that they were for
    fetches: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    staleness: dict[str, Staleness] = field(default_factory=dict)

    def statistics(self) -> dict[str, Any]:
        """Plain data; staleness by worker."""
        return {
            "pushes": self.pushes,
            "duplicates": self.duplicates,
            "late": self.late,
            "fetches": self.fetches,
            "bytes_in": self.bytes_in,
            "bytes_out": self.bytes_out,
            "staleness": {worker: counts.statistics() for worker, counts in sorted(self.staleness.items())},
        }


def together(records: Iterable[Record]) -> Record:
    """The sums of several slices' records."""
    total = Record()
    for record in records:
        total.pushes += record.pushes
        total.duplicates += record.duplicates
        total.late += record.late
        total.fetches += record.fetches
        total.bytes_in += record.bytes_in
        total.bytes_out += record.bytes_out
        for worker, counts in record.staleness.items():
            total.staleness.setdefault(worker, Staleness()).include(counts)
    return total


def finite(tensor: Tensor) -> bool:
    """Whether every element is; a sum tells in one fast pass unless it overflows itself."""
    return bool(torch.isfinite(tensor.sum())) or bool(torch.isfinite(tensor).all())
