"""`Gradient`: one machine's gradient, flat, of whose tables only the rows that were touched are not zero.

A table is a parameter whose gradient is sparse, as that of `nn.Embedding(sparse=True)`. No operation here looks at rows
that were not touched, so that a step costs what it touches, however large the table is.
"""

import math
from collections.abc import Iterator, Sequence

import msgspec
import torch
from torch import Tensor

PART = 1 << 17  # elements that stay in the cache between several operations


class Table(msgspec.Struct, frozen=True):
    """Elements [start, stop) of a flat buffer, in rows of `width`."""

    start: int
    stop: int
    width: int

    @property
    def rows(self) -> int:
        """How many there are."""
        return (self.stop - self.start) // self.width

    def of(self, flat: Tensor) -> Tensor:
        """The table [rows, width], a view of a buffer."""
        return flat[self.start : self.stop].view(-1, self.width)


class Gradient:
    """flat [n], with these tables, in order; runs: what is between them, which is dense.

    void: whether nothing was spent on it since `renew`, so that its runs hold what is not to be read.
    """

    def __init__(self, flat: Tensor, tables: Sequence[Table] = ()) -> None:
        self.flat, self.tables = flat, list(tables)
        self.runs = list(_between(self.tables, flat.numel()))
        self._touched: list[list[Tensor]] = [[] for _ in self.tables]  # row numbers, some of them several times
        self._counts = [0] * len(self.tables)
        self._sorted = [False] * len(self.tables)  # whether there is one part, ascending, each row once
        self._parts = self._split()
        self.void = False

    def twin(self) -> "Gradient":
        """Another of zeros with the same tables."""
        return Gradient(torch.zeros_like(self.flat), self.tables)

    def touch(self, number: int, rows: Tensor | None) -> None:
        """Rows (int64) of a table may no longer be zero; None for all."""
        table = self.tables[number]
        self._touched[number].append(torch.arange(table.rows) if rows is None else rows)
        self._counts[number] += self._touched[number][-1].numel()
        self._sorted[number] = False
        if self._counts[number] > 2 * table.rows:  # whoever clears `flat` himself leaves the rows here
            self.rows(number)

    def watch(self, parameter: Tensor, number: int) -> None:
        """Have a backward pass note which rows of a table it touches in its parameter, whose gradient is a view."""

        def note(gradient: Tensor) -> None:
            self.touch(number, gradient._indices()[0] if gradient.is_sparse else None)

        parameter.register_hook(note)  # type: ignore[no-untyped-call]

    def rows(self, number: int) -> Tensor:
        """Those of a table that were touched: int64, ascending, each once."""
        if not self._sorted[number]:
            parts = self._touched[number]
            rows = torch.unique(torch.cat(parts)) if parts else torch.zeros(0, dtype=torch.int64)
            self._touched[number], self._counts[number], self._sorted[number] = [rows], rows.numel(), True
        return self._touched[number][0]

    def part(self, start: int, stop: int) -> tuple[Tensor, Tensor] | None:
        """Of elements of one table, from a row's start to a row's end: which rows were touched, and what they are.

        rows: int64 [r], counted from `start`; values [r, width], a copy. None where these elements are of no table.
        """
        for number, table in enumerate(self.tables):
            if table.start <= start and stop <= table.stop:
                first = (start - table.start) // table.width
                low, high = torch.searchsorted(self.rows(number), _ends(table, start, stop)).tolist()
                rows = self.rows(number)[low:high]
                return rows - first, table.of(self.flat)[rows]
        return None

    def zero(self) -> "Gradient":
        """Make it zero."""
        for run in self.runs:
            self.flat[run].zero_()
        self._zero_tables()
        self.void = False
        return self

    def renew(self) -> None:
        """Make one without tables zero, in other memory, as its own was given away. That holds anything until the next
        gradient that is spent on it, which is written over it."""
        if self.tables:
            raise ValueError(f"{self!r} is never given away whole")
        size, dtype = self.flat.numel(), self.flat.dtype
        self.flat, self._parts = torch.empty(0, dtype=dtype), []  # if nobody keeps the memory, it can be had again
        self.flat = torch.empty(size, dtype=dtype)
        self._parts, self.void = self._split(), True

    def add(self, other: "Gradient") -> None:
        """Add another with the same tables."""
        for run in self.runs:
            self.flat[run].add_(other.flat[run])
        for number, table in enumerate(self.tables):
            rows = other.rows(number)
            table.of(self.flat).index_add_(0, rows, table.of(other.flat)[rows])
            self.touch(number, rows)

    def descend(self, values: Tensor, rate: float) -> None:
        """values [n] -= rate * this."""
        for run in self.runs:
            values[run].sub_(self.flat[run], alpha=rate)
        for number, table in enumerate(self.tables):
            rows = self.rows(number)
            table.of(values).index_add_(0, rows, table.of(self.flat)[rows], alpha=-rate)

    def spend(self, values: Tensor, rate: float, accrued: "Gradient") -> None:
        """values [n] -= rate * this, where there is a rate; accrued += this; this is zero then. Part by part, in one
        pass through memory."""
        for run, mine, theirs in zip(self.runs, self._parts, accrued._parts, strict=True):
            for gradient, value, total in zip(mine, torch.split(values[run], PART), theirs, strict=True):
                if rate > 0:
                    value.sub_(gradient, alpha=rate)
                if accrued.void:
                    total.copy_(gradient)
                else:
                    total.add_(gradient)
                gradient.zero_()
        accrued.void = False
        for number, table in enumerate(self.tables):
            rows, own = self.rows(number), table.of(self.flat)
            touched = own[rows]
            table.of(values).index_add_(0, rows, touched, alpha=-rate)
            table.of(accrued.flat).index_add_(0, rows, touched)
            accrued.touch(number, rows)
        self._zero_tables()

    def norm(self) -> float:
        """The Euclidean norm."""
        parts = [self.flat[run] for run in self.runs]
        parts += [table.of(self.flat)[self.rows(number)] for number, table in enumerate(self.tables)]
        return math.hypot(*(float(torch.linalg.vector_norm(part, dtype=torch.float64)) for part in parts))

    def scale(self, factor: float) -> None:
        """Multiply all of it."""
        for run in self.runs:
            self.flat[run].mul_(factor)
        for number, table in enumerate(self.tables):
            rows, view = self.rows(number), table.of(self.flat)
            view.index_copy_(0, rows, view[rows] * factor)

    def _split(self) -> list[tuple[Tensor, ...]]:
        return [torch.split(self.flat[run], PART) for run in self.runs]

    def _zero_tables(self) -> None:
        for number, table in enumerate(self.tables):
            table.of(self.flat).index_fill_(0, self.rows(number), 0)
            self._touched[number], self._counts[number], self._sorted[number] = [], 0, False

    def __repr__(self) -> str:
        touched = ", ".join(f"{self.rows(number).numel()} of {t.rows}" for number, t in enumerate(self.tables))
        return f"Gradient({self.flat.numel()} elements, rows touched: {touched or 'no tables'})"


def _between(tables: Sequence[Table], size: int) -> Iterator[slice]:
    """What is of no table."""
    at = 0
    for table in tables:
        if at < table.start:
            yield slice(at, table.start)
        at = table.stop
    if at < size:
        yield slice(at, size)


def _ends(table: Table, start: int, stop: int) -> Tensor:
    return torch.tensor([(start - table.start) // table.width, (stop - table.start) // table.width])
