"""`Holding`: one slice as its shard holds it - values, the rule's memory of them, and who pushed how often.

Values that are sent are not copied first: whoever changes them takes a copy where somebody still reads them.
"""

import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ...errors import Diverged
from .slicing import Slice
from ..optimizers.optimizer import Rule, Update
from .staleness import Staleness

PART = 1 << 17  # elements that are updated and checked while they are in the cache


@dataclass(eq=False)
class Holding:
    """Values and rule state of a slice after `version` pushes; applied: the last push number of each client.

    copy: makes a copy of the values where they are read.
    """

    slice: Slice
    value: Tensor
    state: dict[str, Tensor]
    version: int = 0
    applied: dict[str, int] = field(default_factory=dict)
    copy: Callable[[Tensor], Tensor] = torch.clone
    _calm: bool = field(default=False, init=False, repr=False)  # whether the values were small after the last push
    _shown: list[weakref.ref[Any]] = field(default_factory=list, init=False, repr=False)  # to memory of `value`

    def shown(self) -> Tensor:
        """The values as they are now, to be sent: they stay so for as long as this tensor, or one over it, is there.

        Where workers change them in shared memory (sharing.py), they go on changing.
        """
        memory = self.value.view(torch.uint8).numpy()
        self._shown = [*(other for other in self._shown if other() is not None), weakref.ref(memory)]
        return torch.from_numpy(memory).view(self.value.dtype)

    def apply(self, rule: Rule, gradient: Tensor, update: Update, *, worker: str, step: int) -> None:
        """One push; Diverged where the gradient, which then changes nothing, the values or the rule's state are not
        finite.
        """
        who, calm = f"{worker} at step {step}", _small(gradient)
        if not calm:
            self._demand_finite({"the gradient": gradient}, rule, who)
        self._part_from_shown()
        small = True
        tensors = (self.value, gradient, *self.state.values())
        for v, g, *memory in zip(*(torch.split(flat, PART) for flat in tensors), strict=True):
            rule.apply(v, g, dict(zip(self.state, memory, strict=True)), update)
            small = small and _small(v)
        self.version += 1
        calm, self._calm = calm and small and self._calm, small
        if not calm:
            self._demand_finite(_named(self.value, self.state), rule, who)

    def apply_rows(
        self, rule: Rule, rows: Tensor, gradients: Tensor, update: Update, *, worker: str, step: int
    ) -> None:
        """One push that touches some rows of a slice that holds whole ones: the rule is applied to those alone.

        rows: int64 [r], ascending, none twice; gradients: [r, width]. ValueError where they do not fit the slice. The
        rule is lazy: rows that are not named stay as they are - no decay, no momentum moves them - and the number of
        the update, by which Adam corrects, counts every push, as torch.optim.SparseAdam does it. Diverged as `apply`.
        """
        self._demand_rows(rows, gradients)
        who, width = f"{worker} at step {step}", gradients.shape[1]
        gradient = gradients.reshape(-1)
        self._demand_finite({"the gradient": gradient}, rule, who)
        value = _rows(self.value, rows, width)
        state = {name: _rows(whole, rows, width) for name, whole in self.state.items()}
        rule.apply(value, gradient, state, update)
        self.version += 1
        self._calm = False
        self._demand_finite(_named(value, state), rule, who)
        self._part_from_shown()
        for whole, part in [(self.value, value), *((self.state[name], part) for name, part in state.items())]:
            whole.view(-1, width).index_copy_(0, rows, part.view(-1, width))

    def _part_from_shown(self) -> None:
        """The values are about to change."""
        if any(memory() is not None for memory in self._shown):
            self.value = self.copy(self.value)
        self._shown.clear()

    def _demand_rows(self, rows: Tensor, gradients: Tensor) -> None:
        size = self.value.numel()
        if gradients.dim() != 2 or rows.shape != gradients.shape[:1] or rows.dtype != torch.int64:
            facts = f"rows {rows.dtype} {list(rows.shape)} with gradients {list(gradients.shape)}"
            raise ValueError(f"{facts}; wanted are int64 [r] and [r, width]")
        width = gradients.shape[1]
        if width == 0 or size % width:
            raise ValueError(f"rows of width {width} in a slice of {size} elements")
        if rows.numel() == 0:
            return
        if not bool((rows[1:] > rows[:-1]).all()):
            raise ValueError("rows that do not ascend")
        if int(rows[0]) < 0 or int(rows[-1]) >= size // width:
            raise ValueError(f"rows {int(rows[0])} to {int(rows[-1])} in a slice of {size // width}")

    def _demand_finite(self, named: Mapping[str, Tensor], rule: Rule, who: str) -> None:
        for what, tensor in named.items():
            if not finite(tensor):
                raise Diverged(
                    "E701",
                    f"{what} on shard-{self.slice.shard} in the slice of machine {self.slice.machine} ceased to be "
                    f"finite with the push of {who}, version {self.version} of the slice",
                    fix=f"lower the rate: --lr {rule.lr / 10:g}",
                )


@dataclass
class Record:
    """What happened to one slice since its shard started."""

    pushes: int = 0
    duplicates: int = 0
    late: int = 0  # pushes that came after the update that they were for
    updates: int = 0  # by the shard itself; of several gathered pushes one
    rates: float = 0.0  # the sum of what the rule applied them with
    fetches: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    staleness: dict[str, Staleness] = field(default_factory=dict)

    def statistics(self) -> dict[str, Any]:
        """Plain data; rate: the mean, None without updates; staleness by worker."""
        return {
            "pushes": self.pushes,
            "duplicates": self.duplicates,
            "late": self.late,
            "updates": self.updates,
            "rate": self.rates / self.updates if self.updates else None,
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
        total.updates += record.updates
        total.rates += record.rates
        total.fetches += record.fetches
        total.bytes_in += record.bytes_in
        total.bytes_out += record.bytes_out
        for worker, counts in record.staleness.items():
            total.staleness.setdefault(worker, Staleness()).include(counts)
    return total


def _named(value: Tensor, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {"the parameters": value} | {f"the rule's {name}": memory for name, memory in state.items()}


def _rows(flat: Tensor, rows: Tensor, width: int) -> Tensor:
    """Copies of rows of a flat tensor, flat."""
    return flat.view(-1, width).index_select(0, rows).view(-1)


def _small(tensor: Tensor) -> bool:
    """Whether all elements are finite and far from overflow: below 2^50, by one pass that only reads.

    Where the gradient and the values before and after an update are, it cannot have made a rule's memory infinite, and
    nobody needs to look at that. What is linear in gradients makes the values infinite with it. Squares of gradients,
    with a weight decay of at most 1, stay below 2^103, half the distance from the largest float32 to what would be the
    next: added to whatever finite sum, they round to a finite one. (With an infinite sum, Adagrad would step no more.)
    """
    if tensor.dtype not in (torch.float32, torch.float64):
        return False
    return float(torch.dot(tensor, tensor)) < 2.0**100


def finite(tensor: Tensor) -> bool:
    """Whether every element is; a sum tells in one fast pass unless it overflows itself."""
    return bool(torch.isfinite(tensor.sum())) or bool(torch.isfinite(tensor).all())
