"""What every solver is made of: the objective, the batches of operations a solver requests, and what it reports.

A solver is a generator that never sees a vector. It yields batches of operations (vector_ops.py) and is sent their
scalars; it yields an `Iteration` after each iteration; and it returns the reason why it stops. So the same solver runs
over vectors in this process and over shards, and whoever records the scalars can replay it up to any point.
"""

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass

import msgspec

from ...errors import Diverged
from .vector_ops import AnyOperation, Axpy, Batch, Combine, Dot, Evaluate, L1Norm

TRIAL = "trial"  # the vector of the point that a line search tries


class Iteration(msgspec.Struct, frozen=True):
    """The result of one iteration.

    gradient: the largest absolute element of the gradient, or of the pseudo-gradient if there is an l1 penalty.
    evaluations: evaluations of loss and gradient since the beginning of the run, this iteration's included.
    """

    number: int
    loss: float
    gradient: float
    step: float
    evaluations: int


@dataclass(frozen=True)
class Portions:
    """The samples, cut into portions of `size` samples each; the last portion has the rest."""

    samples: int
    size: int

    @property
    def count(self) -> int:
        """The number of portions."""
        return -(-self.samples // self.size)

    def count_samples(self, first: int, last: int) -> int:
        """Return the number of samples in portions [first, last)."""
        return min(last * self.size, self.samples) - first * self.size


@dataclass(frozen=True)
class SampleSet:
    """The portions that an iteration looks at, as ranges [first, last): S_k of multi-batch L-BFGS.

    overlap_before: so many of the first ranges are the last ranges of the iteration before (O_k-1). overlap_after: so
    many of the last ranges are the first ranges of the next iteration (O_k). The change of the gradient is measured on
    these ranges alone.
    """

    ranges: tuple[tuple[int, int], ...]
    overlap_before: int = 0
    overlap_after: int = 0


SolverRun = Generator[Batch | Iteration, list[float], str]
DirectionSteps = Generator[Batch, list[float], list[AnyOperation]]


@dataclass
class Objective:
    """The mean loss of the samples plus the penalties l1 |x| and l2 / 2 x^2.

    evaluations: how often loss and gradient were requested so far.
    """

    portions: Portions
    l1: float = 0.0
    l2: float = 0.0
    evaluations: int = 0

    @property
    def all_samples(self) -> SampleSet:
        """The set of all samples."""
        return SampleSet(((0, self.portions.count),))

    def request_evaluation(self, at: str, out: str, samples: SampleSet) -> list[AnyOperation]:
        """Return the operations for the loss at vector `at` and, as `out`, the gradient of its smooth part."""
        self.evaluations += 1
        operations: list[AnyOperation] = []
        if len(samples.ranges) == 1:
            operations.append(Evaluate(at, out, *samples.ranges[0]))
        else:
            parts = [f"{out}.{n}" for n in range(len(samples.ranges))]
            operations += [Evaluate(at, part, *ends) for part, ends in zip(parts, samples.ranges, strict=True)]
            operations.append(Combine(out, list(zip(self.weigh_ranges(samples.ranges), parts, strict=True))))
        if self.l2:
            operations += [Axpy(out, self.l2, at), Dot(at, at)]
        return operations + ([L1Norm(at)] if self.l1 else [])

    def read_loss(self, answers: list[float], samples: SampleSet) -> tuple[float, list[float]]:
        """Return the loss with its penalties, and the scalars of the operations that followed the evaluation."""
        count = len(samples.ranges)
        losses, rest = answers[:count], answers[count:]
        loss = losses[0]
        if count > 1:
            loss = math.fsum(w * f for w, f in zip(self.weigh_ranges(samples.ranges), losses, strict=True))
        if self.l2:
            loss, rest = loss + self.l2 / 2 * rest[0], rest[1:]
        return (loss + self.l1 * rest[0], rest[1:]) if self.l1 else (loss, rest)

    def weigh_ranges(self, ranges: Sequence[tuple[int, int]]) -> list[float]:
        """Return the fraction of the samples of all ranges that each range has."""
        sizes = [self.portions.count_samples(*part) for part in ranges]
        return [size / sum(sizes) for size in sizes]


def demand_finite_start(loss: float, gradient: float) -> None:
    """Raise Diverged unless loss and gradient at the first point are finite."""
    if math.isfinite(loss) and math.isfinite(gradient):
        return
    facts = f"the loss at the first point is {loss}, the largest element of its gradient {gradient}"
    raise Diverged("E705", facts, fix="check the data and the first weights; another --seed, or --init FILE")


def demand_finite_slope(slope: float, iteration: int) -> None:
    """Raise Diverged unless the slope along the direction of an iteration is finite."""
    if math.isfinite(slope):
        return
    facts = f"the slope of the loss is {slope} where iteration {iteration} begins: loss or gradient ceased to be finite"
    raise Diverged("E706", facts, fix="a smaller first step: --method sandblaster:step=0.1, or an l2")
