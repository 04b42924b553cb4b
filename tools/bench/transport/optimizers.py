"""How fast rules change parameters on one thread, beside memcpy: the rule alone, and as a shard applies a push.

A rule takes turns with memcpy, so that a busy second hits both alike. What is counted is the gradient: a rule at
1 GB/s takes 0.1 s for one of 100 MB, whatever else it reads and writes meanwhile.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from ....ps.slices.slice_state import Holding
from ....ps.slices.slicing import layout
from ....ps.optimizers.optimizer import Rule, Update
from ....ps.optimizers.registry import RULES
from ....ps.optimizers.registry import rule as rule_named
from ...report.console import make_console, print_columns

ELEMENTS = 25_000_000  # 100 MB of float32
ROUNDS = 7
LR = 1e-6  # small, so that however many updates keep the values where they are
NAMES = (*RULES, "sgd:momentum=0.9", "sgd:momentum=0.9,nesterov=true", "adagrad/tau")


@dataclass(frozen=True)
class RuleRow:
    """Bytes of gradient a second of every round: the rule alone, a push with its checks, memcpy beside them."""

    rule: str
    alone: tuple[float, ...]
    pushed: tuple[float, ...]
    memcpy: tuple[float, ...]

    @property
    def rate(self) -> float:
        """The median of the rule alone."""
        return statistics.median(self.alone)

    @property
    def push_rate(self) -> float:
        """The median of pushes."""
        return statistics.median(self.pushed)

    @property
    def of_memcpy(self) -> float:
        """The median ratio of the rule alone to memcpy in the same round."""
        return statistics.median(mine / copy for mine, copy in zip(self.alone, self.memcpy, strict=True))

    @property
    def push_of_memcpy(self) -> float:
        """The median ratio of pushes to memcpy in the same round."""
        return statistics.median(mine / copy for mine, copy in zip(self.pushed, self.memcpy, strict=True))


def measure(*, names: Sequence[str] = NAMES, elements: int = ELEMENTS, rounds: int = ROUNDS) -> list[RuleRow]:
    """A row for each rule; torch is left with the threads that it had."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        generator = torch.Generator().manual_seed(0)
        value, gradient = (torch.randn(elements, generator=generator) for _ in range(2))
        return [_row(name, value, gradient, rounds) for name in names]
    finally:
        torch.set_num_threads(threads)


def _row(name: str, value: Tensor, gradient: Tensor, rounds: int) -> RuleRow:
    one = rule_named(name, LR)
    holdings = _holdings(one, value.clone())
    gradients = [gradient[holding.slice.start : holding.slice.stop] for holding in holdings]
    target = torch.empty_like(gradient)

    def alone() -> None:
        for holding, part in zip(holdings, gradients, strict=True):
            one.apply(holding.value, part, holding.state, _update(holding))

    def pushed() -> None:
        for holding, part in zip(holdings, gradients, strict=True):
            holding.apply(one, part, _update(holding), worker="worker-0.0", step=holding.version)

    works: list[Callable[[], object]] = [alone, pushed, lambda: target.copy_(gradient)]
    rates: list[list[float]] = [[], [], []]
    for turn in range(-1, rounds):  # one that does not count: memory is made
        for rate, work in zip(rates, works, strict=True):
            begin = time.perf_counter()
            work()
            if turn >= 0:
                rate.append(gradient.nbytes / (time.perf_counter() - begin))
    return RuleRow(name, *map(tuple, rates))


def _holdings(one: Rule, value: Tensor) -> list[Holding]:
    """The slices that a shard would hold, after a replica has fetched."""
    parts = [(piece, value[piece.start : piece.stop]) for piece in layout([value.numel()], 1)]
    holdings = [Holding(piece, part, one.state(part)) for piece, part in parts]
    for holding in holdings:
        one.fetched(holding.value, holding.state, 0)
    return holdings


def _update(holding: Holding) -> Update:
    return Update(holding.version + 1, tau=1)


def print_rows(rows: Sequence[RuleRow]) -> None:
    """Print medians, and what they are of memcpy in the same round."""
    cells = [
        (
            row.rule,
            f"{row.rate / 1e9:.2f} GB/s",
            f"{row.of_memcpy:.2f}",
            f"{row.push_rate / 1e9:.2f} GB/s",
            f"{row.push_of_memcpy:.2f}",
        )
        for row in rows
    ]
    print_columns(make_console(), ("rule", "alone", "of memcpy", "push", "of memcpy"), cells)


def as_data(row: RuleRow) -> dict[str, Any]:
    """A row for JSON."""
    return {
        **asdict(row),
        "rate": row.rate,
        "of_memcpy": row.of_memcpy,
        "push_rate": row.push_rate,
        "push_of_memcpy": row.push_of_memcpy,
    }
