"""The parts of every batch method: what is minimised, what a method asks for, and what it tells.

A method is a generator that never sees a vector. It yields batches of operations (vector_operations.py) and is sent
their numbers; it yields an `Iteration` after each; and it returns why it ends. So the same method runs over vectors in
this process and over shards, and whoever keeps the numbers can run it again up to where it was.
"""

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass

import msgspec

from ...errors import Diverged
from .vector_ops import Absolute, AnyOperation, Axpy, Batch, Combine, Dot, Evaluate

TRIAL = "trial"


class Iteration(msgspec.Struct, frozen=True):
    """What one iteration came to. gradient: the largest absolute element of the gradient, of the pseudo-gradient where
    there is an l1. evaluations: of loss and gradient since the beginning, this iteration's included."""

    number: int
    loss: float
    gradient: float
    step: float
    evaluations: int


@dataclass(frozen=True)
class Portions:
    """The samples, cut into portions: all have `size`, but for the last, which has the rest."""

    samples: int
    size: int

    @property
    def count(self) -> int:
        """How many there are."""
        return -(-self.samples // self.size)

    def within(self, first: int, last: int) -> int:
        """Samples of portions [first, last)."""
        return min(last * self.size, self.samples) - first * self.size


@dataclass(frozen=True)
class Sample:
    """The portions that an iteration looks at, in ranges [first, last).

    shared: the first ranges, so many, are the last ones of the iteration before; ahead: the last ones, so many, are the
    first of the next. On those alone the change of the gradient is measured.
    """

    ranges: tuple[tuple[int, int], ...]
    shared: int = 0
    ahead: int = 0


Steps = Generator[Batch | Iteration, list[float], str]
Asking = Generator[Batch, list[float], list[AnyOperation]]


@dataclass
class Objective:
    """The mean loss of the samples, with penalties l1 |x| and l2 / 2 x^2. evaluations: so far."""

    portions: Portions
    l1: float = 0.0
    l2: float = 0.0
    evaluations: int = 0

    @property
    def everything(self) -> Sample:
        """All samples."""
        return Sample(((0, self.portions.count),))

    def asks(self, at: str, out: str, sample: Sample) -> list[AnyOperation]:
        """What gives the loss at a vector, and as `out` the gradient of its smooth part."""
        self.evaluations += 1
        found: list[AnyOperation] = []
        if len(sample.ranges) == 1:
            found.append(Evaluate(at, out, *sample.ranges[0]))
        else:
            parts = [f"{out}.{n}" for n in range(len(sample.ranges))]
            found += [Evaluate(at, part, *ends) for part, ends in zip(parts, sample.ranges, strict=True)]
            found.append(Combine(out, list(zip(self.weights(sample.ranges), parts, strict=True))))
        if self.l2:
            found += [Axpy(out, self.l2, at), Dot(at, at)]
        return found + ([Absolute(at)] if self.l1 else [])

    def reads(self, answers: list[float], sample: Sample) -> tuple[float, list[float]]:
        """The loss with its penalties, and the numbers of what was asked for after that."""
        count = len(sample.ranges)
        losses, rest = answers[:count], answers[count:]
        loss = losses[0]
        if count > 1:
            loss = math.fsum(w * f for w, f in zip(self.weights(sample.ranges), losses, strict=True))
        if self.l2:
            loss, rest = loss + self.l2 / 2 * rest[0], rest[1:]
        return (loss + self.l1 * rest[0], rest[1:]) if self.l1 else (loss, rest)

    def weights(self, ranges: Sequence[tuple[int, int]]) -> list[float]:
        """The part of all their samples that each range has."""
        sizes = [self.portions.within(*part) for part in ranges]
        return [size / sum(sizes) for size in sizes]


def demand_finite_start(loss: float, gradient: float) -> None:
    """Diverged where there is nothing to begin with."""
    if math.isfinite(loss) and math.isfinite(gradient):
        return
    facts = f"the loss at the first point is {loss}, the largest element of its gradient {gradient}"
    raise Diverged("E705", facts, fix="check the data and the first weights; another --seed, or --init FILE")


def demand_finite_slope(slope: float, iteration: int) -> None:
    """Diverged where no way leads on."""
    if math.isfinite(slope):
        return
    facts = f"the slope of the loss is {slope} where iteration {iteration} begins: loss or gradient ceased to be finite"
    raise Diverged("E706", facts, fix="a smaller first step: --method sandblaster:step=0.1, or an l2")
