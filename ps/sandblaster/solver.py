"""What every solver is made of: the objective, the batches of operations a solver requests, and what it reports.

A solver is a generator that never sees a vector. It yields batches of operations (vector_ops.py) and is sent their
scalars; it yields an `Iteration` after each iteration; and it returns the reason why it stops. So the same solver runs
over vectors in this process and over shards, and whoever records the scalars can replay it up to any point.
"""

import math
import sys
from collections.abc import Generator, Sequence
from dataclasses import dataclass

import msgspec

from ...errors import Diverged
from .vector_ops import AnyOperation, Axpy, Batch, Combine, Dot, Evaluate, L1Norm

TRIAL = "trial"  # the vector of the point that a line search tries
VECTOR_FREE, TWO_LOOP = "vector-free", "two-loop"
SKIP, DAMP = "skip", "damp"
LOSS_ROUNDING = sys.float_info.epsilon  # relative; a loss that changes by less does not visibly change
# A pair whose s and y have less of a cosine is rounding: where the condition number of the Hessian is κ, the cosine is
# at least 2 √κ / (κ + 1), which is below this from κ = 4e20 on.
MIN_COSINE = 1e-10


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


@dataclass(frozen=True)
class EvaluatedPoint:
    """The loss at a point, the name of its gradient, the max norm and the l1 norm of what leads downhill.

    largest: the largest absolute element of the point itself.
    """

    loss: float
    gradient: str
    max_norm: float
    l1_norm: float
    largest: float


@dataclass(frozen=True)
class AcceptedStep:
    """A step that was taken: the name of its vector, its length, its max norm, and the point where it leads."""

    name: str
    length: float
    max_norm: float
    end: EvaluatedPoint


@dataclass(frozen=True)
class SolverOptions:
    """How a solver proceeds and when it stops. Everything is relative: a multiple of the loss takes the same path.

    max_iterations, max_evaluations: limits; 0 evaluations for no limit. initial_step: factor of the first step of each
    search. c1, c2: of the strong Wolfe conditions. max_search: evaluations of one line search. tolerance_grad: it stops
    where no element of the gradient, times the largest parameter or 1, is a larger fraction of the loss.
    tolerance_change: it stops where the loss, or the largest parameter, changes by no larger fraction. history_size,
    form: see `LbfgsHistory`. curvature: what happens to a pair without positive curvature, `SKIP` or `DAMP` (by
    Powell).
    """

    max_iterations: int = 20
    max_evaluations: int = 0
    initial_step: float = 1.0
    c1: float = 1e-4
    c2: float = 0.9
    max_search: int = 25
    tolerance_grad: float = 1e-10
    tolerance_change: float = 1e-14
    history_size: int = 10
    form: str = VECTOR_FREE
    curvature: str = SKIP

    def limit_search(self, spent: int) -> int:
        """Return how many evaluations one search may take; the last one may take one too many, as in torch."""
        return min(self.max_search, self.max_evaluations - spent + 1) if self.max_evaluations else self.max_search

    def may_search_again(self, spent: int) -> bool:
        """Return whether the gradient is tried where L-BFGS found no step along the direction of its memory."""
        return not self.max_evaluations or spent < self.max_evaluations

    def choose_length(self, l1_norm: float, *, is_first: bool, has_memory: bool) -> float:
        """Return the first step of a search; without memory, all parameters together move by `initial_step`."""
        return self.initial_step if has_memory else self.initial_step / max(l1_norm, sys.float_info.min)

    def find_stop_reason(self, iteration: Iteration, step: AcceptedStep, loss_change: float) -> str:
        """Return why there is no next iteration, or "" if there is one."""
        if iteration.number == self.max_iterations:
            return f"reached the limit of {self.max_iterations} iterations"
        if self.max_evaluations and iteration.evaluations >= self.max_evaluations:
            return f"reached the limit of {self.max_evaluations} evaluations"
        return self.find_flatness(step.end) or self.find_standstill(step, loss_change)

    def find_flatness(self, point: EvaluatedPoint) -> str:
        """Return in words that the gradient at a point is small, or "" if it is not.

        With f* = f(x*), a convex f has f(x) - f* ≤ ∇f(x) · (x - x*) ≤ max |∇f(x)| · Σ |x - x*|, and parameters have
        about as far to go as they are large.
        """
        if _is_fraction(point.max_norm * max(1.0, point.largest), self.tolerance_grad, point.loss):
            return f"converged: no element of the gradient is above {self.tolerance_grad:g} of the loss"
        return ""

    def find_standstill(self, step: AcceptedStep, loss_change: float) -> str:
        """Return in words that a step has changed too little, or "" if it has not."""
        if _is_fraction(step.max_norm, self.tolerance_change, step.end.largest):
            return f"converged: no parameter moves by more than {self.tolerance_change:g} of the largest"
        if _is_fraction(loss_change, self.min_fall, step.end.loss):
            return f"converged: the loss changes by no more than {self.min_fall:.3g} of itself"
        return ""

    def find_flat_direction(self, loss: float, slope: float, length: float) -> str:
        """Return in words that a step of this length lowers the loss too little, or "" if it does not."""
        if _is_fraction(-slope * length, self.min_fall, loss):
            return f"converged: along the direction the loss falls by no more than {self.min_fall:.3g} of itself"
        return ""

    @property
    def min_fall(self) -> float:
        """The fraction of the loss by which it must fall."""
        return max(self.tolerance_change, LOSS_ROUNDING)

    def limit_bracket(self, loss: float, slope: float, largest: float) -> tuple[float, float]:
        """Return `rate` and `min_change` of a search (line_search.py) along a direction with this largest element."""
        return -slope, self.min_fall * abs(loss)

    def accepts_pair(self, product: float, step_square: float, change_square: float) -> bool:
        """Return whether a pair, given sᵀ y, sᵀ s and yᵀ y, tells of a positive curvature."""
        return product > MIN_COSINE * math.sqrt(step_square) * math.sqrt(change_square)


@dataclass(frozen=True)
class TorchOptions(SolverOptions):
    """The options of torch.optim.LBFGS: L-BFGS takes its steps and ends where it does. All tolerances are absolute."""

    tolerance_grad: float = 1e-7
    tolerance_change: float = 1e-9

    def may_search_again(self, spent: int) -> bool:
        return False

    def choose_length(self, l1_norm: float, *, is_first: bool, has_memory: bool) -> float:
        return min(1.0, 1.0 / l1_norm) * self.initial_step if is_first else self.initial_step

    def find_flatness(self, point: EvaluatedPoint) -> str:
        if point.max_norm > self.tolerance_grad:
            return ""
        return f"converged: no element of the gradient is above {self.tolerance_grad:g}"

    def find_standstill(self, step: AcceptedStep, loss_change: float) -> str:
        if step.max_norm <= self.tolerance_change:
            return f"converged: no parameter moves by more than {self.tolerance_change:g}"
        if loss_change < self.tolerance_change:
            return f"converged: the loss changes by less than {self.tolerance_change:g}"
        return ""

    def find_flat_direction(self, loss: float, slope: float, length: float) -> str:
        if slope <= -self.tolerance_change:
            return ""
        return f"converged: along the direction the loss falls by less than {self.tolerance_change:g}"

    def limit_bracket(self, loss: float, slope: float, largest: float) -> tuple[float, float]:
        return largest, self.tolerance_change

    def accepts_pair(self, product: float, step_square: float, change_square: float) -> bool:
        return product > 1e-10


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


def _is_fraction(amount: float, fraction: float, whole: float) -> bool:
    """Return whether an amount is at most this fraction of a whole; it is of none that is not finite."""
    return amount <= fraction * abs(whole) < math.inf


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
