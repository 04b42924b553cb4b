"""Which shard holds which part of which machine's parameters.

The flat parameter buffers of the machines, one after another, are cut into one contiguous range a shard.
So a shard holds at most one slice of a machine, and (shard, machine) names a slice.
"""

from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise

import msgspec

from ..partition.errors import UsageError


class Slice(msgspec.Struct, frozen=True, order=True):
    """Elements [start, stop) of machine `machine`'s flat buffer, held by shard `shard`."""

    shard: int
    machine: int
    start: int
    stop: int

    @property
    def size(self) -> int:
        """Elements."""
        return self.stop - self.start


def layout(sizes: Sequence[int], shards: int, *, align: int = 16) -> list[Slice]:
    """The slices of all shards, ordered by shard and machine; every element is in exactly one.

    sizes: elements of each machine's flat buffer, all of one dtype, so equal counts are equal bytes.
    align: a cut inside a buffer falls on a multiple of this, as the vector kernels and the wire like it.
    Empty slices are left out: where there is less to hold than shards, the shards that are too many hold nothing.
    """
    if shards < 1:
        raise UsageError("E250", f"{shards} parameter server shards", fix="--shards 1 or more")
    if align < 1 or any(size < 0 for size in sizes):
        raise UsageError("E251", f"no layout for buffers of {list(sizes)} elements aligned to {align}")
    ends = list(accumulate(sizes, initial=0))
    cuts = [_aligned(ends, ends[-1] * shard // shards, align) for shard in range(shards)] + [ends[-1]]
    return [
        Slice(shard, machine, max(low, begin) - begin, min(high, end) - begin)
        for shard, (low, high) in enumerate(pairwise(cuts))
        for machine, (begin, end) in enumerate(pairwise(ends))
        if max(low, begin) < min(high, end)
    ]


def of_machine(slices: Iterable[Slice], machine: int) -> list[Slice]:
    """The slices of one machine's buffer, from its start to its end."""
    return [piece for piece in slices if piece.machine == machine]


def of_shard(slices: Iterable[Slice], shard: int) -> list[Slice]:
    """The slices that one shard holds, by machine."""
    return [piece for piece in slices if piece.shard == shard]


def _aligned(ends: list[int], cut: int, align: int) -> int:
    """The place nearest to global element `cut` where a cut may fall: aligned in its buffer, or at the buffer's end."""
    begin, end = next(((low, high) for low, high in pairwise(ends) if cut <= high), (0, 0))
    below = begin + (cut - begin) // align * align
    above = min(below + align, end)
    return below if cut - below <= above - cut else above
