"""`apply_lazily`: applies an optimizer to what a gradient touches - the touched rows of sparse tables, all else."""

from dataclasses import dataclass

from torch import Tensor

from ...runtime.worker.flat_gradient import FlatGradient, SparseTable
from .optimizer import Optimizer, Update


def apply_lazily(
    optimizer: Optimizer, values: Tensor, gradient: FlatGradient, state: dict[str, Tensor], update: Update
) -> None:
    """Update flat `values` [n] and `state` in place. Untouched rows of tables do not change, even with weight decay."""
    parts: list[tuple[_Run | _Touched, Tensor]] = [(_Run(run), own) for run, own in gradient.dense_parts()]
    for number, table in enumerate(gradient.tables):
        parts.append((_Touched(table, gradient.rows(number)), gradient.marked_values(number).view(-1)))
    for part, own in parts:
        value, memory = part.read(values), {name: part.read(whole) for name, whole in state.items()}
        optimizer.at(*part.span).apply(value, own, memory, update)
        part.write(values, value)
        for name, changed in memory.items():
            part.write(state[name], changed)


@dataclass(frozen=True)
class _Run:
    """What is of no table: a view, which is changed in place."""

    where: slice

    @property
    def span(self) -> tuple[int, int]:
        return self.where.start, self.where.stop

    def read(self, flat: Tensor) -> Tensor:
        return flat[self.where]

    def write(self, flat: Tensor, part: Tensor) -> None:
        """It is written already."""


@dataclass(frozen=True)
class _Touched:
    """Rows of a table: a copy."""

    table: SparseTable
    rows: Tensor

    @property
    def span(self) -> tuple[int, int]:
        return self.table.start, self.table.stop

    def read(self, flat: Tensor) -> Tensor:
        return self.table.view(flat)[self.rows].view(-1)

    def write(self, flat: Tensor, part: Tensor) -> None:
        self.table.view(flat).index_copy_(0, self.rows, part.view(-1, self.table.width))
