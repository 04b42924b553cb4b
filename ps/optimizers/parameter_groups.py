"""`Grouped`: several optimizers, each for some of the parameters; `Averaged`: one that also keeps a moving average.

A flat buffer is applied to in parts (slices, and parts of these), so both know where a part lies: `at`.
"""

from itertools import pairwise

import torch
from torch import Tensor

from .optimizer import Optimizer, Update
from .rates import RatedOptimizer

EMA = "ema"  # the state of `Averaged`: the moving average of the values

Range = tuple[int, int]  # where it ends in the flat buffer, and the number of its optimizer


class Grouped(Optimizer, frozen=True, tag="grouped"):
    """Parameters of one group have one optimizer, those of another one have another.

    optimizers: of one kind, in the order of the groups. ranges: of each machine's flat buffer, one behind the other;
    `of_machine` has those of one. State that only some of the optimizers have is kept for all elements.
    """

    optimizers: list[RatedOptimizer]
    ranges: list[list[Range]]

    def __post_init__(self) -> None:
        """The optimizers have checked themselves."""

    @property
    def compensates_delay(self) -> bool:  # type: ignore[override]
        """Whether one of them does."""
        return any(one.compensates_delay for one in self.optimizers)

    @property
    def lr(self) -> float:
        """The learning rate of the last group, which is that of all parameters of no other."""
        return self.optimizers[-1].lr

    @property
    def name(self) -> str:
        """The name of their kind."""
        return self.optimizers[-1].name

    @property
    def local_rate(self) -> float:
        """That of all groups; 0 where they differ."""
        rates = {one.local_rate for one in self.optimizers}
        return rates.pop() if len(rates) == 1 else 0.0

    @property
    def needs_every_fetch(self) -> bool:
        """Whether one of them does."""
        return any(one.needs_every_fetch for one in self.optimizers)

    def rate(self, update: Update) -> float:
        """Return the learning rate of the last group."""
        return self.optimizers[-1].rate(update)

    @property
    def groups(self) -> int:
        """The number of groups."""
        return len(self.optimizers)

    def of_machine(self, machine: int) -> "Grouped":
        """Return the optimizer of one machine's flat buffer."""
        return Grouped(self.optimizers, [self.ranges[machine]])

    def at(self, start: int, stop: int) -> "Grouped":
        """Return the optimizer of a part [start, stop) of one machine's buffer."""
        ends = [(min(end, stop) - start, which) for end, which in self.ranges[0]]
        starts = [0, *(end - start for end, _ in self.ranges[0])]
        kept = [one for one, begin in zip(ends, starts, strict=False) if one[0] > max(0, begin)]
        return Grouped(self.optimizers, [kept])

    def init_state(self, value: Tensor) -> dict[str, Tensor]:
        """Return the state of all optimizers; an element has that of its own, and 0 for what only others have."""
        state = {name: torch.zeros_like(value) for one in self.optimizers for name in one.init_state(value[:0])}
        for where, which in self._list_parts(value):
            for name, own in self.optimizers[which].init_state(value[where]).items():
                state[name][where] = own
        return state

    def apply(self, value: Tensor, gradient: Tensor, state: dict[str, Tensor], update: Update) -> None:
        """Apply each optimizer to its part."""
        for where, which in self._list_parts(value):
            optimizer = self.optimizers[which]
            names = optimizer.init_state(value[:0])
            own = {name: state[name][where] for name in names}
            optimizer.apply(value[where], gradient[where], own, update.of_group(which))

    def _list_parts(self, value: Tensor) -> list[tuple[slice, int]]:
        """Return which part of `value` has which optimizer; where all is of one, it may be some rows of it alone."""
        ranges = self.ranges[0]
        if len(ranges) == 1:
            return [(slice(None), ranges[0][1])]
        ends = [0, *(end for end, _ in ranges)]
        return [(slice(*span), which) for span, (_, which) in zip(pairwise(ends), ranges, strict=True)]


class Averaged(Optimizer, frozen=True, tag="averaged"):
    """An optimizer that keeps an exponential moving average of the values beside them, as a state of the name "ema".

    ema <- decay * ema + (1 - decay) * value after every update, beginning with the first values, as
    torch.optim.swa_utils.get_ema_multi_avg_fn (Polyak and Juditsky, 1992; Tarvainen and Valpola, 2017). Of sparse
    tables, rows move when they are touched.
    """

    inner: RatedOptimizer | Grouped
    decay: float

    def __post_init__(self) -> None:
        self.demand_fraction("decay")

    @property
    def compensates_delay(self) -> bool:  # type: ignore[override]
        """Whether the inner optimizer does."""
        return self.inner.compensates_delay

    @property
    def name(self) -> str:
        """The name on the command line."""
        return self.inner.name

    @property
    def lr(self) -> float:
        """The learning rate."""
        return self.inner.lr

    @property
    def local_rate(self) -> float:
        """That of the inner optimizer."""
        return self.inner.local_rate

    @property
    def needs_every_fetch(self) -> bool:
        """Whether the inner optimizer needs it."""
        return self.inner.needs_every_fetch

    def rate(self, update: Update) -> float:
        """Return the rate of the inner optimizer."""
        return self.inner.rate(update)

    @property
    def groups(self) -> int:
        """Those of the inner optimizer."""
        return self.inner.groups

    def of_machine(self, machine: int) -> "Averaged":
        """Return the optimizer of one machine's flat buffer."""
        return Averaged(self.inner.of_machine(machine), self.decay)

    def at(self, start: int, stop: int) -> "Averaged":
        """Return the optimizer of a part of one machine's buffer."""
        return Averaged(self.inner.at(start, stop), self.decay)

    def init_state(self, value: Tensor) -> dict[str, Tensor]:
        """Return the state of the inner optimizer, and the average, which begins with the values."""
        return {**self.inner.init_state(value), EMA: value.clone()}

    def apply(self, value: Tensor, gradient: Tensor, state: dict[str, Tensor], update: Update) -> None:
        """Apply the inner optimizer, and move the average."""
        self.inner.apply(value, gradient, {name: one for name, one in state.items() if name != EMA}, update)
        state[EMA].lerp_(value, 1 - self.decay)

    def on_fetch(self, value: Tensor, state: dict[str, Tensor], replica: int) -> None:
        """Pass the fetch on to the inner optimizer."""
        inner = {name: one for name, one in state.items() if name != EMA}
        self.inner.on_fetch(value, inner, replica)
        state.update(inner)
