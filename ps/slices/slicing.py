"""Which shard holds which part of which machine's parameters.

The flat parameter buffers of the machines, one after another, are cut into one contiguous range a shard, and what a
shard holds of a machine into slices small enough to travel as one message. Its number in the layout names a slice.
A slice is of one table, from a row's start to a row's end, or of none (runtime/gradient.py says what a table is).
"""

from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

import msgspec

from ...errors import UsageError
from ...runtime.worker.flat_gradient import Table

SLICE_MOST = 1 << 20  # elements; 4 MB of float32
TABLE_SLICE_MOST = 1 << 22  # of a table, of which little travels


class Slice(msgspec.Struct, frozen=True, order=True):
    """Elements [start, stop) of machine `machine`'s flat buffer, held by shard `shard`; messages call it `number`.

    width: of a row, where these are rows of a table; else 0.
    """

    shard: int
    machine: int
    start: int
    stop: int
    number: int
    width: int = 0

    @property
    def size(self) -> int:
        """Elements."""
        return self.stop - self.start

    @property
    def rows(self) -> int:
        """Of a table's slice."""
        return self.size // self.width if self.width else 0


class _Run(NamedTuple):
    """A part of a machine's buffer that is a table with rows of `width`, or of no table (0)."""

    machine: int
    start: int
    stop: int
    width: int

    def align(self, align: int) -> int:
        """A cut in it falls on a multiple of this, counted from its start."""
        return self.width or align

    def most(self, most: int, table_most: int) -> int:
        """Elements of a slice."""
        return max(table_most, self.width) if self.width else most


def layout(
    sizes: Sequence[int],
    shards: int,
    *,
    tables: Sequence[Sequence[Table]] = (),
    align: int = 16,
    most: int = SLICE_MOST,
    table_most: int = TABLE_SLICE_MOST,
    whole: bool = False,
) -> list[Slice]:
    """The slices of all shards, ordered by shard, machine and place; every element is in exactly one.

    sizes: elements of each machine's flat buffer, all of one dtype, so equal counts are equal bytes.
    tables: of each machine's, in order; a cut inside one falls between two rows.
    align: elsewhere a cut falls on a multiple of this, as the vector kernels and the wire like it.
    most, table_most: elements of a slice; a larger one is divided into nearly equal ones.
    whole: each machine's elements are all on one shard, and the machines are shared out.
    Empty slices are left out: where there is less to hold than shards, the shards that are too many hold nothing.
    """
    if shards < 1:
        raise UsageError("E250", f"{shards} parameter server shards", fix="--shards 1 or more")
    if align < 1 or any(size < 0 for size in sizes):
        raise UsageError("E251", f"no layout for buffers of {list(sizes)} elements aligned to {align}")
    runs = [run for machine, size in enumerate(sizes) for run in _runs(machine, size, tables)]
    ends = list(accumulate((run.stop - run.start for run in runs), initial=0))
    cuts = [_aligned(runs, ends, ends[-1] * shard // shards, align) for shard in range(shards)] + [ends[-1]]
    if whole:
        borders = list(accumulate(sizes, initial=0))
        cuts = [borders[min(-(-len(sizes) * shard // shards), len(sizes))] for shard in range(shards + 1)]
    held = [
        (shard, run, run.start + start, run.start + stop)
        for shard, (low, high) in enumerate(pairwise(cuts))
        for run, (begin, end) in zip(runs, pairwise(ends), strict=True)
        if max(low, begin) < min(high, end)
        for start, stop in _divided(
            max(low, begin) - begin, min(high, end) - begin, run.align(align), max(run.most(most, table_most), align)
        )
    ]
    return [
        Slice(shard, run.machine, start, stop, number, run.width)
        for number, (shard, run, start, stop) in enumerate(held)
    ]


def _runs(machine: int, size: int, tables: Sequence[Sequence[Table]]) -> list[_Run]:
    """A machine's buffer: its tables and what is between them."""
    found, at = [], 0
    for table in tables[machine] if tables else ():
        found += [_Run(machine, at, table.start, 0)] if at < table.start else []
        found.append(_Run(machine, table.start, table.stop, table.width))
        at = table.stop
    return found + ([_Run(machine, at, size, 0)] if at < size or not found else [])


def of_machine(slices: Iterable[Slice], machine: int) -> list[Slice]:
    """The slices of one machine's buffer, from its start to its end."""
    return [piece for piece in slices if piece.machine == machine]


def of_shard(slices: Iterable[Slice], shard: int) -> list[Slice]:
    """The slices that one shard holds, by machine."""
    return [piece for piece in slices if piece.shard == shard]


def spans(numbers: Iterable[int]) -> str:
    """Numbers of slices in words: "0-24, 50"."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and runs[-1][1] + 1 == number:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(f"{low}-{high}" if low < high else f"{low}" for low, high in runs) or "none"


def _divided(start: int, stop: int, align: int, most: int) -> list[tuple[int, int]]:
    """Nearly equal parts of a range, which begins at an aligned place: all aligned too, none larger than `most`."""
    parts = -(-(stop - start) // (most // align * align))
    step = -(-(stop - start) // (parts * align)) * align
    return [(low, min(low + step, stop)) for low in range(start, stop, step)]


def _aligned(runs: list[_Run], ends: list[int], cut: int, align: int) -> int:
    """The place nearest to global element `cut` where a cut may fall: aligned in its run, or at the run's end."""
    found = ((run, low, high) for run, (low, high) in zip(runs, pairwise(ends), strict=True) if cut <= high)
    run, begin, end = next(found, (_Run(0, 0, 0, 0), 0, 0))
    step = run.align(align)
    below = begin + (cut - begin) // step * step
    above = min(below + step, end)
    return below if cut - below <= above - cut else above
