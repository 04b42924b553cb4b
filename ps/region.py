"""`Region`: a box of a parameter in a machine's flat buffer, and the way back from the buffers to whole parameters."""

import math
from collections.abc import Sequence

import msgspec
import torch
from torch import Tensor

from ..partition.errors import CheckpointError


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
        """The lengths of the box's sides."""
        return [stop - start for start, stop in self.box]

    @property
    def stop(self) -> int:
        """Where the region ends in the flat buffer."""
        return self.offset + math.prod(self.sizes)


def assemble(buffers: Sequence[Tensor], regions: Sequence[Sequence[Region]]) -> dict[str, Tensor]:
    """The whole parameters by name, from every machine's flat buffer and regions.

    CheckpointError where a region does not fit, or where the regions of a parameter overlap or leave a hole.
    """
    whole: dict[str, Tensor] = {}
    filled: dict[str, Tensor] = {}
    for machine, (buffer, pieces) in enumerate(zip(buffers, regions, strict=True)):
        for region in pieces:
            _check(region, machine, buffer)
            target = whole.setdefault(region.name, torch.empty(region.shape, dtype=buffer.dtype))
            marks = filled.setdefault(region.name, torch.zeros(region.shape, dtype=torch.int32))
            if list(target.shape) != region.shape:
                raise _misfit(region, machine, f"but another region says shape {list(target.shape)}")
            _box(target, region).copy_(buffer[region.offset : region.stop].view(region.sizes))
            _box(marks, region).add_(1)
    for name, marks in filled.items():
        wrong = int((marks != 1).sum())
        if wrong:
            raise CheckpointError(
                "E806", f"parameter {name}: {wrong} of {marks.numel()} elements are not in exactly one region"
            )
    return whole


def _box(whole: Tensor, region: Region) -> Tensor:
    index = tuple(slice(start, stop) for start, stop in region.box)
    return whole.view(region.axes)[index]


def _check(region: Region, machine: int, buffer: Tensor) -> None:
    if any(size < 0 for size in (*region.shape, *region.axes)) or math.prod(region.axes) != math.prod(region.shape):
        raise _misfit(region, machine, "whose axes do not make up its shape")
    if len(region.box) != len(region.axes):
        raise _misfit(region, machine, "which has not one interval for each axis")
    if any(not 0 <= start <= stop <= size for (start, stop), size in zip(region.box, region.axes, strict=True)):
        raise _misfit(region, machine, "which reaches outside of its axes")
    if not 0 <= region.offset <= region.stop <= buffer.numel():
        raise _misfit(region, machine, f"which reaches outside of the machine's {buffer.numel()} elements")


def _misfit(region: Region, machine: int, facts: str) -> CheckpointError:
    return CheckpointError(
        "E806",
        f"machine {machine} has region {region.box} of parameter {region.name} (shape {region.shape}, "
        f"axes {region.axes}, offset {region.offset}), {facts}",
    )
