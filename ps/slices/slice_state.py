"""`SliceState`: one slice as its shard holds it - values, optimizer state, version, and the pushes applied per client.

Values are sent without a copy (copy on write): an update copies them first if a message with them is still being read.
"""

import math
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ...errors import Diverged
from ..optimizers.optimizer import Optimizer, Update
from .slicing import ParameterSlice
from .staleness import StalenessHistogram

PART = 1 << 17  # elements that are updated and checked while they are in the cache
MAX_NORM = 2.0**50
ROUNDING = 1 + 1e-6  # by which an update may make values larger, beside the change


@dataclass(eq=False)
class SliceState:
    """Values [n] and optimizer state of a slice after `version` updates.

    state: tensors of the optimizer by name, each [n]. applied: by client, the number of its last push that the values
    contain; steps: how many steps of the client that is. copy: copies the values into memory that receivers can read,
    as `Channel.copy` does.
    """

    slice: ParameterSlice
    value: Tensor
    state: dict[str, Tensor]
    version: int = 0
    applied: dict[str, int] = field(default_factory=dict)
    copy: Callable[[Tensor], Tensor] = torch.clone
    steps: dict[str, int] = field(default_factory=dict)
    _norm: float = field(default=math.inf, init=False, repr=False)  # that the values have at most; inf if not known
    _is_shared: bool = field(default=False, init=False, repr=False)  # whether others write the values, too
    _lent: list[weakref.ref[Any]] = field(default_factory=list, init=False, repr=False)  # to memory of `value`

    def lend_values(self) -> Tensor:
        """Return the present values for sending. They stay unchanged while this tensor, or a view of it, is alive.

        Values in shared memory that workers update themselves (shared_parameters.py) keep changing.
        """
        memory = self.value.view(torch.uint8).numpy()
        self._lent = [*(other for other in self._lent if other() is not None), weakref.ref(memory)]
        return torch.from_numpy(memory).view(self.value.dtype)

    def apply(self, optimizer: Optimizer, gradient: Tensor, update: Update, *, worker: str, step: int) -> None:
        """Apply one push with this gradient [n].

        Raises Diverged if the gradient is not finite, which then changes nothing, and if the values or the optimizer
        state are not finite afterwards.
        """
        who, norm, before = f"{worker} at step {step}", _norm(gradient), self._norm
        if not norm < MAX_NORM:
            self._demand_finite({"the gradient": gradient}, optimizer, who)
        self._copy_if_lent()
        self._norm = self._update(optimizer, gradient, update, norm)
        self.version += 1
        if not (norm < MAX_NORM and before < MAX_NORM and self._norm < MAX_NORM):
            self._demand_finite(_name_tensors(self.value, self.state), optimizer, who)

    def _update(self, optimizer: Optimizer, gradient: Tensor, update: Update, norm: float) -> float:
        """Apply a gradient of this norm. Return the norm of the values at most: measured only if it may be too large.

        What is measured is updated part by part, so that each is still in the cache then.
        """
        size = self.value.numel()
        change = optimizer.max_change(norm, size, update)
        known = math.inf if change is None or self._is_shared else ROUNDING * self._norm + change
        is_known, squares = known < MAX_NORM, 0.0
        step = max(1, size) if is_known else PART
        for start in range(0, size, step):
            part = slice(start, start + step)
            value, state = self.value[part], {name: memory[part] for name, memory in self.state.items()}
            optimizer.at(start, start + len(value)).apply(value, gradient[part], state, update)
            squares += 0.0 if is_known else _norm(value) ** 2
        return known if is_known else math.sqrt(squares)

    def apply_rows(
        self, optimizer: Optimizer, rows: Tensor, gradients: Tensor, update: Update, *, worker: str, step: int
    ) -> None:
        """Apply one push that touches only some rows of a sparse table's slice.

        rows: int64 [r], ascending, each once. gradients: [r, width]. The update is lazy, as in torch.optim.SparseAdam:
        neither decay nor momentum moves the other rows, and the number of the update, by which Adam corrects its bias,
        counts every push. Raises ValueError if the rows do not fit the slice, and Diverged as `apply` does.
        """
        self._demand_rows(rows, gradients)
        who, width = f"{worker} at step {step}", gradients.shape[1]
        gradient = gradients.reshape(-1)
        self._demand_finite({"the gradient": gradient}, optimizer, who)
        value = _copy_rows(self.value, rows, width)
        state = {name: _copy_rows(whole, rows, width) for name, whole in self.state.items()}
        optimizer.apply(value, gradient, state, update)
        self.version += 1
        self._norm = math.inf
        self._demand_finite(_name_tensors(value, state), optimizer, who)
        self._copy_if_lent()
        for whole, part in [(self.value, value), *((self.state[name], part) for name, part in state.items())]:
            whole.view(-1, width).index_copy_(0, rows, part.view(-1, width))

    def share(self, value: Tensor) -> None:
        """Keep the values here from now on, where others write them, too."""
        self.value, self._is_shared = value, True

    def record_push(self, client: str, number: int, step: int) -> None:
        """Record that the values contain a client's push of this number, and its steps up to this one."""
        self.applied[client], self.steps[client] = number, step + 1

    def _copy_if_lent(self) -> None:
        """Copy the values before they change if somebody still reads them."""
        if any(memory() is not None for memory in self._lent):
            self.value = self.copy(self.value)
        self._lent.clear()

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

    def _demand_finite(self, tensors: Mapping[str, Tensor], optimizer: Optimizer, who: str) -> None:
        for what, tensor in tensors.items():
            if not is_finite(tensor):
                raise Diverged(
                    "E701",
                    f"{what} on shard-{self.slice.shard} in the slice of machine {self.slice.machine} ceased to be "
                    f"finite with the push of {who}, version {self.version} of the slice",
                    fix=f"lower the learning rate: --lr {optimizer.lr / 10:g}, or lr=... in a script",
                )


@dataclass
class SliceCounters:
    """Counts what happened to one slice since its shard started."""

    pushes: int = 0
    duplicates: int = 0
    late: int = 0  # aggregated pushes that arrived after their update was made
    updates: int = 0  # made by the shard; several aggregated pushes make one
    rates: float = 0.0  # the sum of the learning rates of the updates
    fetches: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    staleness: dict[str, StalenessHistogram] = field(default_factory=dict)

    def statistics(self) -> dict[str, Any]:
        """Return plain data. rate: the mean learning rate, None without updates. staleness: by worker."""
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


def sum_counters(records: Iterable[SliceCounters]) -> SliceCounters:
    """Return the sums of several slices' counters."""
    total = SliceCounters()
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
            total.staleness.setdefault(worker, StalenessHistogram()).include(counts)
    return total


def _name_tensors(value: Tensor, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {"the parameters": value} | {f"the optimizer's {name}": memory for name, memory in state.items()}


def _copy_rows(flat: Tensor, rows: Tensor, width: int) -> Tensor:
    """Return copies of rows of a flat tensor [n], flat: [r * width]."""
    return flat.view(-1, width).index_select(0, rows).view(-1)


def _norm(tensor: Tensor) -> float:
    """Return the Euclidean norm of a flat tensor, by one pass that only reads; inf where an element is not finite.

    Below MAX_NORM, all elements are finite and far from overflow. If the gradient and the values before and after an
    update are so small, the update cannot have made optimizer state infinite, so the state needs no check. State that
    is linear in gradients would make the values infinite with it. Squares of gradients, with a weight decay of at most
    1, stay below 2^103, half the distance from the largest float32 to the next number that would be: added to any
    finite sum, they round to a finite one. (With an infinite sum, Adagrad would take no more steps.)
    """
    if tensor.dtype not in (torch.float32, torch.float64):
        return math.inf
    square = float(torch.dot(tensor, tensor))
    return math.sqrt(square) if square >= 0 else math.inf


def is_finite(tensor: Tensor) -> bool:
    """Return whether every element is finite. A sum tells in one fast pass unless it overflows itself."""
    return bool(torch.isfinite(tensor.sum())) or bool(torch.isfinite(tensor).all())
