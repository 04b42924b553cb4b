"""Batch methods on vectors of this process: every operation is carried out at once, by the shards' own code."""

from collections.abc import Callable, Generator
from typing import Any

import torch
from torch import Tensor

from cutset.ps.minimiser import Iteration, Portions, Steps
from cutset.ps.vector_operations import AT, Batch, Evaluate, Vectors, numbers, shares

Loss = Callable[[Tensor, slice], Tensor]  # the mean loss of some samples at a point [n]
MOST = 20_000  # batches, so that a method that does not end fails


class Here:
    """The vectors of a run that begins at `start` [n], cut into parts. batches: all that were carried out."""

    def __init__(self, loss: Loss, start: Tensor, portions: Portions, *, parts: int = 1) -> None:
        self.parts: list[Vectors] = [{AT: part.clone()} for part in start.tensor_split(parts)]
        self.batches: list[Batch] = []
        self.iterations: list[Iteration] = []
        self._loss, self._portions = loss, portions

    @property
    def at(self) -> Tensor:
        """The parameters [n]."""
        return self.whole(AT)

    def whole(self, name: str) -> Tensor:
        """A vector [n]."""
        return torch.cat([part[name] for part in self.parts])

    def drive(self, steps: Steps) -> str:
        """Run a method to its end; why it ended."""
        item: Batch | Iteration = next(steps)
        try:
            while len(self.batches) < MOST:
                if isinstance(item, Iteration):
                    self.iterations.append(item)
                    item = next(steps)
                else:
                    item = steps.send(self.answers(item))
        except StopIteration as stop:
            return str(stop.value)
        raise AssertionError(f"it goes on after {MOST} batches")

    def answers(self, batch: Batch) -> list[float]:
        """Carry out a batch; its numbers."""
        self.batches.append(batch)
        found: list[float] = []
        for one in batch:
            if isinstance(one, Evaluate):
                found.append(self._evaluated(one))
                continue
            rows = [shares([one], part) for part in self.parts]
            found += [asked.joined(row[0] for row in rows) for asked in numbers([one])]
        return found

    def ask(self, asking: Generator[Batch, list[float], Any]) -> Any:
        """Run something that asks for batches; what it returns."""
        try:
            batch = next(asking)
            while True:
                batch = asking.send(self.answers(batch))
        except StopIteration as stop:
            return stop.value

    def _evaluated(self, asked: Evaluate) -> float:
        point = self.whole(asked.at).requires_grad_()
        first = asked.first * self._portions.size
        samples = slice(first, first + self._portions.within(asked.first, asked.last))
        loss = self._loss(point, samples)
        (gradient,) = torch.autograd.grad(loss, point)
        sizes = [part[asked.at].numel() for part in self.parts]
        for part, piece in zip(self.parts, gradient.split(sizes), strict=True):
            part[asked.out] = piece.clone()
        return float(loss)
