"""Which shard holds which part of which machine's parameters.

The flat parameter buffers of the machines, one after another, are cut into one contiguous range a shard, and what a
shard holds of a machine into slices small enough to travel as one message. Its number in the layout names a slice.
"""

from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise

import msgspec

from ..partition.errors import UsageError

SLICE_MOST = 1 << 20  # elements; 4 MB of float32


class Slice(msgspec.Struct, frozen=True, order=True):
    """Elements [start, stop) of machine `machine`'s flat buffer, held by shard `shard`; messages call it `number`."""

    shard: int
    machine: int
    start: int
    stop: int
    number: int

    @property
    def size(self) -> int:
        """Elements."""
        return self.stop - self.start


def layout(sizes: Sequence[int], shards: int, *, align: int = 16, most: int = SLICE_MOST) -> list[Slice]:
    """The slices of all shards, ordered by shard, machine and place; every element is in exactly one.

    sizes: elements of each machine's flat buffer, all of one dtype, so equal counts are equal bytes.
    align: a cut inside a buffer falls on a multiple of this, as the vector kernels and the wire like it.
    most: elements of a slice; a larger one is divided into nearly equal ones.
    Empty slices are left out: where there is less to hold than shards, the shards that are too many hold nothing.
    """
    if shards < 1:
        raise UsageError("E250", f"{shards} parameter server shards", fix="--shards 1 or more")
    if align < 1 or any(size < 0 for size in sizes):
        raise UsageError("E251", f"no layout for buffers of {list(sizes)} elements aligned to {align}")
    ends = list(accumulate(sizes, initial=0))
    cuts = [_aligned(ends, ends[-1] * shard // shards, align) for shard in range(shards)] + [ends[-1]]
    held = [
        (shard, machine, start, stop)
        for shard, (low, high) in enumerate(pairwise(cuts))
        for machine, (begin, end) in enumerate(pairwise(ends))
        if max(low, begin) < min(high, end)
        for start, stop in _divided(max(low, begin) - begin, min(high, end) - begin, align, max(most, align))
    ]
    return [Slice(*place, number) for number, place in enumerate(held)]


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


def _aligned(ends: list[int], cut: int, align: int) -> int:
    """The place nearest to global element `cut` where a cut may fall: aligned in its buffer, or at the buffer's end."""
    begin, end = next(((low, high) for low, high in pairwise(ends) if cut <= high), (0, 0))
    below = begin + (cut - begin) // align * align
    above = min(below + align, end)
    return below if cut - below <= above - cut else above
