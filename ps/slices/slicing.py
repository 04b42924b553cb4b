"""Slices: which shard holds which part of which machine's parameters.

The flat parameter buffers of the machines, one after another, are cut into one contiguous range per shard, and what a
shard holds of a machine into slices small enough to travel as one message. Its number in the list names a slice. A
slice lies in one sparse table, from the start of a row to the end of a row, or in none (see `SparseTable`).
"""

from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

import msgspec

from ...errors import UsageError
from ...runtime.worker.flat_gradient import SparseTable

MAX_SLICE_ELEMENTS = 1 << 20  # 4 MB of float32
MAX_TABLE_SLICE_ELEMENTS = 1 << 22  # of a sparse table, of which few rows travel at a time


class ParameterSlice(msgspec.Struct, frozen=True, order=True):
    """Elements [start, stop) of the flat buffer of `machine`, held by shard `shard`; messages name it by `number`.

    width: elements of a row if the slice consists of rows of a sparse table, else 0.
    """

    shard: int
    machine: int
    start: int
    stop: int
    number: int
    width: int = 0

    @property
    def size(self) -> int:
        """The number of elements."""
        return self.stop - self.start

    @property
    def rows(self) -> int:
        """The number of rows of a table's slice; 0 for other slices."""
        return self.size // self.width if self.width else 0


class _Run(NamedTuple):
    """A part of a machine's buffer that is a sparse table with rows of `width`, or lies in no table (0)."""

    machine: int
    start: int
    stop: int
    width: int

    def alignment(self, align: int) -> int:
        """Return the multiple, counted from the run's start, at which it may be cut."""
        return self.width or align

    def max_elements(self, max_elements: int, max_table_elements: int) -> int:
        """Return the largest size of a slice of the run; a slice has at least one row."""
        return max(max_table_elements, self.width) if self.width else max_elements


def slice_parameters(
    sizes: Sequence[int],
    shards: int,
    *,
    tables: Sequence[Sequence[SparseTable]] = (),
    align: int = 16,
    max_elements: int = MAX_SLICE_ELEMENTS,
    max_table_elements: int = MAX_TABLE_SLICE_ELEMENTS,
    whole: bool = False,
) -> list[ParameterSlice]:
    """Return the slices of all shards, ordered by shard, machine and start; every element is in exactly one.

    sizes: elements of each machine's flat buffer, all of one dtype, so equal counts are equal bytes.
    tables: the sparse tables of each machine, in order; they are cut only between two rows.
    align: elsewhere a cut falls on a multiple of this, as suits vector kernels and the wire.
    max_elements, max_table_elements: limits of a slice's size; larger ranges are divided into nearly equal slices.
    whole: keep all elements of a machine on one shard, and distribute the machines over the shards.

    A shard without anything would have no part in any checkpoint: where there are too few elements for all, there are
    fewer shards, still numbered without gaps (`count_shards`). Raises UsageError for no shards (E250) and for
    negative sizes (E251).
    """
    if shards < 1:
        raise UsageError("E250", f"{shards} parameter server shards", fix="--shards 1 or more")
    if align < 1 or any(size < 0 for size in sizes):
        raise UsageError("E251", f"cannot slice buffers of {list(sizes)} elements aligned to {align}")
    runs = [run for machine, size in enumerate(sizes) for run in _runs(machine, size, tables)]
    ends = list(accumulate((run.stop - run.start for run in runs), initial=0))
    cuts = [_align_cut(runs, ends, ends[-1] * shard // shards, align) for shard in range(shards)] + [ends[-1]]
    if whole:
        borders = list(accumulate(sizes, initial=0))
        cuts = [borders[min(-(-len(sizes) * shard // shards), len(sizes))] for shard in range(shards + 1)]
    parts = [
        (shard, run, run.start + start, run.start + stop)
        for shard, (low, high) in enumerate(pairwise(cuts))
        for run, (begin, end) in zip(runs, pairwise(ends), strict=True)
        if max(low, begin) < min(high, end)
        for start, stop in _divide(
            max(low, begin) - begin,
            min(high, end) - begin,
            run.alignment(align),
            max(run.max_elements(max_elements, max_table_elements), align),
        )
    ]
    indices = {shard: index for index, shard in enumerate(sorted({shard for shard, *_ in parts}))}
    return [
        ParameterSlice(indices[shard], run.machine, start, stop, number, run.width)
        for number, (shard, run, start, stop) in enumerate(parts)
    ]


def count_shards(slices: Iterable[ParameterSlice]) -> int:
    """Return how many shards hold these slices; one where there are none."""
    return max((piece.shard for piece in slices), default=0) + 1


def _runs(machine: int, size: int, tables: Sequence[Sequence[SparseTable]]) -> list[_Run]:
    """Return the sparse tables of a machine's buffer and the ranges between them, in order."""
    runs, at = list[_Run](), 0
    for table in tables[machine] if tables else ():
        if at < table.start:
            runs.append(_Run(machine, at, table.start, 0))
        runs.append(_Run(machine, table.start, table.stop, table.width))
        at = table.stop
    if at < size or not runs:
        runs.append(_Run(machine, at, size, 0))
    return runs


def slices_of_machine(slices: Iterable[ParameterSlice], machine: int) -> list[ParameterSlice]:
    """Return the slices of one machine's buffer, from its start to its end."""
    return [piece for piece in slices if piece.machine == machine]


def slices_of_shard(slices: Iterable[ParameterSlice], shard: int) -> list[ParameterSlice]:
    """Return the slices that one shard holds, by machine."""
    return [piece for piece in slices if piece.shard == shard]


def format_ranges(numbers: Iterable[int]) -> str:
    """Return slice numbers as text: "0-24, 50"."""
    ranges: list[list[int]] = []
    for number in sorted(numbers):
        if ranges and ranges[-1][1] + 1 == number:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ", ".join(f"{low}-{high}" if low < high else f"{low}" for low, high in ranges) or "none"


def _divide(start: int, stop: int, align: int, max_elements: int) -> list[tuple[int, int]]:
    """Divide a range into nearly equal parts: none larger than `max_elements`, each a multiple of `align` long.

    The range begins at an aligned place, so all parts but the last also end at one.
    """
    parts = -(-(stop - start) // (max_elements // align * align))
    step = -(-(stop - start) // (parts * align)) * align
    return [(low, min(low + step, stop)) for low in range(start, stop, step)]


def _align_cut(runs: list[_Run], ends: list[int], cut: int, align: int) -> int:
    """Return the place nearest to global element `cut` where a cut is allowed: aligned in its run, or the run's end."""
    candidates = ((run, low, high) for run, (low, high) in zip(runs, pairwise(ends), strict=True) if cut <= high)
    run, begin, end = next(candidates, (_Run(0, 0, 0, 0), 0, 0))
    step = run.alignment(align)
    below = begin + (cut - begin) // step * step
    above = min(below + step, end)
    return below if cut - below <= above - cut else above
