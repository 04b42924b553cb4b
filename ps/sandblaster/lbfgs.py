"""L-BFGS with a strong Wolfe line search, point by point as torch.optim.LBFGS does it.

Nocedal and Wright, "Numerical Optimization", 2nd edition, 2006, algorithm 7.5. If the samples change from one iteration
to the next, the change of the gradient is measured on what two iterations have in common: Berahas, Nocedal and Takac,
"A Multi-Batch L-BFGS Method for Machine Learning", NIPS 2016.
"""

from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass

from .lbfgs_history import MIN_CURVATURE, VECTOR_FREE, HistoryPair, LbfgsHistory
from .line_search import LinePoint, LineSearch, strong_wolfe
from .solver import (
    TRIAL,
    DirectionSteps,
    Iteration,
    Objective,
    SampleSet,
    SolverRun,
    demand_finite_slope,
    demand_finite_start,
)
from .vector_ops import ITERATE, AnyOperation, Batch, Combine, Dot, Drop, L1Norm, MaxNorm

DIRECTION = "direction"
SKIP, DAMP = "skip", "damp"
POWELL_DAMPING = 0.2  # least fraction of the expected curvature; Nocedal and Wright, procedure 18.2


@dataclass(frozen=True)
class SolverOptions:
    """How a solver proceeds and when it stops.

    max_iterations, max_evaluations: limits; 0 evaluations for no limit. initial_step: the first step of each search.
    c1, c2: of the strong Wolfe conditions. max_search: evaluations of one line search. tolerance_grad: it stops where
    no element of the gradient is larger. tolerance_change: it stops where no parameter moves, or the loss changes, by
    more. history_size, form: see `LbfgsHistory`. curvature: what happens to a pair without positive curvature, `SKIP`
    or `DAMP` (by Powell).
    """

    max_iterations: int = 20
    max_evaluations: int = 0
    initial_step: float = 1.0
    c1: float = 1e-4
    c2: float = 0.9
    max_search: int = 25
    tolerance_grad: float = 1e-7
    tolerance_change: float = 1e-9
    history_size: int = 10
    form: str = VECTOR_FREE
    curvature: str = SKIP

    def limit_search(self, spent: int) -> int:
        """Return how many evaluations one search may take; the last one may take one too many, as in torch."""
        return min(self.max_search, self.max_evaluations - spent + 1) if self.max_evaluations else self.max_search

    def find_stop_reason(self, iteration: Iteration, largest_move: float, loss_change: float) -> str:
        """Return why there is no next iteration, or "" if there is one.

        largest_move: the largest absolute element of the step.
        """
        if iteration.number == self.max_iterations:
            return f"reached the limit of {self.max_iterations} iterations"
        if self.max_evaluations and iteration.evaluations >= self.max_evaluations:
            return f"reached the limit of {self.max_evaluations} evaluations"
        if iteration.gradient <= self.tolerance_grad:
            return f"converged: no element of the gradient is above {self.tolerance_grad:g}"
        if largest_move <= self.tolerance_change:
            return f"converged: no parameter moves by more than {self.tolerance_change:g}"
        if loss_change < self.tolerance_change:
            return f"converged: the loss changes by less than {self.tolerance_change:g}"
        return ""


SampleSchedule = Callable[[int], SampleSet]  # from the number of an iteration, from 1, to its samples
EvaluationSteps = Generator[Batch, list[float], "EvaluatedPoint"]


@dataclass(frozen=True)
class EvaluatedPoint:
    """The loss at a point, the name of its gradient, and the max norm and the l1 norm of what leads downhill."""

    loss: float
    gradient: str
    max_norm: float
    l1_norm: float


@dataclass(frozen=True)
class AcceptedStep:
    """A step that was taken: the name of its vector, its length, its max norm, and the point where it leads."""

    name: str
    length: float
    max_norm: float
    end: EvaluatedPoint


class Lbfgs:
    """One run of L-BFGS. schedule: the samples that each iteration looks at, by default all."""

    factor = -1.0  # times the base vector leads downhill; the base vector is the gradient

    def __init__(self, objective: Objective, options: SolverOptions, schedule: SampleSchedule | None = None) -> None:
        self._objective, self._options = objective, options
        self._schedule: SampleSchedule = schedule or (lambda iteration: objective.all_samples)
        self._samples = self._schedule(1)
        self._history = LbfgsHistory(options.history_size, options.form)
        self._gradients = 0  # evaluated so far; the next one is named by it

    def run(self) -> SolverRun:
        """Minimise the objective; see solver.py for what the generator yields and is sent."""
        options, number = self._options, 0
        point = yield from self._evaluate(ITERATE)
        demand_finite_start(point.loss, point.max_norm)
        if point.max_norm <= options.tolerance_grad:
            return f"converged at once: no element of the gradient is above {options.tolerance_grad:g}"
        length = min(1.0, 1.0 / point.l1_norm) * options.initial_step
        while True:
            number += 1
            # "compute p_k ← -H_k ∇f_k from algorithm 7.4"
            slope, largest = yield from self._choose_direction(point)
            if not slope < 0 and self._history.pairs:  # no descent: what is remembered does not hold here
                yield self._history.clear()
                slope, largest = yield from self._choose_direction(point)
            demand_finite_slope(slope, number)
            if not slope <= -options.tolerance_change:
                return f"converged: along the direction the loss falls by less than {options.tolerance_change:g}"
            # "compute x_k+1 ← x_k + α_k p_k, where α_k is chosen to satisfy the Wolfe conditions"
            step = yield from self._search_line(point, slope, length, largest, number)
            if step is None:
                return "stopped: the line search found no step that lowers the loss"
            loss_change, length = abs(step.end.loss - point.loss), options.initial_step
            evaluations = self._objective.evaluations
            iteration = Iteration(number, step.end.loss, step.end.max_norm, step.length, evaluations)
            yield iteration
            reason = options.find_stop_reason(iteration, step.max_norm, loss_change)
            if reason:
                return reason
            # "if k > m: discard {s_k-m, y_k-m}; compute and save s_k ← x_k+1 - x_k, y_k ← ∇f_k+1 - ∇f_k"
            point = yield from self._update_history(point, step, number)

    def _evaluate(self, at: str) -> EvaluationSteps:
        """Evaluate a point on the samples of the present iteration."""
        gradient = self._name_gradient()
        request = self._objective.request_evaluation(at, gradient, self._samples)
        answers = yield [*request, *self._measure_descent(at, gradient)]
        loss, (max_norm, l1_norm) = self._objective.read_loss(answers, self._samples)
        return EvaluatedPoint(loss, gradient, max_norm, l1_norm)

    def _measure_descent(self, at: str, gradient: str) -> list[AnyOperation]:
        """Return the operations for the max norm and the l1 norm of what leads downhill."""
        return [MaxNorm(gradient), L1Norm(gradient)]

    def _name_gradient(self) -> str:
        self._gradients += 1
        return f"gradient-{self._gradients}"

    def _choose_direction(self, point: EvaluatedPoint) -> Generator[Batch, list[float], tuple[float, float]]:
        """Make DIRECTION; return the slope of the loss along it, and its max norm."""
        operations = yield from self._history.make_direction(DIRECTION, self.factor, self._base(point))
        batch = [*self._constrain_direction(operations), Dot(self._base(point), DIRECTION), MaxNorm(DIRECTION)]
        slope, largest = yield batch
        return -self.factor * slope, largest

    def _base(self, point: EvaluatedPoint) -> str:
        """Return the name of the vector that, times `factor`, leads downhill."""
        return point.gradient

    def _constrain_direction(self, operations: list[AnyOperation]) -> list[AnyOperation]:
        """Return the operations that make DIRECTION, given those that make it without constraints."""
        return operations

    def _start_search(self, start: LinePoint, length: float, largest: float, max_evaluations: int) -> LineSearch:
        c1, c2, min_move = self._options.c1, self._options.c2, self._options.tolerance_change
        return strong_wolfe(start, length, largest, c1=c1, c2=c2, min_move=min_move, max_evaluations=max_evaluations)

    def _make_trial(self, length: float) -> list[AnyOperation]:
        """Return the operations that make TRIAL the point at this length along the direction."""
        return [Combine(TRIAL, [(1.0, ITERATE), (length, DIRECTION)])]

    def _measure_slope(self, gradient: str) -> list[AnyOperation]:
        """Return the operation for the slope along the direction at TRIAL."""
        return [Dot(gradient, DIRECTION)]

    def _search_line(
        self, point: EvaluatedPoint, slope: float, length: float, largest: float, number: int
    ) -> Generator[Batch, list[float], AcceptedStep | None]:
        """Search along the direction and take the step that was found; return None if none lowers the loss."""
        limit = self._options.limit_search(self._objective.evaluations)
        search = self._start_search(LinePoint(0.0, point.loss, slope, 0), length, largest, limit)
        trial, gradients, end, evaluations = next(search), dict[int, str](), None, 0
        while end is None:
            evaluations += 1
            unused = [gradients.pop(n) for n in list(gradients) if n not in trial.kept]
            gradient = gradients[evaluations] = self._name_gradient()
            batch = [*self._drop(unused), *self._make_trial(trial.step)]
            batch += self._objective.request_evaluation(TRIAL, gradient, self._samples)
            batch += self._measure_slope(gradient)
            loss, (slope,) = self._objective.read_loss((yield batch), self._samples)
            try:
                trial = search.send((loss, slope))
            except StopIteration as stop:
                end = stop.value
        return (yield from self._move_to(end, gradients, number))

    def _move_to(
        self, end: LinePoint, gradients: dict[int, str], number: int
    ) -> Generator[Batch, list[float], AcceptedStep | None]:
        """Take the step to the end of a search, unless that is where it began, and drop all other gradients."""
        gradient = gradients.pop(end.number, None)
        batch = self._drop(gradients.values())
        if gradient is None:
            if batch:
                yield batch
            return None
        name = f"step-{number}"
        batch += [*self._take_step(name, end.step), MaxNorm(name), *self._measure_descent(ITERATE, gradient)]
        largest_move, max_norm, l1_norm = yield batch
        return AcceptedStep(name, end.step, largest_move, EvaluatedPoint(end.loss, gradient, max_norm, l1_norm))

    def _take_step(self, name: str, length: float) -> list[AnyOperation]:
        """Return the operations that move ITERATE by this length along the direction, and keep the step as `name`."""
        step = Combine(name, [(length, DIRECTION)])
        return [step, *self._make_trial(length), Combine(ITERATE, [(1.0, TRIAL)])]

    def _update_history(self, point: EvaluatedPoint, step: AcceptedStep, number: int) -> EvaluationSteps:
        """Remember what the step has shown of the curvature; return the point where the next iteration begins."""
        before, after = self._samples, self._schedule(number + 1)
        start, old, new = step.end, point.gradient, step.end.gradient
        change: list[tuple[float, str]] | None = [(1.0, new), (-1.0, old)]
        if after != before:
            self._samples = after
            start = yield from self._evaluate(ITERATE)
            change = self._change_on_overlap(before, after, old, start.gradient, step.name)
        if change is None:
            yield [Drop([step.name]), *self._drop([old, new], before)]
            return start
        batch = yield from self._add_pair(f"change-{number}", change, step.name)
        unused = {old, new} - {start.gradient}
        yield [*batch, *self._drop(sorted(unused), before)]
        return start

    def _change_on_overlap(
        self, before: SampleSet, after: SampleSet, old: str, new: str, step: str
    ) -> list[tuple[float, str]] | None:
        """Return y = ∇F_O(x_k+1) - ∇F_O(x_k) on the overlap O of two sample sets, as terms; None without an overlap."""
        overlap = before.ranges[len(before.ranges) - before.overlap_after :]
        if not overlap or overlap != after.ranges[: after.overlap_before]:
            return None
        terms = [(self._objective.l2, step)] if self._objective.l2 else []  # gradients of ranges are without it
        for n, weight in enumerate(self._objective.weigh_ranges(overlap)):
            at = len(before.ranges) - before.overlap_after + n
            terms += [(weight, f"{new}.{n}"), (-weight, f"{old}.{at}")]
        return terms

    def _add_pair(self, name: str, change: list[tuple[float, str]], step: str) -> DirectionSteps:
        """Make the change of the gradient and add the pair; return the operations that are left to do."""
        product, square, length = yield [Combine(name, change), Dot(name, step), Dot(name, name), Dot(step, step)]
        # Powell's damping, with B = I / γ: "θ = 1 if sᵀy ≥ 0.2 sᵀBs, else 0.8 sᵀBs / (sᵀBs - sᵀy)"
        expected = length / self._history.scale
        if self._options.curvature == DAMP and product < POWELL_DAMPING * expected:
            theta = (1 - POWELL_DAMPING) * expected / (expected - product)
            # "r = θ y + (1 - θ) B s" takes the place of y.
            damped = [(theta, name), ((1 - theta) / self._history.scale, step)]
            product, square = yield [Combine(name, damped), Dot(name, step), Dot(name, name)]
        if product > MIN_CURVATURE:
            return self._history.add(HistoryPair(step, name, product), square)
        return [Drop([step, name])]

    def _drop(self, gradients: Iterable[str], samples: SampleSet | None = None) -> list[AnyOperation]:
        """Return the operation that drops gradients and the gradients of ranges that they are made of."""
        parts = len((samples or self._samples).ranges)
        names = [one for g in gradients for one in (g, *(f"{g}.{n}" for n in range(parts if parts > 1 else 0)))]
        return [Drop(names)] if names else []
