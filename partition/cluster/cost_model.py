"""The cost model: the seconds of one box of one operator on one machine, forward and backward.

A box takes as long as its FLOPs at the machine's rate for its class of operators, or as its bytes at the bandwidth of
the machine's memory, whichever is longer, and what starting it costs. (The roofline model, Williams et al., CACM 2009.)
Classes come from the operator table. Backward gives one gradient for each operand that wants one, and each costs
what its class says.

Only the lengths of a box count, not where it lies; so costs are remembered by lengths.
"""

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from ..ir.box import Box, sizes, volume
from .machines import Machine
from ..ir.graph import Fixed, Follow, Graph, Op, Operand, Reading, TensorInfo, Window
from ..ir.random_ops import noise_name
from ..operators.sharding_rule import PART
from ..operators.registry import TABLE

CONTRACTION, CONVOLUTION, ATTENTION, OPAQUE = "contraction", "convolution", "attention", "opaque"
LOCAL, POOLING, NORMALISATION, LOSS = "local", "pooling", "normalisation", "loss"
ELEMENTWISE, FUNCTION, REDUCTION = "elementwise", "function", "reduction"
EMBEDDING, VIEW, COPY, RANDOM = "embedding", "view", "copy", "random"

CLASSES = (
    *(CONTRACTION, CONVOLUTION, LOCAL, ATTENTION, POOLING, NORMALISATION, LOSS, FUNCTION),
    *(ELEMENTWISE, REDUCTION, EMBEDDING, VIEW, COPY, RANDOM, OPAQUE),
)

# fmt: off
_FUNCTIONS = (
    "exp", "exp2", "expm1", "log", "log1p", "log2", "log10", "sin", "cos", "tan", "asin", "acos", "atan", "sinh",
    "cosh", "asinh", "acosh", "atanh", "atan2", "sinc", "erf", "erfc", "erfinv", "lgamma", "digamma", "logit", "pow",
    "float_power", "tanh", "sigmoid", "log_sigmoid", "gelu", "silu", "elu", "selu", "celu", "mish", "softplus", "fmod",
    "remainder", "logaddexp", "logaddexp2", "xlogy", "cumprod", "logcumsumexp", "logsumexp", "sort", "argsort", "topk",
    "median", "mode", "kthvalue",
)
_COPIES = (
    "repeat", "tile", "repeat_interleave", "flip", "roll", "rot90", "copy_", "clone", "_to_copy", "im2col", "col2im",
    "pad", "pixel_shuffle", "pixel_unshuffle", "channel_shuffle",
)
_VIEWS = ("detach", "alias", "to", "contiguous", "lift_fresh_copy", "positive", "select", "slice", "unfold")
# fmt: on
_BY_NAME = {
    **dict.fromkeys(_FUNCTIONS, FUNCTION),
    **dict.fromkeys(_COPIES, COPY),
    **dict.fromkeys(_VIEWS, VIEW),
    **dict.fromkeys(("embedding", "embedding_bag"), EMBEDDING),
    "local2d": LOCAL,
}
_BY_FILE = {
    "reduction": REDUCTION,
    "attention": ATTENTION,
    "contraction": CONTRACTION,
    "indexing": COPY,
    "split_reductions": REDUCTION,
    "loss": LOSS,
    "movement": VIEW,
    "normalisation": NORMALISATION,
    "pooling": POOLING,
    "rows_reduction": REDUCTION,
    "resampling": FUNCTION,
    "convolution": CONVOLUTION,
}


def class_of(op: Op) -> str:
    """The class of an operator: by its name, else by the file that its row is in, else elementwise."""
    row = op.row.removesuffix(PART)
    if row not in TABLE:
        return OPAQUE
    name = row.rpartition(".")[2]
    file = TABLE[row].sign.__module__.rpartition(".")[2]
    return _BY_NAME.get(name) or _BY_FILE.get(file, ELEMENTWISE)


def is_cast(op: Op, tensors: Mapping[str, TensorInfo]) -> bool:
    """Whether an operator only makes another dtype of a tensor."""
    return op.row == "aten.to" and tensors[op.outputs[0]].dtype != tensors[op.nest.operands[0].tensor].dtype


@dataclass(frozen=True)
class Work:
    """What a box of an operator does: floating-point operations, and bytes read and written.

    gradients: how many operands are given a gradient, backward; bytes_added: of the gradients of parameters, which are
    added to what is there.
    """

    kind: str
    flops: float
    bytes: int
    flops_back: float
    bytes_back: int
    bytes_added: int
    gradients: int

    def seconds(self, machine: Machine) -> tuple[float, float]:
        """Forward and backward."""
        bandwidth, rate = machine.memory_bandwidth, machine.rate(self.kind)
        start, start_back = self.starts(machine)
        forward = max(self.flops / rate.flops_per_s, self.bytes / bandwidth)
        backward = max(self.flops_back / rate.back_flops_per_s, self.bytes_back / bandwidth)
        backward += self.bytes_added / bandwidth
        return start + forward, start_back + backward

    def starts(self, machine: Machine) -> tuple[float, float]:
        """What of these seconds is there however small the box is."""
        rate = machine.rate(self.kind)
        return rate.start_s, rate.gradient_s * self.gradients


class Costs:
    """What boxes of the operators of one graph cost; it remembers what it has worked out.

    tensors: the graph's, by name. known: of the same graph, which knows all its operators but those `changed`.
    """

    def __init__(
        self, tensors: Mapping[str, TensorInfo], known: "Costs | None" = None, changed: Collection[str] = ()
    ) -> None:
        self.tensors = tensors
        self._known, self._changed = known, changed
        self._ops: dict[str, _Measure] = {}
        self._work: dict[tuple[str, tuple[int, ...]], Work] = {}

    def work(self, op: Op, box: Box) -> Work:
        """What a box of an operator does."""
        if self._known is not None and op.name not in self._changed:
            return self._known.work(op, box)
        lengths = sizes(box)
        key = (op.name, lengths)
        if key not in self._work:
            if op.name not in self._ops:
                self._ops[op.name] = _Measure(op, self.tensors)
            self._work[key] = self._ops[op.name].work(lengths)
        return self._work[key]

    def seconds(self, op: Op, box: Box, machine: Machine) -> tuple[float, float]:
        """Forward and backward seconds of a box of an operator on a machine."""
        return self.work(op, box).seconds(machine)


def seconds(op: Op, box: Box, machine: Machine, tensors: Mapping[str, TensorInfo]) -> tuple[float, float]:
    """Forward and backward seconds of a box of an operator; for many boxes, keep a `Costs`."""
    return _Measure(op, tensors).work(sizes(box)).seconds(machine)


def sum_seconds(box: Box, parts: int, machine: Machine, *, element_bytes: int) -> tuple[float, float]:
    """Forward and backward seconds of adding `parts` partial results up into `box`; the gradient of each is a view."""
    added = max(0, parts - 1)
    moved = 3 * added * volume(box) * element_bytes
    return machine.operator_s + moved / machine.memory_bandwidth, machine.gradient_s * added


def gather_seconds(box: Box, pieces: int, machine: Machine, *, element_bytes: int) -> tuple[float, float]:
    """Forward and backward seconds of putting an operand together from several pieces; nothing where it is one.

    Each piece is copied to its place, or its gradient cut out, by a call that starts about as quickly as a gradient.
    """
    if pieces <= 1:
        return 0.0, 0.0
    moved = 2 * volume(box) * element_bytes / machine.memory_bandwidth
    return machine.operator_s + machine.gradient_s * pieces + moved, machine.gradient_s * (1 + pieces)


def noise_seconds(graph: Graph, needed: Collection[str], machine: Machine) -> float:
    """Seconds that a machine draws for a micro-batch: every mask of the model, whole, up to the last one it needs.

    needed: names of the noise tensors that its operators read. One generator draws them in turn, on one core.
    """
    drawn = [graph.tensors[noise_name(op.name)] for op in graph.ops if noise_name(op.name) in graph.tensors]
    last = max((i for i, info in enumerate(drawn) if info.name in needed), default=-1)
    rate = machine.rate(RANDOM)
    return sum(rate.start_s + volume(info.box) / rate.flops_per_s for info in drawn[: last + 1])


class _Measure:
    """What of an operator's work does not depend on the box."""

    def __init__(self, op: Op, tensors: Mapping[str, TensorInfo]) -> None:
        self.op, self.tensors = op, tensors
        self.output = tensors[op.outputs[0]]
        self.operands = [_Reach(operand, tensors[operand.tensor]) for operand in op.nest.operands]
        self.kind = COPY if is_cast(op, tensors) else class_of(op)
        self.wanted = [reach for reach in self.operands if reach.info.gradient] if self.output.gradient else []

    def work(self, lengths: tuple[int, ...]) -> Work:
        read = sum(reach.bytes(lengths) for reach in self.operands)
        made = self._made(lengths)
        returned = sum(reach.bytes(lengths) for reach in self.wanted)
        count = len(self.wanted)
        if self.kind == VIEW:  # backward, what was not looked at has a gradient of zeros
            spanned = sum(reach.spanned_bytes(lengths) for reach in self.wanted if reach.narrows)
            return Work(self.kind, 0.0, 0, 0.0, spanned, 0, count)
        if self.kind in (EMBEDDING, COPY):  # only as much is read as is made, whatever may be looked at
            read = made // self.output.element_bytes * self.operands[0].info.element_bytes if self.operands else made
        flops = self.op.nest.work * math.prod(lengths)
        heavy = sum(1 for reach in self.wanted if not reach.operand.once)
        flops_back = _BACK.get(self.kind, _one)(heavy) * flops
        bytes_back = made + read + returned if self.wanted else 0
        added = 3 * sum(reach.bytes(lengths) for reach in self.wanted if reach.info.kind == "parameter")
        return Work(self.kind, flops, read + made, flops_back, bytes_back, added, count)

    def _made(self, lengths: tuple[int, ...]) -> int:
        if len(self.op.outputs) == 1:
            return math.prod(lengths[: len(self.output.extents)]) * self.output.element_bytes
        infos = [self.tensors[name] for name in self.op.outputs]  # several outputs are always whole
        return sum(volume(info.box) * info.element_bytes for info in infos)


def _one(gradients: int) -> float:
    """Backward FLOPs as a multiple of forward: as many again where any gradient is wanted."""
    return float(gradients > 0)


def _each(gradients: int) -> float:
    """A product of the same size for each operand that wants a gradient."""
    return float(gradients)


def _attention(gradients: int) -> float:
    """Four products where forward has two, and the scores once more (Dao et al., NeurIPS 2022, appendix B)."""
    return 2.5 if gradients else 0.0


_BACK: Mapping[str, Callable[[int], float]] = {
    CONTRACTION: _each,
    CONVOLUTION: _each,
    LOCAL: _each,
    ATTENTION: _attention,
    OPAQUE: lambda gradients: 2.0 if gradients else 0.0,
}


class _Reach:
    """How much of an operand a box reads, by the lengths of the box.

    narrows: it reads a window of what is there.
    """

    def __init__(self, operand: Operand, info: TensorInfo) -> None:
        self.operand, self.info = operand, info
        readings = list(zip(operand.readings, info.extents, strict=True))
        self.narrows = any(isinstance(reading, Window | Fixed) for reading, _ in readings)
        self._read = [_length(reading, extent) for reading, extent in readings]
        self._spanned = [_length(r if isinstance(r, Follow) else None, extent) for r, extent in readings]

    def bytes(self, lengths: tuple[int, ...]) -> int:
        return math.prod(length(lengths) for length in self._read) * self.info.element_bytes

    def spanned_bytes(self, lengths: tuple[int, ...]) -> int:
        """What is there, of which it may read a window."""
        return math.prod(length(lengths) for length in self._spanned) * self.info.element_bytes


def _length(reading: Reading, extent: int) -> Callable[[tuple[int, ...]], int]:
    match reading:
        case Follow(loop):
            return lambda lengths: lengths[loop]
        case Window(loop, stride, _, width, _, divisor):
            return lambda lengths: min(extent, ((lengths[loop] - 1) * stride + width - 1) // divisor + 1)
        case Fixed(start, stop):
            return lambda lengths: stop - start
        case _:
            return lambda lengths: extent
