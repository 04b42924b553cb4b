"""How many evaluations L-BFGS and OWL-QN take to the optimum of logistic regressions, and how many scipy's L-BFGS-B.

The loss is the mean of log(1 + exp(-y x·w)) plus l2 / 2 |w|² + l1 |w|. scipy minimises the same loss; where there is an
l1, over u, v ≥ 0 with w = u - v, which is smooth.

    python tests/support/logistic_losses.py FOLDER

prints the table of docs/guide/training.md; FOLDER has a9a and agaricus.txt.train as LIBSVM's site has them.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from scipy.optimize import minimize
from solver_runs import SolverResult, run_solver
from torch import Tensor

from cutset.ps.sandblaster.lbfgs import Lbfgs
from cutset.ps.sandblaster.owl_qn import OwlQn
from cutset.ps.sandblaster.solver import Objective, Portions, SolverOptions

Losses = list[float]  # of all evaluations, in their order
Gradient = Callable[[np.ndarray], tuple[float, np.ndarray]]  # the smooth part of a loss and its gradient
HISTORY = 10
NEAR = 1e-10  # of the least loss


@dataclass(frozen=True)
class Logistic:
    """One problem. inputs [n, d], times the class, which is 1 or -1. scale: multiplies the whole loss."""

    inputs: np.ndarray
    l2: float = 0.0
    l1: float = 0.0
    scale: float = 1.0

    @property
    def start(self) -> np.ndarray:
        """Weights of 0, [d]."""
        return np.zeros(self.inputs.shape[1])

    def smooth(self, weights: np.ndarray) -> tuple[float, np.ndarray]:
        """Return the loss without l1, and its gradient."""
        scores = self.inputs @ weights
        loss = np.logaddexp(0, -scores).mean() + self.l2 / 2 * weights @ weights
        slopes = -np.exp(-np.logaddexp(0, scores)) / len(scores)
        return self.scale * loss, self.scale * (slopes @ self.inputs + self.l2 * weights)

    def loss(self, weights: np.ndarray) -> float:
        """Return the whole loss."""
        return self.smooth(weights)[0] + self.scale * self.l1 * float(np.abs(weights).sum())


def run_ours(
    problem: Logistic, options: SolverOptions, *, start: np.ndarray | None = None, shards: int = 1
) -> tuple[Losses, SolverResult]:
    """Run L-BFGS, or OWL-QN if there is an l1."""
    losses, inputs = [], torch.from_numpy(problem.inputs)

    def mean(weights: Tensor) -> Tensor:
        losses.append(problem.loss(weights.detach().numpy()))
        return problem.scale * torch.nn.functional.softplus(-(inputs @ weights)).mean()

    objective = Objective(Portions(1, 1), problem.scale * problem.l1, problem.scale * problem.l2)
    run = (OwlQn if problem.l1 else Lbfgs)(objective, options).run()
    begin = torch.from_numpy((problem.start if start is None else start).copy())
    return losses, run_solver(run, mean, begin, shards=shards)


def run_scipy(problem: Logistic, *, start: np.ndarray | None = None) -> Losses:
    """Run L-BFGS-B of the same history until it cannot lower the loss any more."""
    losses: Losses = []
    begin = problem.start if start is None else start
    size, l1 = len(begin), problem.scale * problem.l1

    def smooth(weights: np.ndarray) -> tuple[float, np.ndarray]:
        loss, gradient = problem.smooth(weights)
        losses.append(loss)
        return loss, gradient

    def split(parts: np.ndarray) -> tuple[float, np.ndarray]:
        loss, gradient = problem.smooth(parts[:size] - parts[size:])
        losses.append(loss + l1 * float(parts.sum()))
        return losses[-1], np.concatenate([gradient + l1, l1 - gradient])

    limits = {"maxcor": HISTORY, "ftol": 0, "gtol": 0, "maxiter": 100_000, "maxfun": 100_000, "maxls": 50}
    if problem.l1:
        begin = np.concatenate([begin.clip(min=0), (-begin).clip(min=0)])
        minimize(split, begin, jac=True, method="L-BFGS-B", bounds=[(0, None)] * (2 * size), options=limits)
    else:
        minimize(smooth, begin, jac=True, method="L-BFGS-B", options=limits)
    return losses


def run_published_owl_qn(problem: Logistic, iterations: int) -> Losses:
    """Run algorithm 1 of Andrew and Gao, "Scalable Training of L1-Regularized Log-Linear Models", ICML 2007, as it is.

    Written down with numpy, apart from ours. "We set β = 0.5 and γ = 1e-4."
    """
    at, losses, pairs = problem.start, [problem.loss(problem.start)], list[tuple[np.ndarray, np.ndarray]]()
    l1, gradient = problem.scale * problem.l1, problem.smooth(problem.start)[1]
    for _ in range(iterations):
        left, right = gradient - l1, gradient + l1
        pseudo = np.where(at > 0, right, np.where(at < 0, left, right.clip(max=0) + left.clip(min=0)))
        direction = _two_loops(pairs, -pseudo)
        direction[direction * -pseudo <= 0] = 0
        orthant = np.where(at == 0, np.sign(-pseudo), np.sign(at))
        step = 1.0 if pairs else 1 / np.linalg.norm(pseudo)
        while True:
            trial = at + step * direction
            trial[trial * orthant <= 0] = 0
            losses.append(problem.loss(trial))
            if losses[-1] <= problem.loss(at) + 1e-4 * pseudo @ (trial - at):
                break
            step *= 0.5
            if step < 1e-20:
                return losses
        new = problem.smooth(trial)[1]
        step_taken, change = trial - at, new - gradient
        if step_taken @ change > 0:
            pairs = [*pairs, (step_taken, change)][-HISTORY:]
        at, gradient = trial, new
    return losses


def _two_loops(pairs: Sequence[tuple[np.ndarray, np.ndarray]], vector: np.ndarray) -> np.ndarray:
    """Return H * vector."""
    out, alphas = vector.copy(), []
    for step, change in reversed(pairs):
        alphas.append(step @ out / (step @ change))
        out -= alphas[-1] * change
    if pairs:
        step, change = pairs[-1]
        out *= step @ change / (change @ change)
    for step, change in pairs:
        out += step * (alphas.pop() - change @ out / (step @ change))
    return out


def count_until(losses: Losses, least: float, near: float = NEAR) -> int | None:
    """Return how many evaluations it took to come within this fraction of the least loss; None if none did."""
    return next((n for n, loss in enumerate(losses, 1) if loss - least <= near * abs(least)), None)


# Samples


def draw_sparse(samples: int, features: int, entries: int, *, positive: float, seed: int) -> np.ndarray:
    """Draw binary samples like those of w8a: features from frequent to rare, and few samples of the first class."""
    draw = np.random.default_rng(seed)
    frequency = 1 / np.arange(1, features + 1) ** 0.7
    inputs = np.zeros((samples, features))
    for row in inputs:
        row[draw.choice(features, entries, replace=False, p=frequency / frequency.sum())] = 1
    scores = inputs @ draw.normal(size=features) * 1.5 + draw.logistic(size=samples)
    return inputs * np.where(scores > np.quantile(scores, 1 - positive), 1.0, -1.0)[:, None]


def draw_one_hot(samples: int, attributes: int, values: int, *, seed: int) -> np.ndarray:
    """Draw samples like those of a9a and agaricus: one of the values of each attribute, which depend on each other."""
    draw = np.random.default_rng(seed)
    kind = draw.integers(values, size=(samples, 1))
    drawn = draw.integers(values, size=(samples, attributes))
    chosen = np.where(draw.random((samples, attributes)) < 0.5, (kind + np.arange(attributes)) % values, drawn)
    inputs = np.eye(values)[chosen].reshape(samples, -1)
    scores = inputs @ draw.normal(size=inputs.shape[1]) + draw.logistic(size=samples)
    return inputs * np.where(scores > 0, 1.0, -1.0)[:, None]


def draw_badly_scaled(samples: int, features: int, *, decades: float, seed: int) -> np.ndarray:
    """Draw features whose sizes are spread over twice as many decades."""
    draw = np.random.default_rng(seed)
    inputs = draw.normal(size=(samples, features))
    scores = inputs @ draw.normal(size=features) + 2 * draw.logistic(size=samples)
    sizes = 10.0 ** draw.uniform(-decades, decades, features)
    return inputs * sizes * np.where(scores > 0, 1.0, -1.0)[:, None]


def read_libsvm(path: Path, count: int | None = None) -> np.ndarray:
    """Read the first samples of a file of two classes."""
    lines = [line.split() for line in islice(path.open(), count)]
    rows = [{int(i): float(value) for i, value in (entry.split(":") for entry in line[1:])} for line in lines]
    inputs = np.zeros((len(rows), max(max(row) for row in rows)))
    for at, row in zip(inputs, rows, strict=True):
        at[np.array(list(row)) - 1] = list(row.values())
    labels = np.array([float(line[0]) for line in lines])
    return inputs * np.where(labels == labels.max(), 1.0, -1.0)[:, None]


# The table


def name_problems(folder: Path) -> Iterator[tuple[str, Logistic]]:
    """Yield the problems of the table."""
    a9a, mushrooms = read_libsvm(folder / "a9a", 3000), read_libsvm(folder / "agaricus.txt.train")
    drawn = draw_sparse(4000, 300, 12, positive=0.03, seed=0)
    for name, inputs in (("a9a, 3,000 rows", a9a), ("agaricus", mushrooms), ("drawn like w8a", drawn)):
        yield f"{name}, l2 = 1/n", Logistic(inputs, l2=1 / len(inputs))
        yield f"{name}, l1 = 1e-4", Logistic(inputs, l1=1e-4)
    scaled = draw_badly_scaled(1000, 40, decades=1, seed=0)
    yield "features of 1e-1 to 1e1, l2 = 1/n", Logistic(scaled, l2=1 / len(scaled))


def print_table(folder: Path) -> None:
    """Print a row of evaluations for each problem."""
    print("| loss | cutset | scipy's L-BFGS-B | end | OWL-QN as published |\n|---|---|---|---|---|")  # noqa: T201
    for name, problem in name_problems(folder):
        expected = run_scipy(problem)
        losses, _ = run_ours(problem, SolverOptions(max_iterations=100_000))
        exact, _ = run_ours(problem, replace(SolverOptions(max_iterations=100_000), tolerance_change=0.0))
        least = min(*expected, *exact)
        published = count_until(run_published_owl_qn(problem, 2500), least) or "more" if problem.l1 else ""
        end = (losses[-1] - least) / least
        counts = f"{count_until(losses, least)} | {count_until(expected, least)}"
        print(f"| {name} | {counts} | {end:.0e} | {published} |")  # noqa: T201


if __name__ == "__main__":
    torch.set_num_threads(1)
    print_table(Path(sys.argv[1]))
