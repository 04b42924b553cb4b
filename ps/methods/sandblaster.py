"""Sandblaster: batch methods over shards and replicas, L-BFGS first of all.

Dean et al., "Large Scale Distributed Deep Networks", 2012, section 4.2. A coordinator that never sees a parameter has
the shards compute with vectors; replicas compute the gradients of small portions of the batch.
"""

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any, ClassVar

import torch

from ...errors import UsageError
from ..sandblaster.lbfgs_history import FREE, LOOP
from ..sandblaster.gradient_descent import ConjugateGradients, GradientDescent, Momentum
from ..sandblaster.lbfgs import DAMP, SKIP, Lbfgs, Rules
from .method import Method
from ..sandblaster.solver import Objective, Portions, Sample, Steps
from ..sandblaster.owl_qn import OwlQn
from ..optimizers.registry import AnyRule
from .training_loop import Share

SOLVERS: dict[str, type[Lbfgs]] = {
    "lbfgs": Lbfgs,
    "gd": GradientDescent,
    "momentum": Momentum,
    "cg": ConjugateGradients,
}
PORTIONS = 256  # that samples are cut into, where nothing is said


class Sandblaster(Method, frozen=True, tag="sandblaster"):
    """solver: "lbfgs", "gd" (gradient descent), "momentum" or "cg" (conjugate gradients).

    iterations, evaluations: at most, 0 for any number of evaluations; the last search may take one more. history:
    pairs that L-BFGS remembers; form: how it makes its direction of them, "free" (one round trip) or "loop" (two
    for each pair). curvature: "skip" or "damp" pairs that say nothing of it. step: the first of each search, of
    momentum the rate. c1, c2: of the strong Wolfe conditions; search: evaluations of a search, at most. l1, l2:
    penalties l1 |x| (by OWL-QN) and l2 / 2 x^2. gradient, change: it ends where no element of the gradient is
    larger, or none and not the loss changes by more. share: of the samples, that an iteration looks at; overlap: of
    those, that the next looks at too.
    """

    pushes: ClassVar[bool] = False

    iterations: int = 20
    evaluations: int = 0
    solver: str = "lbfgs"
    history: int = 10
    form: str = FREE
    curvature: str = SKIP
    step: float = 1.0
    c1: float = 1e-4
    c2: float = 0.9
    search: int = 25
    l1: float = 0.0
    l2: float = 0.0
    gradient: float = 1e-7
    change: float = 1e-9
    share: float = 1.0
    overlap: float = 0.25

    def check(self, rule: AnyRule, replicas: int, steps: int) -> None:
        """UsageError where a field makes no sense."""
        for field, least in (("iterations", 1), ("evaluations", 0), ("history", 1), ("search", 1)):
            self.demand_count(field, least)
        for field in ("l1", "l2", "gradient", "change"):
            self.demand_number(field, "0 or more", lambda x: 0 <= x < math.inf, proper=1e-4)
        self.demand_number("step", "above 0", lambda x: 0 < x < math.inf, proper=1.0)
        self.demand_number("share", "above 0 and at most 1", lambda x: 0 < x <= 1, proper=1.0)
        self.demand_number("overlap", "above 0 and at most 0.5", lambda x: 0 < x <= 0.5, proper=0.25)
        self.demand_number("c1", "above 0 and at most 0.1", lambda x: 0 < x <= 0.1, proper=1e-4)
        self.demand_number("c2", f"between c1, {self.c1:g}, and 1", lambda x: self.c1 < x < 1, proper=0.9)
        for field, known in (("solver", list(SOLVERS)), ("form", [FREE, LOOP]), ("curvature", [SKIP, DAMP])):
            value = getattr(self, field)
            if value not in known:
                facts = f"sandblaster's {field} is {value!r}; it must be {' or '.join(known)}"
                raise UsageError("E268", facts, fix=f"--method sandblaster:{field}={known[0]}")
        if self.l1 and self.solver != "lbfgs":
            facts = f"sandblaster's l1 is {self.l1:g}, which solver {self.solver} does not know"
            raise UsageError("E268", facts, fix=f"--method sandblaster:l1={self.l1:g}")

    def train(self, share: Share[Any]) -> None:
        """It has roles of its own (batch_worker.py), and no loop for this one."""
        raise NotImplementedError

    def steps(self, portions: Portions) -> Callable[[], Steps]:
        """Makes the steps of a new run over these portions."""
        rules = Rules(
            iterations=self.iterations,
            evaluations=self.evaluations,
            rate=self.step,
            c1=self.c1,
            c2=self.c2,
            search=self.search,
            least_gradient=self.gradient,
            least_change=self.change,
            history=self.history,
            form=self.form,
            curvature=self.curvature,
        )

        def begin() -> Steps:
            objective = Objective(portions, self.l1, self.l2)
            kind = OwlQn if self.l1 else SOLVERS[self.solver]
            partly = self.share < 1 and portions.count > 2
            return kind(objective, rules, self._samples(portions.count) if partly else None).steps()

        return begin

    def by_torch(self, values: torch.nn.Parameter, evaluations: int) -> torch.optim.LBFGS:
        """Torch's optimiser of `values` with the rules of solver lbfgs, but for so many evaluations at most."""
        return torch.optim.LBFGS(
            [values],
            lr=self.step,
            max_iter=self.iterations,
            max_eval=evaluations,
            tolerance_grad=self.gradient,
            tolerance_change=self.change,
            history_size=self.history,
            line_search_fn="strong_wolfe",
        )

    def _samples(self, count: int) -> Callable[[int], Sample]:
        """Windows of the portions, round and round; the end of each is the beginning of the next."""
        shared = max(1, round(self.share * self.overlap * count))
        whole = min(max(2 * shared, round(self.share * count)), count)

        def of(iteration: int) -> Sample:
            start = (iteration - 1) * (whole - shared)
            ends = (start, start + shared, start + whole - shared, start + whole)
            first, middle, last = (_around(*part, count) for part in pairwise(ends))
            return Sample((*first, *middle, *last), len(first), len(last))

        return of


def _around(start: int, stop: int, count: int) -> list[tuple[int, int]]:
    """Portions from one place to another, over the end to the beginning."""
    first, last = start % count, start % count + stop - start
    parts = [(first, min(last, count)), (0, last - count)]
    return [part for part in parts if part[0] < part[1]]
