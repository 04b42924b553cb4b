"""`Graph`: a model's operators and tensors as plain data - shapes, axes, loops, FLOPs and bytes, without any weight.

An operator is a loop nest over axes. Its first loops are those of its output ("parallel", one per axis of the output);
the others are summed over ("reduction"). A "fixed" loop is never cut. How an operand is read is given per axis of the
operand: `Follow` a loop, a `Window` of a loop (convolution, pooling, offsets), or whole (None).
"""

import hashlib
from functools import cached_property
from typing import Any

import msgspec

from .box import Box, volume, whole


class TensorInfo(msgspec.Struct, frozen=True):
    """A tensor of the graph.

    kind: "input", "target", "parameter", "frozen" (a parameter without gradient), "buffer", "constant", "noise" (random
    numbers of an operator) or "value" (computed). axes: per dimension the axis numbers, outermost first; sizes: their
    lengths.
    stride: as torch would lay it out (elements). gradient: whether a gradient flows through it.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    kind: str
    axes: tuple[tuple[int, ...], ...]
    sizes: tuple[tuple[int, ...], ...]
    stride: tuple[int, ...]
    gradient: bool
    element_bytes: int

    @property
    def extents(self) -> tuple[int, ...]:
        """Sizes of all axes, outermost first: the shape in which boxes of this tensor are cut."""
        return tuple(size for dim in self.sizes for size in dim)

    @property
    def box(self) -> Box:
        """The box of the whole tensor."""
        return whole(self.extents)

    def local_shape(self, box: Box) -> tuple[int, ...]:
        """The shape of a box of this tensor with its axes merged back to dimensions."""
        shape, at = [], 0
        for dim in self.sizes:
            extent = 1
            for start, stop in box[at : at + len(dim)]:
                extent *= stop - start
            shape.append(extent)
            at += len(dim)
        return tuple(shape)

    def dim_slices(self, inner: Box, outer: Box) -> tuple[slice, ...] | None:
        """The index that cuts `inner` out of `outer` in the shape of their dimensions; None where none does."""
        out, at = [], 0
        for dim in self.sizes:
            here = slice(at, at + len(dim))
            at += len(dim)
            if inner[here] == outer[here]:
                out.append(slice(None))
            elif len(dim) == 1:
                (start, stop), (first, _) = inner[here][0], outer[here][0]
                out.append(slice(start - first, stop - first))
            else:
                return None
        return tuple(out)

    def dim_interval(self, box: Box, dim: int) -> tuple[int, int]:
        """The interval of `box` along dimension `dim`, which must have one axis at most."""
        at = sum(len(sizes) for sizes in self.sizes[:dim])
        return box[at] if self.sizes[dim] else (0, 1)


class LoopInfo(msgspec.Struct, frozen=True):
    """One loop: the axis it runs over, its length, and its kind: "parallel", "reduction" or "fixed"."""

    axis: int
    size: int
    kind: str


class Follow(msgspec.Struct, frozen=True, tag="follow"):
    """The operand is read where the loop is."""

    loop: int


class Window(msgspec.Struct, frozen=True, tag="window"):
    """Loop interval [a, b) reads [a*stride + offset, (b-1)*stride + offset + extent), clipped to the operand.

    covers: the uncut loop reads the whole operand, also the edge that a stride leaves over. divisor: the indices above
    are counted in this fraction of the operand's (a stride of 1 / 2 doubles an image); what is touched in part is read.
    """

    loop: int
    stride: int
    offset: int
    extent: int
    covers: bool
    divisor: int = 1


class Fixed(msgspec.Struct, frozen=True, tag="fixed"):
    """The operand is read at [start, stop) whatever the loops."""

    start: int
    stop: int


Reading = Follow | Window | Fixed | None


class Operand(msgspec.Struct, frozen=True):
    """How one argument of an operator is read. once: by one part of a sum only, which adds it (a bias) or writes it."""

    argument: str
    tensor: str
    readings: tuple[Reading, ...]
    once: bool


class Nest(msgspec.Struct, frozen=True):
    """The loops of an operator, how each operand is read, and `work`: FLOPs per point of the nest.

    joined: loops whose parts must know of each other, as those of a softmax; if one is cut, see joining.py.
    """

    loops: tuple[LoopInfo, ...]
    operands: tuple[Operand, ...]
    work: float
    joined: tuple[int, ...] = ()

    @property
    def box(self) -> Box:
        """All points."""
        return whole([loop.size for loop in self.loops])

    @property
    def gathering(self) -> frozenset[int]:
        """Loops of which only the first part adds what is added once, and writes what is written once."""
        return frozenset(i for i, loop in enumerate(self.loops) if loop.kind == "reduction").union(self.joined)


class Op(msgspec.Struct, frozen=True):
    """One operator. arguments: by name as plain data, a tensor as {"tensor": name}; source: file and line of the model.

    writes: buffers that it overwrites.
    """

    name: str
    target: str
    arguments: dict[str, Any]
    outputs: tuple[str, ...]
    nest: Nest
    row: str
    module: str
    source: str
    writes: tuple[str, ...] = ()

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the tensors that are read, in the order of the arguments."""
        return tuple(operand.tensor for operand in self.nest.operands)

    @property
    def flops(self) -> float:
        """FLOPs of the whole operator, forward."""
        return self.nest.work * volume(self.nest.box)

    @property
    def cuttable(self) -> bool:
        """Whether any loop can be cut."""
        return any(loop.kind != "fixed" for loop in self.nest.loops)


class Graph(msgspec.Struct, frozen=True, dict=True):
    """The captured model. results: the loss of a training graph, or the output of an evaluation graph."""

    tensors: dict[str, TensorInfo]
    ops: tuple[Op, ...]
    axes: tuple[tuple[str, int], ...]
    batch_axes: tuple[int, ...]
    results: tuple[str, ...]

    @property
    def parameters(self) -> list[TensorInfo]:
        """Trained parameters, in the model's order."""
        return [t for t in self.tensors.values() if t.kind == "parameter"]

    @property
    def states(self) -> list[TensorInfo]:
        """Parameters, frozen parameters, buffers and constants: what must be given before a step."""
        return [t for t in self.tensors.values() if t.kind in STATE_KINDS]

    @cached_property
    def overwritten(self) -> dict[str, tuple["Op", ...]]:
        """Buffers that a step overwrites, and the operators that touch them, which must see each other's writes."""
        written = {name for op in self.ops for name in op.writes}
        touching = [(op, written.intersection(op.inputs)) for op in self.ops]
        return {name: tuple(op for op, touched in touching if name in touched) for name in sorted(written)}

    @cached_property
    def producers(self) -> dict[str, str]:
        """Operator that computes each value."""
        return {output: op.name for op in self.ops for output in op.outputs}

    @cached_property
    def digest(self) -> str:
        """sha256 over operators and shapes, but not over where in the source they stand."""
        bare = [(op.name, op.target, op.arguments, op.outputs, op.nest) for op in self.ops]
        return hashlib.sha256(msgspec.json.encode([bare, self.tensors, self.results], order="sorted")).hexdigest()


STATE_KINDS = ("parameter", "frozen", "buffer", "constant")


def reads(nest: Nest, operand: Operand, box: Box, extents: tuple[int, ...]) -> Box | None:
    """The box of the operand that a box of the nest reads; None where it reads nothing (another part of a `cat`)."""
    if operand.once and not at_origin(nest, box):
        return None
    out = []
    for reading, extent in zip(operand.readings, extents, strict=True):
        interval = _interval(reading, nest, box, extent)
        if interval[0] >= interval[1] and extent:
            return None
        out.append(interval)
    return tuple(out)


def _interval(reading: Reading, nest: Nest, box: Box, extent: int) -> tuple[int, int]:
    match reading:
        case Follow(loop):
            return box[loop]
        case Window(loop, _, _, _, covers) if covers and box[loop] == (0, nest.loops[loop].size):
            return 0, extent
        case Window(loop, stride, offset, width, _, divisor):
            start, stop = box[loop]
            last = (stop - 1) * stride + offset + width - 1
            return max(0, (start * stride + offset) // divisor), min(extent, last // divisor + 1)
        case Fixed(start, stop):
            return start, stop
        case _:
            return 0, extent


def output_box(op: Op, tensor: TensorInfo, box: Box) -> Box:
    """The box of an output that a box of the nest computes; several outputs are always whole."""
    return tensor.box if len(op.outputs) != 1 else box[: len(tensor.extents)]


def is_partial(nest: Nest, box: Box) -> bool:
    """Whether a box of the nest gives only a part of a sum."""
    return any(
        loop.kind == "reduction" and interval != (0, loop.size) for loop, interval in zip(nest.loops, box, strict=True)
    )


def at_origin(nest: Nest, box: Box) -> bool:
    """Whether a box holds the first point of every loop that gathers: it adds what is added once."""
    return all(box[i][0] == 0 for i in nest.gathering)


def is_joined(nest: Nest, box: Box) -> bool:
    """Whether a box has only a part of what must be joined."""
    return any(box[i] != (0, nest.loops[i].size) for i in nest.joined)
