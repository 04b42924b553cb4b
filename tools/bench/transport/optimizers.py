"""`cutset bench optimizers`: how fast each optimizer updates parameters on one thread, compared with memcpy.

An optimizer and memcpy are timed in turn, so that a disturbance hits both alike. Rates count the bytes of the gradient:
an optimizer at 1 GB/s takes 0.1 s for a gradient of 100 MB, whatever else it reads and writes meanwhile.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ....ps.optimizers.optimizer import Optimizer, Update
from ....ps.optimizers.registry import OPTIMIZERS, parse_optimizer
from ....ps.slices.slice_state import SliceState
from ....ps.slices.slicing import slice_parameters
from ..bench_table import BenchTable, Column, format_rate

ELEMENTS = 25_000_000  # 100 MB of float32
ROUNDS = 7
LR = 1e-6  # small, so that however many updates keep the values where they are
NAMES = (*OPTIMIZERS, "sgd:momentum=0.9", "sgd:momentum=0.9,nesterov=true", "adagrad/tau")


@dataclass(frozen=True)
class OptimizerRates:
    """Bytes of gradient per second in each round: of the optimizer alone, of a push with its checks, and of memcpy."""

    optimizer: str
    alone: tuple[float, ...]
    pushed: tuple[float, ...]
    memcpy: tuple[float, ...]

    @property
    def rate(self) -> float:
        """The median rate of the optimizer alone, in bytes/s."""
        return statistics.median(self.alone)

    @property
    def push_rate(self) -> float:
        """The median rate of pushes, in bytes/s."""
        return statistics.median(self.pushed)

    @property
    def of_memcpy(self) -> float:
        """The median ratio of the optimizer alone to memcpy in the same round."""
        return statistics.median(rate / copy for rate, copy in zip(self.alone, self.memcpy, strict=True))

    @property
    def push_of_memcpy(self) -> float:
        """The median ratio of pushes to memcpy in the same round."""
        return statistics.median(rate / copy for rate, copy in zip(self.pushed, self.memcpy, strict=True))


COLUMNS: tuple[Column[OptimizerRates], ...] = (
    Column("optimizer", "optimizer", align="left"),
    Column("alone", "rate", format_rate),
    Column("of memcpy", "of_memcpy", "{:.2f}".format),
    Column("push", "push_rate", format_rate),
    Column("of memcpy", "push_of_memcpy", "{:.2f}".format),
    *(Column("", key) for key in ("alone", "pushed", "memcpy")),
)


def tabulate(rows: Sequence[OptimizerRates]) -> BenchTable[OptimizerRates]:
    """Return the table of medians, and of their ratios to memcpy in the same round."""
    return BenchTable(COLUMNS, rows)


def measure(*, names: Sequence[str] = NAMES, elements: int = ELEMENTS, rounds: int = ROUNDS) -> list[OptimizerRates]:
    """Time each optimizer. Torch keeps the number of threads that it had."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        generator = torch.Generator().manual_seed(0)
        value, gradient = (torch.randn(elements, generator=generator) for _ in range(2))
        return [_time_optimizer(name, value, gradient, rounds) for name in names]
    finally:
        torch.set_num_threads(threads)


def _time_optimizer(name: str, value: Tensor, gradient: Tensor, rounds: int) -> OptimizerRates:
    optimizer = parse_optimizer(name, LR)
    slices = _make_slices(optimizer, value.clone())
    gradients = [gradient[one.slice.start : one.slice.stop] for one in slices]
    target = torch.empty_like(gradient)

    def apply_alone() -> None:
        for one, part in zip(slices, gradients, strict=True):
            optimizer.apply(one.value, part, one.state, _next_update(one))

    def push() -> None:
        for one, part in zip(slices, gradients, strict=True):
            one.apply(optimizer, part, _next_update(one), worker="worker-0.0", step=one.version)

    works: list[Callable[[], object]] = [apply_alone, push, lambda: target.copy_(gradient)]
    rates: list[list[float]] = [[], [], []]
    for number in range(-1, rounds):  # the first round is a warm-up, in which memory is allocated
        for rate, work in zip(rates, works, strict=True):
            begin = time.perf_counter()
            work()
            if number >= 0:
                rate.append(gradient.nbytes / (time.perf_counter() - begin))
    return OptimizerRates(name, *map(tuple, rates))


def _make_slices(optimizer: Optimizer, value: Tensor) -> list[SliceState]:
    """Return the slices as a shard holds them after a replica has fetched."""
    parts = [(piece, value[piece.start : piece.stop]) for piece in slice_parameters([value.numel()], 1)]
    slices = [SliceState(piece, part, optimizer.init_state(part)) for piece, part in parts]
    for one in slices:
        optimizer.on_fetch(one.value, one.state, 0)
    return slices


def _next_update(state: SliceState) -> Update:
    return Update(state.version + 1, tau=1)
