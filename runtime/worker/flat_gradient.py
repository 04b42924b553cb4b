"""`FlatGradient`: the gradient of one machine as one flat buffer, in whose tables only marked rows are not zero.

A table is a parameter whose gradient is sparse, as that of `nn.Embedding(sparse=True)`. No operation here reads rows
that are not marked, so the cost of a step does not grow with the size of a table.

Gradients of large parameters may lie apart: where backward makes them, until somebody asks for the flat buffer. To add
them to it takes as much memory traffic as the update itself, which a method that takes them one by one spares.
"""

import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec
import torch
from torch import Tensor

PART_ELEMENTS = 1 << 17  # few enough to stay in the cache between several operations
APART_ELEMENTS = 1 << 13  # of a parameter that may lie apart: with fewer, more calls cost what less traffic saves


class SparseTable(msgspec.Struct, frozen=True):
    """A table in a flat buffer: elements [start, stop), in rows of `width` elements."""

    start: int
    stop: int
    width: int

    @property
    def rows(self) -> int:
        """The number of rows."""
        return (self.stop - self.start) // self.width

    def view(self, flat: Tensor) -> Tensor:
        """The table [rows, width] as a view of a flat buffer."""
        return flat[self.start : self.stop].view(-1, self.width)


class FlatGradient:
    """A flat gradient [n] with tables, in order of their elements.

    runs: the elements between the tables, which are dense. is_undefined: whether its dense elements hold nothing yet,
    as after `replace_memory`.
    """

    def __init__(self, flat: Tensor, tables: Sequence[SparseTable] = ()) -> None:
        self._flat, self.tables = flat, list(tables)
        self._large: list[tuple[Tensor, slice]] = []  # parameters that may lie apart, with their elements
        self._small: list[slice] = []  # what is of no table and of none of these
        self._lies_apart = False  # whether large ones do now, and their elements of the flat buffer mean nothing
        self.runs = list(_dense_runs(self.tables, flat.numel()))
        self._marked: list[list[Tensor]] = [[] for _ in self.tables]  # row numbers, some several times
        self._counts = [0] * len(self.tables)
        self._sorted = [False] * len(self.tables)  # whether there is one part, ascending, each row once
        self.is_undefined = False

    @property
    def flat(self) -> Tensor:
        """The whole gradient [n]; after `zero(apart=True)` this copies what lies apart."""
        if self._lies_apart:
            self._collect()
        return self._flat

    def let_apart(self, parameters: Iterable[tuple[Tensor, slice]]) -> None:
        """Let gradients lie apart where they are large.

        parameters: those outside tables, whose gradients are views of the flat buffer, each with its elements there.
        """
        self._large = [(parameter, span) for parameter, span in parameters if parameter.numel() >= APART_ELEMENTS]
        self._small = list(_list_between(self.runs, [span for _, span in self._large]))

    def dense_parts(self, start: int = 0, stop: int = sys.maxsize) -> Iterator[tuple[slice, Tensor]]:
        """Yield what is of no table among elements [start, stop), where it lies: elements, and their values, flat."""
        for run in self._small if self._lies_apart else self.runs:
            if part := _intersect(run, start, stop):
                yield part, self._flat[part]
        for parameter, span in self._large if self._lies_apart else ():
            if not (part := _intersect(span, start, stop)):
                continue
            own = parameter.grad
            if own is not None and not own.is_sparse and own.is_contiguous():
                yield part, own.view(-1)[part.start - span.start : part.stop - span.start]
            else:
                self._copy(parameter, span)
                yield part, self._flat[part]

    def gather(self, start: int, stop: int, make: Callable[[int, torch.dtype], Tensor]) -> Tensor | None:
        """Return a copy of elements [start, stop), none of which is of a table, if some may lie apart; else None.

        make: makes the memory for so many elements.
        """
        if not self._lies_apart:
            return None
        memory = make(stop - start, self._flat.dtype)
        for part, values in self.dense_parts(start, stop):
            memory[part.start - start : part.stop - start].copy_(values)
        return memory

    def marked_values(self, number: int) -> Tensor:
        """Return a copy of the marked rows of a table: [r, width]."""
        return self.tables[number].view(self._flat)[self.rows(number)]

    def zeros_like(self) -> "FlatGradient":
        """Make another gradient of zeros, with the same tables."""
        return FlatGradient(torch.zeros_like(self._flat), self.tables)

    def mark_rows(self, number: int, rows: Tensor | None) -> None:
        """Mark rows (int64) of a table, which may be other than zero from now on; None marks all."""
        table = self.tables[number]
        self._marked[number].append(torch.arange(table.rows) if rows is None else rows)
        self._counts[number] += self._marked[number][-1].numel()
        self._sorted[number] = False
        if self._counts[number] > 2 * table.rows:  # where the caller zeroes `flat` itself, marks would only pile up
            self.rows(number)

    def watch_backward(self, parameter: Tensor, number: int) -> None:
        """Mark the rows that backward passes touch in the parameter of a table, whose gradient is a view of it."""

        def mark(gradient: Tensor) -> None:
            self.mark_rows(number, gradient._indices()[0] if gradient.is_sparse else None)

        parameter.register_hook(mark)  # type: ignore[no-untyped-call]

    def rows(self, number: int) -> Tensor:
        """The marked rows of a table: int64, ascending, each once."""
        if not self._sorted[number]:
            parts = self._marked[number]
            rows = torch.unique(torch.cat(parts)) if parts else torch.zeros(0, dtype=torch.int64)
            self._marked[number], self._counts[number], self._sorted[number] = [rows], rows.numel(), True
        return self._marked[number][0]

    def rows_between(self, start: int, stop: int) -> tuple[Tensor, Tensor] | None:
        """The marked rows among elements [start, stop), which must be whole rows of one table.

        Returns their numbers, int64 [r], counted from `start`, and a copy of their values [r, width]; None where these
        elements are in no table.
        """
        for number, table in enumerate(self.tables):
            if table.start <= start and stop <= table.stop:
                first = (start - table.start) // table.width
                low, high = torch.searchsorted(self.rows(number), _row_range(table, start, stop)).tolist()
                rows = self.rows(number)[low:high]
                return rows - first, table.view(self._flat)[rows]
        return None

    def save_between(self, start: int, stop: int) -> Callable[[], None]:
        """Return what puts elements [start, stop) back as they are now; they are as `rows_between` has them."""
        saved = self.rows_between(start, stop)
        if saved is None:
            before = self.flat[start:stop].clone()

            def restore() -> None:
                self.flat[start:stop].copy_(before)

            return restore
        rows, values = saved

        def restore_rows() -> None:
            now = self.rows_between(start, stop)
            assert now is not None
            view = self.flat[start:stop].view(-1, values.shape[1])
            view.index_fill_(0, now[0], 0)
            view.index_copy_(0, rows, values)

        return restore_rows

    def zero(self, *, apart: bool = False) -> "FlatGradient":
        """Set all elements to zero.

        apart: the next gradients of large parameters may lie apart, for who reads them by `dense_parts`.
        """
        lay_apart, self._lies_apart = self._lies_apart, apart and bool(self._large)
        if lay_apart or self._lies_apart:
            for parameter, span in self._large:
                parameter.grad = None if self._lies_apart else self._view(parameter, span)
        for run in self._small if self._lies_apart else self.runs:
            self._flat[run].zero_()
        self._zero_tables()
        self.is_undefined = False
        return self

    def replace_memory(self) -> None:
        """Take new memory, where the old one was given away. Only for a gradient without tables, of no parameters.

        The new memory is undefined until the next `descend_and_accumulate`, which writes over it.
        """
        if self.tables or self._large:
            raise ValueError(f"{self!r} is never given away whole")
        size, dtype = self._flat.numel(), self._flat.dtype
        self._flat = torch.empty(0, dtype=dtype)  # if nobody keeps the memory, it can be had again
        self._flat = torch.empty(size, dtype=dtype)
        self.is_undefined = True

    def add(self, other: "FlatGradient") -> None:
        """Add another gradient with the same tables."""
        for run in self.runs:
            self.flat[run].add_(other.flat[run])
        for number, table in enumerate(self.tables):
            rows = other.rows(number)
            table.view(self.flat).index_add_(0, rows, table.view(other.flat)[rows])
            self.mark_rows(number, rows)

    def descend(self, values: Tensor, rate: float) -> None:
        """Take a step of gradient descent: values [n] -= rate * gradient."""
        for run, part in self.dense_parts():
            values[run].sub_(part, alpha=rate)
        for number, table in enumerate(self.tables):
            rows = self.rows(number)
            table.view(values).index_add_(0, rows, table.view(self._flat)[rows], alpha=-rate)

    def descend_and_accumulate(self, values: Tensor, rate: float, accrued: "FlatGradient") -> None:
        """Take a step of gradient descent, add this gradient to `accrued`, and set it to zero.

        That is values [n] -= rate * gradient, if rate > 0; accrued += gradient; gradient = 0. All of it is done part by
        part, in one pass through memory.
        """
        stays_apart, totals = self._lies_apart, accrued.flat
        for run, whole in self.dense_parts():
            for gradient, value, total in zip(_split(whole), _split(values[run]), _split(totals[run]), strict=True):
                if rate > 0:
                    value.sub_(gradient, alpha=rate)
                if accrued.is_undefined:
                    total.copy_(gradient)
                else:
                    total.add_(gradient)
                if not stays_apart:
                    gradient.zero_()
        accrued.is_undefined = False
        for number, table in enumerate(self.tables):
            rows, touched = self.rows(number), self.marked_values(number)
            table.view(values).index_add_(0, rows, touched, alpha=-rate)
            table.view(totals).index_add_(0, rows, touched)
            accrued.mark_rows(number, rows)
        if stays_apart:
            self.zero(apart=True)
        else:
            self._zero_tables()

    def norm(self) -> float:
        """The Euclidean norm, computed in float64."""
        parts = [self.flat[run] for run in self.runs]
        parts += [table.view(self.flat)[self.rows(number)] for number, table in enumerate(self.tables)]
        return math.hypot(*(float(torch.linalg.vector_norm(part, dtype=torch.float64)) for part in parts))

    def scale(self, factor: float) -> None:
        """Multiply all elements."""
        for run in self.runs:
            self.flat[run].mul_(factor)
        for number, table in enumerate(self.tables):
            rows, view = self.rows(number), table.view(self.flat)
            view.index_copy_(0, rows, view[rows] * factor)

    def _collect(self) -> None:
        """Copy what lies apart into the flat buffer, to which the next gradients are added."""
        for parameter, span in self._large:
            self._copy(parameter, span)
            parameter.grad = self._view(parameter, span)
        self._lies_apart = False

    def _view(self, parameter: Tensor, span: slice) -> Tensor:
        return self._flat[span].view(parameter.shape)

    @torch.no_grad()
    def _copy(self, parameter: Tensor, span: slice) -> None:
        own, place = parameter.grad, self._view(parameter, span)
        if own is None:
            place.zero_()  # no gradient has reached it
        else:
            place.copy_(own.to_dense() if own.is_sparse else own)

    def _zero_tables(self) -> None:
        for number, table in enumerate(self.tables):
            table.view(self._flat).index_fill_(0, self.rows(number), 0)
            self._marked[number], self._counts[number], self._sorted[number] = [], 0, False

    def __repr__(self) -> str:
        touched = ", ".join(f"{self.rows(number).numel()} of {t.rows}" for number, t in enumerate(self.tables))
        return f"Gradient({self._flat.numel()} elements, rows marked: {touched or 'no tables'})"


def _dense_runs(tables: Sequence[SparseTable], size: int) -> Iterator[slice]:
    """The ranges between the tables."""
    at = 0
    for table in tables:
        if at < table.start:
            yield slice(at, table.start)
        at = table.stop
    if at < size:
        yield slice(at, size)


def _list_between(runs: Sequence[slice], spans: Sequence[slice]) -> Iterator[slice]:
    """The elements of runs that are in none of some spans, each of which lies in a run."""
    for run in runs:
        at = run.start
        for span in sorted((span for span in spans if run.start <= span.start < run.stop), key=lambda span: span.start):
            if at < span.start:
                yield slice(at, span.start)
            at = span.stop
        if at < run.stop:
            yield slice(at, run.stop)


def _intersect(run: slice, start: int, stop: int) -> slice | None:
    """The elements of a run that are among [start, stop), None where none are."""
    first, last = max(run.start, start), min(run.stop, stop)
    return slice(first, last) if first < last else None


def _split(part: Tensor) -> tuple[Tensor, ...]:
    return torch.split(part, PART_ELEMENTS)


def _row_range(table: SparseTable, start: int, stop: int) -> Tensor:
    return torch.tensor([(start - table.start) // table.width, (stop - table.start) // table.width])
