"""L-BFGS with a strong Wolfe line search, which takes the same path whatever the loss is multiplied by.

`TorchOptions` (solver.py) make its path that of torch.optim.LBFGS, point by point.
Nocedal and Wright, "Numerical Optimization", 2nd edition, 2006, algorithm 7.5. If the samples change from one iteration
to the next, the change of the gradient is measured on what two iterations have in common: Berahas, Nocedal and Takac,
"A Multi-Batch L-BFGS Method for Machine Learning", NIPS 2016.
"""

from collections.abc import Callable, Generator, Iterable

from .lbfgs_history import HistoryPair, LbfgsHistory
from .line_search import LinePoint, LineSearch, strong_wolfe
from .solver import (
    DAMP,
    TRIAL,
    AcceptedStep,
    DirectionSteps,
    EvaluatedPoint,
    Iteration,
    Objective,
    SampleSet,
    SolverOptions,
    SolverRun,
    demand_finite_slope,
    demand_finite_start,
)
from .vector_ops import ITERATE, AnyOperation, Batch, Combine, Dot, Drop, L1Norm, MaxNorm

DIRECTION = "direction"
POWELL_DAMPING = 0.2  # least fraction of the expected curvature; Nocedal and Wright, procedure 18.2


SampleSchedule = Callable[[int], SampleSet]  # from the number of an iteration, from 1, to its samples
EvaluationSteps = Generator[Batch, list[float], EvaluatedPoint]
DirectionChoice = Generator[Batch, list[float], tuple[float, float]]  # see `Lbfgs._choose_direction`


class Lbfgs:
    """One run of L-BFGS. schedule: the samples that each iteration looks at, by default all."""

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
        reason = options.find_flatness(point)
        if reason:
            return reason.replace("converged", "converged at once", 1)
        while True:
            # "compute p_k ← -H_k ∇f_k from algorithm 7.4"
            slope, largest = yield from self._choose_direction(point)
            if not slope < 0 and self._history.pairs:  # no descent: what is remembered does not hold here
                yield self._history.clear()
                continue
            demand_finite_slope(slope, number + 1)
            length = self._choose_length(point, slope)
            reason = options.find_flat_direction(point.loss, slope, length)
            if reason:
                return reason
            # "compute x_k+1 ← x_k + α_k p_k, where α_k is chosen to satisfy the Wolfe conditions"
            step = yield from self._search_line(point, slope, length, largest, number + 1)
            evaluations = self._objective.evaluations
            if step is None:
                if not self._history.pairs or not options.may_search_again(evaluations):
                    return "stopped: the line search found no step that lowers the loss"
                yield self._history.clear()
                continue
            number += 1
            iteration = Iteration(number, step.end.loss, step.end.max_norm, step.length, evaluations)
            yield iteration
            reason = options.find_stop_reason(iteration, step, abs(step.end.loss - point.loss))
            if reason:
                return reason
            # "if k > m: discard {s_k-m, y_k-m}; compute and save s_k ← x_k+1 - x_k, y_k ← ∇f_k+1 - ∇f_k"
            point = yield from self._update_history(point, step, number)

    def _evaluate(self, at: str) -> EvaluationSteps:
        """Evaluate a point on the samples of the present iteration."""
        gradient = self._name_gradient()
        request = self._objective.request_evaluation(at, gradient, self._samples)
        answers = yield [*request, *self._measure_descent(at, gradient)]
        loss, norms = self._objective.read_loss(answers, self._samples)
        return EvaluatedPoint(loss, gradient, *norms)

    def _measure_descent(self, at: str, gradient: str) -> list[AnyOperation]:
        """Return the operations for the norms of an `EvaluatedPoint`."""
        return [MaxNorm(gradient), L1Norm(gradient), MaxNorm(at)]

    def _name_gradient(self) -> str:
        self._gradients += 1
        return f"gradient-{self._gradients}"

    def _choose_direction(self, point: EvaluatedPoint) -> DirectionChoice:
        """Make DIRECTION; return the slope of the loss along it, and its max norm."""
        operations = yield from self._history.make_direction(DIRECTION, -1.0, point.gradient)
        slope, largest = yield [*operations, Dot(point.gradient, DIRECTION), MaxNorm(DIRECTION)]
        return slope, largest

    def _choose_length(self, point: EvaluatedPoint, slope: float) -> float:
        """Return the first step of the search along DIRECTION."""
        is_first, has_memory = self._gradients == 1, bool(self._history.pairs)
        return self._options.choose_length(point.l1_norm, is_first=is_first, has_memory=has_memory)

    def _start_search(self, start: LinePoint, length: float, largest: float, max_evaluations: int) -> LineSearch:
        c1, c2 = self._options.c1, self._options.c2
        rate, min_change = self._options.limit_bracket(start.loss, start.slope, largest)
        return strong_wolfe(start, length, rate, c1=c1, c2=c2, min_change=min_change, max_evaluations=max_evaluations)

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
        largest_move, *norms = yield batch
        return AcceptedStep(name, end.step, largest_move, EvaluatedPoint(end.loss, gradient, *norms))

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
        if self._options.accepts_pair(product, length, square):
            return self._history.add(HistoryPair(step, name, product), square)
        return [Drop([step, name])]

    def _drop(self, gradients: Iterable[str], samples: SampleSet | None = None) -> list[AnyOperation]:
        """Return the operation that drops gradients and the gradients of ranges that they are made of."""
        parts = len((samples or self._samples).ranges)
        names = [one for g in gradients for one in (g, *(f"{g}.{n}" for n in range(parts if parts > 1 else 0)))]
        return [Drop(names)] if names else []
