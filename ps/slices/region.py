"""`Region`: a box of a parameter in a machine's flat buffer, and a check that regions tile whole parameters."""

import math
from collections.abc import Sequence
from itertools import combinations

import msgspec

from ...errors import CheckpointError
from ...partition.ir.box import intersect, volume


class Region(msgspec.Struct, frozen=True):
    """One box of the parameter `name`, stored contiguously from `offset` of its machine's flat buffer.

    axes: sizes of the axes that the dimensions of `shape` are made of, so shape (192, 64) may be axes (3, 4, 16, 64).
    box: one interval [start, stop) per axis.
    """

    name: str
    shape: list[int]
    axes: list[int]
    box: list[tuple[int, int]]
    offset: int

    @property
    def sizes(self) -> list[int]:
        """The length of the box along each axis."""
        return [stop - start for start, stop in self.box]

    @property
    def stop(self) -> int:
        """Where the region ends in the flat buffer."""
        return self.offset + math.prod(self.sizes)


def check_regions(name: str, pieces: Sequence[tuple[int, Region]], elements: Sequence[int]) -> None:
    """Raise CheckpointError E806 unless each element of a parameter is in exactly one of its regions.

    pieces: the regions, each with its machine. elements: the size of each machine's flat buffer.
    """
    first = pieces[0][1]
    for machine, region in pieces:
        _check_region(region, machine, elements[machine])
        if region.shape != first.shape or region.axes != first.axes:
            raise _misfit(region, machine, f"but another region says shape {first.shape} and axes {first.axes}")
    boxes = [tuple(region.box) for _, region in pieces]
    missing = abs(math.prod(first.shape) - sum(volume(box) for box in boxes))
    overlaps = [volume(common) for a, b in combinations(boxes, 2) if (common := intersect(a, b)) is not None]
    if missing or overlaps:
        raise CheckpointError(
            "E806",
            f"parameter {name}: {max(missing, sum(overlaps))} of {math.prod(first.shape)} elements are not in exactly "
            "one region",
        )


def _check_region(region: Region, machine: int, elements: int) -> None:
    if any(size < 0 for size in (*region.shape, *region.axes)) or math.prod(region.axes) != math.prod(region.shape):
        raise _misfit(region, machine, "whose axes do not multiply to its shape")
    if len(region.box) != len(region.axes):
        raise _misfit(region, machine, "which does not have one interval per axis")
    if any(not 0 <= start <= stop <= size for (start, stop), size in zip(region.box, region.axes, strict=True)):
        raise _misfit(region, machine, "which exceeds its axes")
    if not 0 <= region.offset <= region.stop <= elements:
        raise _misfit(region, machine, f"which exceeds the machine's {elements} elements")


def _misfit(region: Region, machine: int, facts: str) -> CheckpointError:
    return CheckpointError(
        "E806",
        f"machine {machine} has region {region.box} of parameter {region.name} (shape {region.shape}, "
        f"axes {region.axes}, offset {region.offset}), {facts}",
    )
