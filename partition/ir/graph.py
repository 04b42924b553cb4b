"""`Graph`: a model's operators and tensors as plain data - shapes, axes, loops, FLOPs and bytes, without any weight.

An operator is a loop nest over axes. Its first loops are "parallel", one for each axis of its output; the others are
summed over ("reduction"). A "fixed" loop is never cut. How an operand is read is said for each of its axes: it follows
a loop (`Follow`), is a window that moves with a loop (`Window`, as of a convolution), or is read whole (None).
"""

import hashlib
from collections.abc import Collection
from functools import cached_property
from typing import Any

import msgspec

from .box import Box, volume, whole
from .output_layout import OutputLayout

OPAQUE = "opaque"  # stands for the sharding rule of an operator that has none
FOUND = "found"  # stands for a rule that was found by running the operator


class TensorInfo(msgspec.Struct, frozen=True, dict=True):
    """A tensor of the graph.

    kind: "input", "target", "parameter", "frozen" (a parameter without gradient), "buffer", "constant", "random" (an
    operator's dropout mask or generator state) or "value" (computed). axes: for each dimension the axis numbers,
    outermost first; sizes: their lengths. stride: as torch would lay it out, in elements. gradient: whether a gradient
    flows through it. density: the share of its rows that are expected not to be zero; below 1, zeros do not travel.
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
    density: float = 1.0

    @property
    def travelling_bytes(self) -> float:
        """Bytes of an element on its way between machines, on average."""
        return self.element_bytes * self.density

    @cached_property
    def extents(self) -> tuple[int, ...]:
        """Sizes of all axes, outermost first: the shape in which boxes of this tensor are cut."""
        return tuple(size for dim in self.sizes for size in dim)

    @cached_property
    def box(self) -> Box:
        """The box of the whole tensor."""
        return whole(self.extents)

    def local_shape(self, box: Box) -> tuple[int, ...]:
        """Return the shape of a box of this tensor with its axes merged back to dimensions."""
        shape, at = [], 0
        for dim in self.sizes:
            extent = 1
            for start, stop in box[at : at + len(dim)]:
                extent *= stop - start
            shape.append(extent)
            at += len(dim)
        return tuple(shape)

    def dim_slices(self, inner: Box, outer: Box) -> tuple[slice, ...] | None:
        """Return the index that cuts `inner` out of `outer` in the shape of their dimensions; None where none does."""
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
        """Return the interval of `box` along dimension `dim`, which must have at most one axis."""
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
    """How one argument of an operator is read. once: only by the first part of a reduction, which adds or writes it."""

    argument: str
    tensor: str
    readings: tuple[Reading, ...]
    once: bool


class LoopNest(msgspec.Struct, frozen=True, dict=True):
    """The loops of an operator, how each operand is read, and `work`, the FLOPs for each point of the nest.

    non_additive: loops of a non-additive reduction, as of a softmax, whose parts must know of each other; where one is
    cut, dataflow.reduction_split makes two operators of the one.
    """

    loops: tuple[LoopInfo, ...]
    operands: tuple[Operand, ...]
    work: float
    non_additive: tuple[int, ...] = ()

    @cached_property
    def box(self) -> Box:
        """The box of all points."""
        return whole([loop.size for loop in self.loops])

    @cached_property
    def reduction_loops(self) -> frozenset[int]:
        """Loops of which only the first part adds what is added once, and writes what is written once."""
        return frozenset(i for i, loop in enumerate(self.loops) if loop.kind == "reduction").union(self.non_additive)


class Op(msgspec.Struct, frozen=True):
    """One operator.

    target: torch's name, "aten.linear.default". arguments: by name as plain data, a tensor as {"tensor": name}.
    sharding_rule: the name of its rule, FOUND or OPAQUE. module, source: where in the model it stands, the latter as
    "file:line". writes: buffers that it overwrites.
    """

    name: str
    target: str
    arguments: dict[str, Any]
    outputs: tuple[str, ...]
    nest: LoopNest
    sharding_rule: str
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
    def is_cuttable(self) -> bool:
        """Whether any loop can be cut."""
        return any(loop.kind != "fixed" for loop in self.nest.loops)


class Graph(msgspec.Struct, frozen=True, dict=True):
    """The captured model.

    results: the loss of a training graph, or of an evaluation graph what is read of the output. output: how that is
    nested; None where it is the first tensor alone.
    """

    tensors: dict[str, TensorInfo]
    ops: tuple[Op, ...]
    axes: tuple[tuple[str, int], ...]
    batch_axes: tuple[int, ...]
    results: tuple[str, ...]
    output: OutputLayout | None = None

    @property
    def parameters(self) -> list[TensorInfo]:
        """Trained parameters, in the model's order."""
        return [t for t in self.tensors.values() if t.kind == "parameter"]

    @property
    def states(self) -> list[TensorInfo]:
        """Parameters, frozen parameters, buffers and constants: what must be given before a step."""
        return [t for t in self.tensors.values() if t.kind in STATE_KINDS]

    @property
    def frozen(self) -> list[str]:
        """Names of the parameters that are not trained, in the model's order."""
        return [t.name for t in self.tensors.values() if t.kind == "frozen"]

    @cached_property
    def overwritten(self) -> dict[str, tuple["Op", ...]]:
        """Buffers that a step overwrites, with the operators that read or write them and must see all writes."""
        written = {name for op in self.ops for name in op.writes}
        touching = [(op, written.intersection(op.inputs)) for op in self.ops]
        return {name: tuple(op for op, touched in touching if name in touched) for name in sorted(written)}

    @cached_property
    def producers(self) -> dict[str, str]:
        """The operator that computes each value."""
        return {output: op.name for op in self.ops for output in op.outputs}

    @cached_property
    def digest(self) -> str:
        """The sha256 of operators and shapes, but not of where in the source they stand."""
        bare = [(op.name, op.target, op.arguments, op.outputs, op.nest) for op in self.ops]
        return hashlib.sha256(msgspec.json.encode([bare, self.tensors, self.results], order="sorted")).hexdigest()


STATE_KINDS = ("parameter", "frozen", "buffer", "constant")


def freeze_parameters(graph: Graph, names: Collection[str]) -> Graph:
    """Return a graph in which the parameters of these names are not trained."""
    tensors = {
        name: msgspec.structs.replace(info, kind="frozen", gradient=False)
        if info.kind == "parameter" and name in names
        else info
        for name, info in graph.tensors.items()
    }
    return msgspec.structs.replace(graph, tensors=tensors)


def read_box(nest: LoopNest, operand: Operand, box: Box, extents: tuple[int, ...]) -> Box | None:
    """Return the box of an operand that a box of the nest reads; None where it reads nothing (another part of `cat`).

    extents: the lengths of the operand's axes.
    """
    if operand.once and not is_at_origin(nest, box):
        return None
    out = []
    for reading, extent in zip(operand.readings, extents, strict=True):
        interval = _interval(reading, nest, box, extent)
        if interval[0] >= interval[1] and extent:
            return None
        out.append(interval)
    return tuple(out)


def _interval(reading: Reading, nest: LoopNest, box: Box, extent: int) -> tuple[int, int]:
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
    """Return the box of an output that a box of the nest computes; several outputs are always whole."""
    return tensor.box if len(op.outputs) != 1 else box[: len(tensor.extents)]


def is_partial(nest: LoopNest, box: Box) -> bool:
    """Whether a box of the nest computes only a part of a sum."""
    return any(
        loop.kind == "reduction" and interval != (0, loop.size) for loop, interval in zip(nest.loops, box, strict=True)
    )


def is_at_origin(nest: LoopNest, box: Box) -> bool:
    """Whether a box has the first point of every reduction loop, so that it adds what is added once."""
    return all(box[i][0] == 0 for i in nest.reduction_loops)


def cuts_non_additive(nest: LoopNest, box: Box) -> bool:
    """Whether a box has only a part of a non-additive loop."""
    return any(box[i] != (0, nest.loops[i].size) for i in nest.non_additive)
