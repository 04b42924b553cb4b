"""The cost model: seconds of one box of one operator on one machine, forward and backward.

The roofline model (Williams, Waterman and Patterson, CACM 2009) with an overhead for each call:

    forward  = start + max(FLOPs / rate of the class, bytes / memory bandwidth)
    backward = starts of the gradients + the same maximum for backward + bytes of accumulated gradients / bandwidth

The class of an operator and its FLOPs for each point of the loops (`Signature.work`) stand in its sharding rule.
Backward computes one gradient for each operand that wants one, and the class says how many FLOPs these take. Costs
depend on the lengths of a box alone, so they are cached by lengths.

Where an operator was measured on a machine, its times are those of the model, times the ratio of measured and modelled
time of the whole operator; the model then says only how they change with the size of a box. An operator is known by its
signature: what it computes, of tensors of which shapes. A class may have a ratio, too, as runs have shown it. A part of
an operator may take more than its share, as half of the channels of a convolution do, or less, where it starts sooner
than the smallest of its class: where halves were measured, too, a box takes so many times as long as a half of each
loop does, as often as that loop was halved.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from ..ir.arguments import rename_tensors
from ..ir.box import Box, sizes, volume
from ..ir.graph import FOUND, Fixed, Follow, Graph, LoopInfo, Op, Operand, Reading, TensorInfo, Window
from ..ir.like_operators import LikeOperators
from ..ir.random_ops import random_tensor_name
from ..operators.found_rule import classify_found
from ..operators.registry import TABLE
from ..operators.sharding.cost_class import (
    ATTENTION,
    CONTRACTION,
    CONVOLUTION,
    COPY,
    EMBEDDING,
    LOCAL,
    OPAQUE,
    RANDOM,
    VIEW,
    CostClass,
)
from ..operators.sharding.sharding_rule import SUMMARY_SUFFIX
from .machines import Machine

MAX_HALVINGS = 3.0  # of a loop, that are as costly as the measured one; of smaller parts nothing is known
PACKING_CALLS = 4  # that pack a tensor or unpack it (operators.routed_rows)


def class_of(op: Op) -> CostClass:
    """Return the class of an operator, which its sharding rule names; without a rule it is opaque."""
    if op.sharding_rule == FOUND:
        return classify_found(op.target)
    rule = TABLE.get(op.sharding_rule.removesuffix(SUMMARY_SUFFIX))
    return rule.cost if rule is not None else OPAQUE


def is_cast(op: Op, tensors: Mapping[str, TensorInfo]) -> bool:
    """Whether an operator only changes the dtype of a tensor."""
    return op.sharding_rule == "aten.to" and tensors[op.outputs[0]].dtype != tensors[op.nest.operands[0].tensor].dtype


@dataclass(frozen=True)
class Work:
    """The work of a box of an operator: floating-point operations, and bytes read and written.

    gradients: how many operands get a gradient in backward. accumulated_bytes: of the gradients of parameters, which
    are added to those of earlier micro-batches. signature: of the operator. halvings: of each loop of which the box has
    a part, the name of its ratio and how often the loop was halved. parameter_part: of the products of backward, those
    for parameters.
    """

    kind: str
    flops: float
    bytes: int
    backward_flops: float
    backward_bytes: int
    accumulated_bytes: int
    gradients: int
    signature: str = ""
    halvings: tuple[tuple[str, float], ...] = ()
    parameter_part: float = 0.0

    def seconds(self, machine: Machine) -> tuple[float, float]:
        """Forward and backward seconds on a machine."""
        forward, backward = self.modelled_seconds(machine)
        if not machine.ratios:
            return forward, backward
        for name in (self.signature, self.kind):
            ahead, back = machine.ratios.get(name, (1.0, 1.0))
            forward, backward = ahead * forward, back * backward
        for name, times in self.halvings:
            if name in machine.ratios:
                ahead, back = machine.ratios[name]
                forward, backward = ahead**times * forward, back**times * backward
        return forward, backward

    def parameter_seconds(self, machine: Machine) -> float:
        """The seconds of backward that products for the gradients of parameters take, and adding these."""
        _, modelled = self.modelled_seconds(machine)
        if not modelled:
            return 0.0
        added = self.accumulated_bytes / machine.memory_bandwidth
        part = (self.parameter_part * (modelled - added) + added) / modelled
        return part * self.seconds(machine)[1]

    def modelled_seconds(self, machine: Machine) -> tuple[float, float]:
        """Forward and backward seconds by the rates of the class alone."""
        bandwidth, rate = machine.memory_bandwidth, machine.rate(self.kind)
        start, backward_start = self.starts(machine)
        forward = max(self.flops / rate.flops_per_s, self.bytes / bandwidth)
        backward = max(self.backward_flops / rate.backward_flops_per_s, self.backward_bytes / bandwidth)
        backward += self.accumulated_bytes / bandwidth
        return start + forward, backward_start + backward

    def starts(self, machine: Machine) -> tuple[float, float]:
        """The part of these seconds that does not depend on the size of the box: overheads of calls."""
        rate = machine.rate(self.kind)
        return rate.start_s, rate.gradient_s * self.gradients


class CostModel:
    """Costs of boxes of the operators of one graph, cached.

    tensors: the graph's, by name. like_operators: of the graph; they cost the same. known: another cost model of this
    graph, to ask for all operators but `changed`.
    """

    def __init__(
        self, tensors: Mapping[str, TensorInfo], known: "CostModel | None" = None, changed: Collection[str] = ()
    ) -> None:
        self.tensors, self.like_operators = tensors, LikeOperators(tensors)
        self._known, self._changed = known, changed
        self._costs: dict[int, _OperatorCost] = {}
        self._work: dict[tuple[int, tuple[int, ...]], Work] = {}

    def work(self, op: Op, box: Box) -> Work:
        """The work of a box of an operator."""
        if self._known is not None and op.name not in self._changed:
            return self._known.work(op, box)
        number, lengths = self.like_operators.number(op), sizes(box)
        known = self._work.get((number, lengths))
        if known is None:
            if number not in self._costs:
                self._costs[number] = _OperatorCost(op, self.tensors)
            known = self._work[number, lengths] = self._costs[number].work(lengths)
        return known

    def seconds(self, op: Op, box: Box, machine: Machine) -> tuple[float, float]:
        """Forward and backward seconds of a box of an operator on a machine."""
        return self.work(op, box).seconds(machine)


def name_half(signature: str, loops: Sequence[LoopInfo], number: int) -> str:
    """Return under which name a ratio is kept: how many times its share half of an operator takes.

    loops: of the operator; of two with one signature they may differ, as heads are loops where rows are divided into
    them. number: of the loop that is halved.
    """
    described = " ".join(f"{loop.size}{loop.kind[0]}" for loop in loops)
    return f"{signature} / half of loop {number} of {described}"


def seconds(op: Op, box: Box, machine: Machine, tensors: Mapping[str, TensorInfo]) -> tuple[float, float]:
    """Forward and backward seconds of a box of an operator; for many boxes, keep a `CostModel`."""
    return _OperatorCost(op, tensors).work(sizes(box)).seconds(machine)


def sum_seconds(box: Box, parts: int, machine: Machine, *, element_bytes: int) -> tuple[float, float]:
    """Forward and backward seconds of adding `parts` partial sums to `box`; the gradient of each is a view."""
    added = max(0, parts - 1)
    moved = 3 * added * volume(box) * element_bytes
    return machine.operator_s + moved / machine.memory_bandwidth, machine.gradient_s * added


def gather_seconds(box: Box, pieces: int, machine: Machine, *, element_bytes: int) -> tuple[float, float]:
    """Forward and backward seconds of assembling an operand from several pieces; nothing where it is one piece.

    Each piece is copied to its place, or its gradient cut out, by a call that starts about as quickly as a gradient.
    """
    if pieces <= 1:
        return 0.0, 0.0
    moved = 2 * volume(box) * element_bytes / machine.memory_bandwidth
    return machine.operator_s + machine.gradient_s * pieces + moved, machine.gradient_s * (1 + pieces)


def pack_seconds(elements: int, info: TensorInfo, machine: Machine) -> float:
    """Seconds of leaving rows of zeros out of a tensor that is sent, or of putting them back where it arrives.

    All of it is read, or written, once, and the rows that travel are copied; each way takes a few calls.
    """
    moved = elements * (info.element_bytes + 2 * info.travelling_bytes)
    return PACKING_CALLS * machine.operator_s + moved / machine.memory_bandwidth


def mask_seconds(graph: Graph, needed: Collection[str], machine: Machine) -> float:
    """Seconds that a machine spends on dropout masks for a micro-batch: all masks up to the last one that it needs.

    Each machine draws whole masks in the model's order, so that all agree. needed: names of the random tensors that its
    operators read.
    """
    drawn = [
        graph.tensors[random_tensor_name(op.name)] for op in graph.ops if random_tensor_name(op.name) in graph.tensors
    ]
    last = max((i for i, info in enumerate(drawn) if info.name in needed), default=-1)
    rate = machine.rate(RANDOM)
    return sum(rate.start_s + volume(info.box) / rate.flops_per_s for info in drawn[: last + 1])


class _OperatorCost:
    """What of an operator's work does not depend on the box."""

    def __init__(self, op: Op, tensors: Mapping[str, TensorInfo]) -> None:
        self.op, self.tensors = op, tensors
        self.output = tensors[op.outputs[0]]
        self.operands = [_OperandFootprint(operand, tensors[operand.tensor]) for operand in op.nest.operands]
        self.kind = COPY if is_cast(op, tensors) else class_of(op)
        self.signature = _sign(op, tensors)
        self._whole = sizes(op.nest.box)
        self._half_names = [name_half(self.signature, op.nest.loops, i) for i in range(len(self._whole))]
        self.wanted = [reach for reach in self.operands if reach.info.gradient] if self.output.gradient else []
        heavy = [reach.info.kind for reach in self.wanted if not reach.operand.once]
        self._parameter_part = heavy.count("parameter") / len(heavy) if heavy else 0.0

    def work(self, lengths: tuple[int, ...]) -> Work:
        halvings = self._halvings(lengths)
        read = sum(reach.bytes(lengths) for reach in self.operands)
        made = self._output_bytes(lengths)
        returned = sum(reach.bytes(lengths) for reach in self.wanted)
        count = len(self.wanted)
        if self.kind == VIEW:  # backward, what was not read has a gradient of zeros
            spanned = sum(reach.spanned_bytes(lengths) for reach in self.wanted if reach.narrows)
            return Work(self.kind, 0.0, 0, 0.0, spanned, 0, count, self.signature, halvings)
        if self.kind in (EMBEDDING, COPY):  # as many bytes are read as are written, whatever the operand's size
            read = made // self.output.element_bytes * self.operands[0].info.element_bytes if self.operands else made
        flops = self.op.nest.work * math.prod(lengths)
        heavy = sum(1 for reach in self.wanted if not reach.operand.once)
        backward_flops = _BACKWARD_FLOPS.get(self.kind, _backward_as_forward)(heavy) * flops
        backward_bytes = made + read + returned if self.wanted else 0
        added = 3 * sum(reach.bytes(lengths) for reach in self.wanted if reach.info.kind == "parameter")
        both = (flops, read + made, backward_flops, backward_bytes)
        return Work(self.kind, *both, added, count, self.signature, halvings, self._parameter_part)

    def _halvings(self, lengths: tuple[int, ...]) -> tuple[tuple[str, float], ...]:
        if lengths == self._whole:
            return ()
        parts = zip(self._half_names, self._whole, lengths, strict=True)
        return tuple(
            [(name, min(MAX_HALVINGS, math.log2(all_of / size))) for name, all_of, size in parts if 0 < size < all_of]
        )

    def _output_bytes(self, lengths: tuple[int, ...]) -> int:
        if len(self.op.outputs) == 1:
            return math.prod(lengths[: len(self.output.extents)]) * self.output.element_bytes
        infos = [self.tensors[name] for name in self.op.outputs]  # several outputs are always whole
        return sum(volume(info.box) * info.element_bytes for info in infos)


def _sign(op: Op, tensors: Mapping[str, TensorInfo]) -> str:
    """Return the signature of an operator, which does not depend on names."""
    infos = [tensors[name] for name in (*op.inputs, *op.outputs)]
    shapes = " ".join(f"{info.dtype}{info.shape}{'g' * info.gradient}" for info in infos)
    nameless = rename_tensors(op.arguments, dict.fromkeys(op.inputs, ""))
    plain = [value for value in nameless.values() if not isinstance(value, dict)]
    return f"{op.target} {op.sharding_rule} {plain} {op.nest.work:g} {shapes}"


def _backward_as_forward(gradients: int) -> float:
    """Backward FLOPs as a multiple of forward: as many again where any gradient is wanted."""
    return float(gradients > 0)


def _product_per_gradient(gradients: int) -> float:
    """A product of the same size for each operand that wants a gradient."""
    return float(gradients)


def _attention(gradients: int) -> float:
    """Four products where forward has two, and the scores once more (Dao et al., NeurIPS 2022, appendix B)."""
    return 2.5 if gradients else 0.0


_BACKWARD_FLOPS: Mapping[str, Callable[[int], float]] = {
    CONTRACTION: _product_per_gradient,
    CONVOLUTION: _product_per_gradient,
    LOCAL: _product_per_gradient,
    ATTENTION: _attention,
    OPAQUE: lambda gradients: 2.0 if gradients else 0.0,
}


class _OperandFootprint:
    """How much of an operand a box reads, by the lengths of the box.

    narrows: whether it reads a window of the operand.
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
        """Bytes of the operand, of which the box may read a window."""
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
