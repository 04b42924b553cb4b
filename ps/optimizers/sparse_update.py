"""`apply_lazily`: a rule applied to what a gradient touches - of tables the touched rows, all of the rest."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ...runtime.worker.flat_gradient import Gradient, Table
from .optimizer import Rule, Update


def apply_lazily(rule: Rule, values: Tensor, gradient: Gradient, state: dict[str, Tensor], update: Update) -> None:
    """Change flat `values` [n] and `state` in place. Rows that were not touched stay as they are, decay or not."""
    if not gradient.tables:
        rule.apply(values, gradient.flat, state, update)
        return
    parts: list[_Run | _Touched] = [_Run(run) for run in gradient.runs]
    parts += [_Touched(table, gradient.rows(number)) for number, table in enumerate(gradient.tables)]
    for part in parts:
        value, memory = part.read(values), {name: part.read(whole) for name, whole in state.items()}
        rule.apply(value, part.read(gradient.flat), memory, update)
        for name in memory.keys() - state.keys():
            state[name] = torch.zeros_like(values)
        for whole, changed in [(values, value), *((state[name], memory[name]) for name in memory)]:
            part.write(whole, changed)


@dataclass(frozen=True)
class _Run:
    """What is of no table: a view, which is changed in place."""

    where: slice

    def read(self, flat: Tensor) -> Tensor:
        return flat[self.where]

    def write(self, flat: Tensor, part: Tensor) -> None:
        if part.data_ptr() != flat[self.where].data_ptr():  # the rule has begun to remember something
            flat[self.where] = part


@dataclass(frozen=True)
class _Touched:
    """Rows of a table: a copy."""

    table: Table
    rows: Tensor

    def read(self, flat: Tensor) -> Tensor:
        return self.table.of(flat)[self.rows].view(-1)

    def write(self, flat: Tensor, part: Tensor) -> None:
        self.table.of(flat).index_copy_(0, self.rows, part.view(-1, self.table.width))
