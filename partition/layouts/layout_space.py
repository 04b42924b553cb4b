"""`LayoutSpace`: all layouts that an operator may have on a mesh; and the `Regions` that each reads and makes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ..dataflow.cut import PlacedBox, boxes_overlap
from ..ir.box import volume
from ..ir.graph import Fixed, Follow, Op, Operand, Reading, TensorInfo, Window
from .device_mesh import DeviceMesh, Ints, Layout, enumerate_layouts, placed_boxes, reduce_scatter_layout

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Regions:
    """A box of one tensor on each machine, in each of several layouts. boxes: [p, m, a, 2]; there: [p, m], if any."""

    boxes: Ints
    there: Bools

    def __getitem__(self, p: int) -> "Regions":
        """The regions of one layout."""
        return Regions(self.boxes[p : p + 1], self.there[p : p + 1])

    @property
    def points(self) -> Ints:
        """How many points of the tensor each machine has: [p, m]."""
        return np.where(self.there, _volumes(self.boxes), 0)

    def common(self, other: "Regions") -> Ints:
        """Points that a machine has in both, for all pairs of layouts: [layouts of self, layouts of other, m]."""
        both = self.there[:, None] & other.there[None]
        return np.where(both, _overlap_volumes(self.boxes[:, None], other.boxes[None]), 0)

    def between_machines(self, other: "Regions") -> Ints:
        """Points that one machine has here and another one there, [layouts of self, layouts of other, m, m]."""
        out = (self.there[:, None, :, None] & other.there[None, :, None, :]).astype(np.int64)
        for axis in range(self.boxes.shape[2]):
            low, high = (self.boxes[:, None, :, None, axis, end] for end in (0, 1))
            others_low, others_high = (other.boxes[None, :, None, :, axis, end] for end in (0, 1))
            out *= np.clip(np.minimum(high, others_high) - np.maximum(low, others_low), 0, None)
        return out

    def beside(self, other: "Regions") -> Ints:
        """Points that a machine has in both, layout by layout: [p, m]."""
        return np.where(self.there & other.there, _overlap_volumes(self.boxes, other.boxes), 0)

    def boxes_of(self, p: int) -> list[PlacedBox]:
        """The boxes of one layout, with their machines."""
        machines = np.flatnonzero(self.there[p]).tolist()
        return [(tuple((a, b) for a, b in self.boxes[p, m].tolist()), m) for m in machines]

    def once(self, info: TensorInfo) -> Bools:
        """Whether every point of the tensor is on exactly one machine: [p]."""
        complete = (self.points.sum(axis=1) == volume(info.box)).tolist()
        return np.array(
            [full and not boxes_overlap([b for b, _ in self.boxes_of(p)]) for p, full in enumerate(complete)]
        )


@dataclass(frozen=True)
class LayoutSpace:
    """The layouts an operator may have. p: layouts, m: machines of the cluster, l: loops, a: axes of the output.

    boxes: [p, m, l, 2]. active: machines that have one, [p, m]. complete: what each machine has of the only output once
    sums are complete (see `output_regions`). partial: what it computes of it. parts: partial results that a point of
    the output has, [p].
    """

    op: Op
    mesh: DeviceMesh
    layouts: tuple[Layout, ...]
    boxes: Ints
    active: Bools
    complete: Regions
    partial: Regions
    parts: Ints

    def __getitem__(self, p: int) -> "LayoutSpace":
        """The operator with this layout alone."""
        one = slice(p, p + 1)
        return replace(
            self,
            layouts=self.layouts[one],
            boxes=self.boxes[one],
            active=self.active[one],
            complete=self.complete[p],
            partial=self.partial[p],
            parts=self.parts[one],
        )

    def boxes_of(self, p: int) -> list[PlacedBox]:
        """The boxes of one layout."""
        return placed_boxes(self.boxes[p]) if self.layouts[p] else [(self.op.nest.box, self.mesh.machines[0])]


def layout_space(op: Op, mesh: DeviceMesh, output: TensorInfo) -> LayoutSpace:
    """All layouts of an operator on a mesh (GSPMD, Xu et al., 2021, section 3). output: its first output."""
    sizes = [loop.size for loop in op.nest.loops]
    layouts = enumerate_layouts(op.nest.loops, mesh.shape)
    boxes = np.stack([mesh.boxes(sizes, layout) for layout in layouts])
    rank = len(output.extents) if len(op.outputs) == 1 else 0
    summed = [i for i, loop in enumerate(op.nest.loops) if loop.kind == "reduction"]
    parallel = [i for i in range(rank) if sizes[i] > 1]
    parts = [math.prod(mesh.shape[d] for d, loop in layout if loop in summed) for layout in layouts]
    owners = [
        reduce_scatter_layout(mesh, sizes, layout, parallel=parallel, summed=summed)
        if any(loop in summed for _, loop in layout)
        else layout
        for layout in layouts
    ]
    active = _machines_used(mesh, layouts) & _has_points(boxes)
    partial = Regions(boxes[:, :, :rank], active)
    complete = _layout_regions(mesh, sizes[:rank], owners)
    return LayoutSpace(op, mesh, tuple(layouts), boxes, active, complete, partial, np.array(parts, dtype=np.int64))


def output_regions(of: LayoutSpace, info: TensorInfo) -> Regions:
    """What each machine has of an output, sums complete; several outputs are whole, on one machine."""
    return of.complete if len(of.op.outputs) == 1 else _layout_regions(of.mesh, info.extents, [()] * len(of.layouts))


def input_regions(of: LayoutSpace, operand: Operand, info: TensorInfo) -> Regions:
    """What each machine reads of an operand."""
    boxes, reads = of.boxes, of.active
    out = np.zeros((*boxes.shape[:2], len(operand.readings), 2), dtype=np.int64)
    for axis, (reading, extent) in enumerate(zip(operand.readings, info.extents, strict=True)):
        out[:, :, axis] = _interval(reading, of, extent)
    if operand.once:
        for i in of.op.nest.reduction_loops:
            reads = reads & (boxes[:, :, i, 0] == 0)
    return Regions(out, reads & _has_points(out))


def _layout_regions(mesh: DeviceMesh, extents: Sequence[int], layouts: Sequence[Layout]) -> Regions:
    """A tensor of these extents in each layout."""
    boxes = np.stack([mesh.boxes(extents, layout) for layout in layouts])
    return Regions(boxes, _machines_used(mesh, layouts) & _has_points(boxes))


def _machines_used(mesh: DeviceMesh, layouts: Sequence[Layout]) -> Bools:
    """Machines that have a part: all of the mesh, or only its first where nothing is cut: [p, m]."""
    all_used, first_used = np.zeros((2, mesh.total), dtype=bool)
    all_used[list(mesh.machines)] = first_used[mesh.machines[0]] = True
    return np.where(np.array([bool(layout) for layout in layouts])[:, None], all_used, first_used)


def _has_points(boxes: Ints) -> Bools:
    """Whether a box has any points: of [..., axes, 2], [...]."""
    return np.asarray((boxes[..., 1] > boxes[..., 0]).all(axis=-1))


def _overlap_volumes(a: Ints, b: Ints) -> Ints:
    """Points that boxes share: of [..., axes, 2], [...]."""
    return _volumes(np.stack([np.maximum(a[..., 0], b[..., 0]), np.minimum(a[..., 1], b[..., 1])], axis=-1))


def _volumes(boxes: Ints) -> Ints:
    """Points of each box: of [..., axes, 2], [...]."""
    return np.asarray(np.clip(boxes[..., 1] - boxes[..., 0], 0, None).prod(axis=-1))


def _interval(reading: Reading, of: LayoutSpace, extent: int) -> Ints:
    boxes = of.boxes
    match reading:
        case Follow(loop):
            return boxes[:, :, loop]
        case Window(loop, stride, offset, width, covers, divisor):
            low, high = boxes[:, :, loop, 0], boxes[:, :, loop, 1]
            start = np.maximum(0, (low * stride + offset) // divisor)
            stop = np.minimum(extent, ((high - 1) * stride + offset + width - 1) // divisor + 1)
            if covers:
                uncut = (low == 0) & (high == of.op.nest.loops[loop].size)
                start, stop = np.where(uncut, 0, start), np.where(uncut, extent, stop)
            return np.stack([start, stop], axis=-1)
        case Fixed(start_at, stop_at):
            return np.broadcast_to(np.array([start_at, stop_at]), (*boxes.shape[:2], 2))
        case _:
            return np.broadcast_to(np.array([0, extent]), (*boxes.shape[:2], 2))
