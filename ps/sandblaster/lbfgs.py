"""L-BFGS with a strong Wolfe search, step by step as torch.optim.LBFGS takes it.

Samples that change from one iteration to the next: Berahas, Nocedal and Takac, "A Multi-Batch L-BFGS Method for Machine
Learning", 2016: the change of the gradient is measured on what two iterations have in common.
"""

from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass

from .lbfgs_history import FREE, LEAST, Curvature, Pair
from .line_search import Point, Search, strong_wolfe
from .solver import TRIAL, Iteration, Objective, Sample, Steps, demand_finite_slope, demand_finite_start
from .vector_ops import AT, Absolute, AnyOperation, Batch, Combine, Dot, Drop, Largest

DIRECTION = "direction"
SKIP, DAMP = "skip", "damp"
DAMPED = 0.2  # of the curvature that is expected, by Powell; Nocedal and Wright, procedure 18.2


@dataclass(frozen=True)
class Rules:
    """How it goes on and when it ends.

    iterations, evaluations: the most, 0 for any number of evaluations. rate: the first step of a search. c1, c2: of the
    Wolfe conditions. search: evaluations of a search, at most. least_gradient: it ends where no element of the gradient
    is larger; least_change: and where no element moves, or the loss changes, by more. history, form: see `Curvature`.
    curvature: what becomes of a pair that says nothing of it, "skip" or "damp".
    """

    iterations: int = 20
    evaluations: int = 0
    rate: float = 1.0
    c1: float = 1e-4
    c2: float = 0.9
    search: int = 25
    least_gradient: float = 1e-7
    least_change: float = 1e-9
    history: int = 10
    form: str = FREE
    curvature: str = SKIP

    def left(self, spent: int) -> int:
        """Evaluations that one search may take; with few left one more than those, as in torch.optim.LBFGS."""
        return min(self.search, self.evaluations - spent + 1) if self.evaluations else self.search

    def ends(self, iteration: Iteration, moved: float, changed: float) -> str:
        """Why there is no next iteration; "" where there is one. moved: the largest element of the step."""
        if iteration.number == self.iterations:
            return "as many iterations as were asked for"
        if self.evaluations and iteration.evaluations >= self.evaluations:
            return "as many evaluations as were allowed"
        if iteration.gradient <= self.least_gradient:
            return f"converged: no element of the gradient is above {self.least_gradient:g}"
        if moved <= self.least_change:
            return f"converged: no parameter moves by more than {self.least_change:g}"
        if changed < self.least_change:
            return f"converged: the loss changes by less than {self.least_change:g}"
        return ""


Samples = Callable[[int], Sample]  # by iteration, from 1
Asked = Generator[Batch, list[float], "Measured"]


@dataclass(frozen=True)
class Measured:
    """A loss, the name of the gradient there, and the largest element and the absolute sum of what leads downhill."""

    loss: float
    gradient: str
    largest: float
    absolute: float


@dataclass(frozen=True)
class Taken:
    """A step: its name and length, the largest element that it moves, and the measure of where it leads."""

    name: str
    length: float
    moved: float
    to: Measured


class Lbfgs:
    """One run of it. samples: what each iteration looks at; everything, if nothing is said."""

    factor = -1.0  # times the gradient: where it goes without any memory

    def __init__(self, objective: Objective, rules: Rules, samples: Samples | None = None) -> None:
        self._objective, self._rules = objective, rules
        self._samples: Samples = samples or (lambda iteration: objective.everything)
        self._sample = self._samples(1)
        self._curvature = Curvature(rules.history, rules.form)
        self._count = 0  # gradients so far, by which they are named

    def steps(self) -> Steps:
        """See minimiser.py."""
        rules, number, changed = self._rules, 0, 0.0
        here = yield from self._measured(AT)
        demand_finite_start(here.loss, here.largest)
        if here.largest <= rules.least_gradient:
            return f"converged at once: no element of the gradient is above {rules.least_gradient:g}"
        length = min(1.0, 1.0 / here.absolute) * rules.rate
        while True:
            number += 1
            slope, largest = yield from self._directed(here)
            if not slope < 0 and self._curvature.pairs:  # no way down: what is remembered does not hold here
                yield self._curvature.forget()
                slope, largest = yield from self._directed(here)
            demand_finite_slope(slope, number)
            if not slope <= -rules.least_change:
                return f"converged: along the direction the loss falls by less than {rules.least_change:g}"
            taken = yield from self._searched(here, slope, length, largest, number)
            if taken is None:
                return "it ends here: along the direction no step was found that lowers the loss"
            changed, there, length = abs(taken.to.loss - here.loss), taken.to, rules.rate
            told = Iteration(number, there.loss, there.largest, taken.length, self._objective.evaluations)
            yield told
            why = rules.ends(told, taken.moved, changed)
            if why:
                return why
            here = yield from self._remembered(here, taken, number)

    def _measured(self, at: str) -> Asked:
        """Evaluate a point."""
        gradient = self._next()
        answers = yield [*self._objective.asks(at, gradient, self._sample), *self._downhill(at, gradient)]
        loss, (largest, absolute) = self._objective.reads(answers, self._sample)
        return Measured(loss, gradient, largest, absolute)

    def _downhill(self, at: str, gradient: str) -> list[AnyOperation]:
        """What gives the largest element and the absolute sum of what leads downhill."""
        return [Largest(gradient), Absolute(gradient)]

    def _next(self) -> str:
        self._count += 1
        return f"gradient-{self._count}"

    def _directed(self, here: Measured) -> Generator[Batch, list[float], tuple[float, float]]:
        """Make the direction; the slope of the loss along it, and its largest element."""
        asks = yield from self._curvature.direction(DIRECTION, self.factor, self._base(here))
        slope, largest = yield [*self._made(asks), Dot(self._base(here), DIRECTION), Largest(DIRECTION)]
        return -self.factor * slope, largest

    def _base(self, here: Measured) -> str:
        """The vector that, times `factor`, leads downhill."""
        return here.gradient

    def _made(self, asks: list[AnyOperation]) -> list[AnyOperation]:
        """What makes DIRECTION, where this would."""
        return asks

    def _search(self, start: Point, length: float, largest: float, most: int) -> Search:
        rules = self._rules
        return strong_wolfe(start, length, largest, c1=rules.c1, c2=rules.c2, least=rules.least_change, most=most)

    def _tried(self, length: float) -> list[AnyOperation]:
        """What makes TRIAL the point so far along the direction."""
        return [Combine(TRIAL, [(1.0, AT), (length, DIRECTION)])]

    def _along(self, gradient: str) -> list[AnyOperation]:
        """What gives the slope at TRIAL, along the direction."""
        return [Dot(gradient, DIRECTION)]

    def _searched(
        self, here: Measured, slope: float, length: float, largest: float, number: int
    ) -> Generator[Batch, list[float], Taken | None]:
        """Search along the direction and go where that leads; None where it leads nowhere."""
        most = self._rules.left(self._objective.evaluations)
        search = self._search(Point(0.0, here.loss, slope, 0), length, largest, most)
        trial, gradients, found, tried = next(search), dict[int, str](), None, 0
        while found is None:
            tried += 1
            gone = [gradients.pop(n) for n in list(gradients) if n not in trial.kept]
            gradient = gradients[tried] = self._next()
            asks = [*self._dropped(gone), *self._tried(trial.step)]
            asks += [*self._objective.asks(TRIAL, gradient, self._sample), *self._along(gradient)]
            loss, (slope,) = self._objective.reads((yield asks), self._sample)
            try:
                trial = search.send((loss, slope))
            except StopIteration as stop:
                found = stop.value
        return (yield from self._gone(found, gradients, number))

    def _gone(
        self, point: Point, gradients: dict[int, str], number: int
    ) -> Generator[Batch, list[float], Taken | None]:
        """Go to the point that was found."""
        gradient = gradients.pop(point.number, None)
        asks = self._dropped(gradients.values())
        if gradient is None:
            if asks:
                yield asks
            return None
        name = f"step-{number}"
        asks += [*self._goes(name, point.step), Largest(name), *self._downhill(AT, gradient)]
        moved, largest, absolute = yield asks
        return Taken(name, point.step, moved, Measured(point.loss, gradient, largest, absolute))

    def _goes(self, name: str, length: float) -> list[AnyOperation]:
        """Go so far along the direction, and keep the step under this name."""
        return [Combine(name, [(length, DIRECTION)]), *self._tried(length), Combine(AT, [(1.0, TRIAL)])]

    def _remembered(self, here: Measured, taken: Taken, number: int) -> Asked:
        """Remember what the step has shown of the curvature; where the next iteration begins."""
        there, old, new = taken.to, here.gradient, taken.to.gradient
        before, after = self._sample, self._samples(number + 1)
        if after != before:
            self._sample = after
            there = yield from self._measured(AT)
        name, terms = f"change-{number}", [(1.0, new), (-1.0, old)]
        if after != before:
            common = before.ranges[len(before.ranges) - before.ahead :]
            if not common or common != after.ranges[: after.shared]:  # nothing to measure by
                yield [Drop([taken.name]), *self._dropped([here.gradient, taken.to.gradient], before)]
                return there
            terms = [(self._objective.l2, taken.name)] if self._objective.l2 else []  # the parts are without it
            for n, weight in enumerate(self._objective.weights(common)):
                at = len(before.ranges) - before.ahead + n
                terms += [(weight, f"{there.gradient}.{n}"), (-weight, f"{old}.{at}")]
        change = Combine(name, terms)
        product, square, length = yield [change, Dot(name, taken.name), Dot(name, name), Dot(taken.name, taken.name)]
        asks: list[AnyOperation] = []
        expected = length / self._curvature.scale
        if self._rules.curvature == DAMP and product < DAMPED * expected:
            share = (1 - DAMPED) * expected / (expected - product)
            mixed = [(share, name), ((1 - share) / self._curvature.scale, taken.name)]
            product, square = yield [Combine(name, mixed), Dot(name, taken.name), Dot(name, name)]
        if product > LEAST:
            asks += self._curvature.add(Pair(taken.name, name, product), square)
        else:
            asks.append(Drop([taken.name, name]))
        gone = {here.gradient, taken.to.gradient} - {there.gradient}
        yield [*asks, *self._dropped(sorted(gone), before)]
        return there

    def _dropped(self, gradients: Iterable[str], sample: Sample | None = None) -> list[AnyOperation]:
        """Let go of gradients and of the parts that they are made of."""
        parts = len((sample or self._sample).ranges)
        names = [one for g in gradients for one in (g, *(f"{g}.{n}" for n in range(parts if parts > 1 else 0)))]
        return [Drop(names)] if names else []
