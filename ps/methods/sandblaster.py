"""Sandblaster: batch methods over shards and replicas, first of all L-BFGS.

Dean et al., "Large Scale Distributed Deep Networks", NIPS 2012, section 4.2. A coordinator that never sees a parameter
has the shards compute with vectors; replicas compute the gradients of small portions of the batch.
"""

import math
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, ClassVar

import torch

from ...errors import UsageError
from ..optimizers.registry import AnyOptimizer
from ..sandblaster.gradient_descent import ConjugateGradients, GradientDescent, Momentum
from ..sandblaster.lbfgs import Lbfgs, SampleSchedule
from ..sandblaster.owl_qn import OwlQn
from ..sandblaster.solver import (
    DAMP,
    SKIP,
    TWO_LOOP,
    VECTOR_FREE,
    Objective,
    Portions,
    SampleSet,
    SolverOptions,
    SolverRun,
    TorchOptions,
)
from .method import Method
from .training_loop import TrainingLoop

SOLVERS: dict[str, type[Lbfgs]] = {
    "lbfgs": Lbfgs,
    "gd": GradientDescent,
    "momentum": Momentum,
    "cg": ConjugateGradients,
}
MAX_PORTIONS = 256  # that the samples are cut into by default


class Sandblaster(Method, frozen=True, tag="sandblaster"):
    """Each step is computed from all samples: L-BFGS and other batch methods (Dean et al., 2012).

    When: the problem is smooth, and its minimum is needed to full precision.

    solver: "lbfgs", "gd" (gradient descent), "momentum" or "cg" (conjugate gradients). iterations, evaluations: the
    limits of the run; 0 evaluations for no limit; the last search may take one more. history: pairs that L-BFGS
    remembers. form: how L-BFGS makes its direction of them, "vector-free" (one round trip) or "two-loop" (two for each
    pair). curvature: "skip" pairs without positive curvature, or "damp" them by Powell's rule. step: factor of the
    first step of each search; the rate of momentum. c1, c2: of the strong Wolfe conditions. search: the most
    evaluations of a search. l1, l2: the penalties l1 |x| (by OWL-QN) and l2 / 2 x^2. tolerance_grad: it stops where no
    element of the gradient, times the largest parameter or 1, is a larger fraction of the loss. tolerance_change: it
    stops where the loss, or the largest parameter, changes by no larger fraction of itself. fraction: of the samples
    that an iteration looks at. overlap: fraction of those that the next iteration looks at too. torch_path: take the
    steps of torch.optim.LBFGS, which depend on the scale of the loss; both tolerances are absolute then.
    """

    pushes_gradients: ClassVar[bool] = False

    iterations: int = 200
    evaluations: int = 0
    solver: str = "lbfgs"
    history: int = 10
    form: str = VECTOR_FREE
    curvature: str = SKIP
    step: float = 1.0
    c1: float = 1e-4
    c2: float = 0.9
    search: int = 25
    l1: float = 0.0
    l2: float = 0.0
    tolerance_grad: float = 1e-10
    tolerance_change: float = 1e-14
    fraction: float = 1.0
    overlap: float = 0.25
    torch_path: bool = False

    def check(self, optimizer: AnyOptimizer, replicas: int, steps: int) -> None:
        """Raise UsageError if an option makes no sense."""
        for field, minimum in (("iterations", 1), ("evaluations", 0), ("history", 1), ("search", 1)):
            self.demand_count(field, minimum)
        for field in ("l1", "l2", "tolerance_grad", "tolerance_change"):
            self.demand_number(field, "0 or more", lambda x: 0 <= x < math.inf, proper=1e-4)
        self.demand_number("step", "above 0", lambda x: 0 < x < math.inf, proper=1.0)
        self.demand_number("fraction", "above 0 and at most 1", lambda x: 0 < x <= 1, proper=1.0)
        self.demand_number("overlap", "above 0 and at most 0.5", lambda x: 0 < x <= 0.5, proper=0.25)
        self.demand_number("c1", "above 0 and at most 0.1", lambda x: 0 < x <= 0.1, proper=1e-4)
        self.demand_number("c2", f"between c1, {self.c1:g}, and 1", lambda x: self.c1 < x < 1, proper=0.9)
        choices = (("solver", list(SOLVERS)), ("form", [VECTOR_FREE, TWO_LOOP]), ("curvature", [SKIP, DAMP]))
        for field, known in choices:
            value = getattr(self, field)
            if value not in known:
                facts = f"sandblaster's {field} is {value!r}; it must be {' or '.join(known)}"
                raise UsageError("E268", facts, fix=f"--method sandblaster:{field}={known[0]}")
        if self.l1 and self.solver != "lbfgs":
            facts = f"sandblaster's solver {self.solver} has no l1 penalty, but l1 is {self.l1:g}"
            raise UsageError("E268", facts, fix=f"--method sandblaster:l1={self.l1:g}")
        if self.torch_path:
            self._check_torch_path()

    def train(self, loop: TrainingLoop[Any]) -> Iterator[int]:
        """Raise NotImplementedError: workers run a `GradientWorker` instead of a training loop."""
        raise NotImplementedError

    def make_solver(self, portions: Portions) -> Callable[[], SolverRun]:
        """Return a function that begins a new run of the solver over these portions."""
        kind = TorchOptions if self.torch_path else SolverOptions
        options = kind(
            max_iterations=self.iterations,
            max_evaluations=self.evaluations,
            initial_step=self.step,
            c1=self.c1,
            c2=self.c2,
            max_search=self.search,
            tolerance_grad=self.tolerance_grad,
            tolerance_change=self.tolerance_change,
            history_size=self.history,
            form=self.form,
            curvature=self.curvature,
        )

        def begin() -> SolverRun:
            objective = Objective(portions, self.l1, self.l2)
            solver = OwlQn if self.l1 else SOLVERS[self.solver]
            changes = self.fraction < 1 and portions.count > 2
            return solver(objective, options, self._make_schedule(portions.count) if changes else None).run()

        return begin

    def make_torch_optimizer(self, values: torch.nn.Parameter, max_evaluations: int) -> torch.optim.LBFGS:
        """Return torch's optimizer of `values` with the options of solver lbfgs and this limit of evaluations.

        Unless the path is torch's, neither are the tolerances: then it uses all its evaluations.
        """
        return torch.optim.LBFGS(
            [values],
            lr=self.step,
            max_iter=self.iterations,
            max_eval=max_evaluations,
            tolerance_grad=self.tolerance_grad if self.torch_path else 0.0,
            tolerance_change=self.tolerance_change if self.torch_path else 0.0,
            history_size=self.history,
            line_search_fn="strong_wolfe",
        )

    def _check_torch_path(self) -> None:
        """Raise UsageError if an option has no meaning for torch.optim.LBFGS."""
        for field, only in (("solver", "lbfgs"), ("l1", 0.0), ("curvature", SKIP), ("fraction", 1.0)):
            value = getattr(self, field)
            if value != only:
                facts = f"sandblaster's {field} is {value}, which torch.optim.LBFGS cannot do, but torch_path is true"
                raise UsageError("E268", facts, fix=f"--method sandblaster:{field}={value}")

    def _make_schedule(self, count: int) -> SampleSchedule:
        """Return windows that go round and round the portions; the end of each is the beginning of the next."""
        shared = max(1, round(self.fraction * self.overlap * count))
        size = min(max(2 * shared, round(self.fraction * count)), count)

        def choose_samples(iteration: int) -> SampleSet:
            start = (iteration - 1) * (size - shared)
            ends = (start, start + shared, start + size - shared, start + size)
            first, middle, last = (_wrap_around(*part, count) for part in pairwise(ends))
            return SampleSet((*first, *middle, *last), len(first), len(last))

        return choose_samples


def _wrap_around(start: int, stop: int, count: int) -> list[tuple[int, int]]:
    """Return the ranges of portions from start to stop, where portion `count` is portion 0 again."""
    first, last = start % count, start % count + stop - start
    parts = [(first, min(last, count)), (0, last - count)]
    return [part for part in parts if part[0] < part[1]]
