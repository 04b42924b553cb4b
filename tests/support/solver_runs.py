"""A batch method over vectors in this process, cut as by shards, and torch's L-BFGS to compare it with."""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

import torch
from torch import Tensor

from cutset.ps.sandblaster.solver import Iteration, SolverRun
from cutset.ps.sandblaster.vector_ops import ITERATE, Evaluate, Vectors, carry_out

Loss = Callable[[Tensor], Tensor]
Of = Callable[[Tensor, int, int], Tensor]  # the mean loss of portions [first, last) at a point


@dataclass
class SolverResult:
    """What a run came to. trips: batches of operations; vectors: those that are left."""

    values: Tensor
    why: str = ""
    trips: int = 0
    iterations: list[Iteration] = field(default_factory=list)
    vectors: Vectors = field(default_factory=dict)

    @property
    def held(self) -> list[str]:
        """The names of the vectors that are left."""
        return sorted(self.vectors)

    @property
    def losses(self) -> list[float]:
        """Of each iteration."""
        return [iteration.loss for iteration in self.iterations]


def run_solver(
    steps: SolverRun, loss: Loss | Of, start: Tensor, *, shards: int = 1, portions: bool = False
) -> SolverResult:
    """Run a method to its end. portions: whether the loss takes portions."""
    bounds = [start.numel() * shard // shards for shard in range(shards + 1)]
    ranges = [slice(a, b) for a, b in pairwise(bounds)]
    parts: list[Vectors] = [{ITERATE: start[part].clone()} for part in ranges]
    done, answers = SolverResult(start), None
    while True:
        try:
            item = next(steps) if answers is None else steps.send(answers)
        except StopIteration as stop:
            done.why, done.values = stop.value, torch.cat([part[ITERATE] for part in parts])
            done.vectors = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
            return done
        if isinstance(item, Iteration):
            done.iterations.append(item)
            answers = None
            continue
        done.trips, answers = done.trips + 1, []
        for operation in item:
            if isinstance(operation, Evaluate):
                point = torch.cat([part[operation.at] for part in parts]).requires_grad_()
                found = loss(point, operation.first, operation.last) if portions else loss(point)  # type: ignore[call-arg]
                found.backward()
                assert point.grad is not None
                for part, where in zip(parts, ranges, strict=True):
                    part[operation.out] = point.grad[where].clone()
                answers.append(found.item())
            else:
                given = [carry_out([operation], part) for part in parts]
                answers += [operation.combine_partials(one[0] for one in given)] if operation.returns_scalar else []


def run_torch_lbfgs(
    loss: Loss, start: Tensor, iterations: int, *, history: int = 10, most: int = 1 << 20
) -> tuple[Tensor, int, int]:
    """Where torch.optim.LBFGS comes to; its evaluations, of which there may be `most`, and its iterations."""
    point, count = start.clone().requires_grad_(), [0]
    optimiser = torch.optim.LBFGS(
        [point], max_iter=iterations, max_eval=most, history_size=history, line_search_fn="strong_wolfe"
    )

    def evaluate() -> Tensor:
        optimiser.zero_grad()
        found = loss(point)
        found.backward()
        count[0] += 1
        return found

    optimiser.step(evaluate)
    return point.detach(), count[0], optimiser.state[point]["n_iter"]
