"""Gradients of parameters that are computed later in backward, where the machine would otherwise wait.

Backward of a segment computes gradients of two kinds: of what came from other machines, which wait for them, and of
parameters, which nobody needs before the end of the step. Zero bubble pipeline parallelism (Qi et al., ICLR 2024,
section 2) names the halves B and W, and puts W where a pipeline is idle. Here it goes where a machine waits for an
exchange (fill_waits.py); `Cut.deferred` says where.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...errors import BadInput
from ..cluster.cost_model import class_of
from ..operators.sharding.cost_class import CONTRACTION, CONVOLUTION, LOCAL
from .dataflow import RUN, Dataflow, Instruction

SegmentKey = tuple[int, int]  # machine and stage
MAX_PRODUCTS = 50  # of a segment: the call for each walks what of the segment comes before it
PRODUCTS = (CONTRACTION, CONVOLUTION, LOCAL)  # a product for each gradient, so that each can be computed apart


@dataclass(frozen=True)
class DeferredGradients:
    """What of a segment's backward is left for later.

    after: the stage after whose backward it is done. instructions: those whose parameters get their gradients then.
    """

    after: int
    instructions: tuple[Instruction, ...]


def order_backward(segments: Sequence[int], deferred: Mapping[int, int]) -> list[tuple[int, bool]]:
    """Return the order of backward of one machine: the last segment first, then what was left until after it.

    segments: in their order forward. deferred: those that leave gradients for later, each with the segment after whose
    backward these are computed. An entry is a segment, and whether it is only what the segment has left.
    """
    left = defaultdict[int, list[int]](list)
    for segment in sorted(deferred, reverse=True):
        left[deferred[segment]].append(segment)
    out = list[tuple[int, bool]]()
    for segment in reversed(segments):
        out += [(segment, False), *((one, True) for one in left[segment])]
    return out


def find_deferrable(dataflow: Dataflow) -> Mapping[SegmentKey, Sequence[Instruction]]:
    """Return, by segment, the instructions whose parameters' gradients can be computed apart from all others.

    These are products of which no other operator of the segment reads the parameters: of two, one may come after the
    other, and its gradients would be those of both. Boxes of one operator share parameters, and leave all or nothing.
    """
    graph = dataflow.graph
    products = {op.name for op in graph.ops if class_of(op) in PRODUCTS and graph.tensors[op.outputs[0]].gradient}
    reads = {i.index: _list_parameters(dataflow, i) for i in dataflow.instructions}
    readers = defaultdict[tuple[int, int, int], list[Instruction]](list)
    by_operator = defaultdict[tuple[int, int, str], list[Instruction]](list)
    for i in dataflow.instructions:
        by_operator[i.machine, i.stage, i.op].append(i)
        for source in reads[i.index]:
            readers[i.machine, i.stage, source].append(i)
    out = defaultdict[SegmentKey, list[Instruction]](list)
    for (machine, stage, name), boxes in by_operator.items():
        own = [i for i in boxes if reads[i.index]]
        are_products = name in products and all(i.kind == RUN and len(i.makes) == 1 for i in own)
        sources = {source for i in own for source in reads[i.index]}
        if are_products and all(i.op == name for source in sources for i in readers[machine, stage, source]):
            out[machine, stage] += own
    return {key: own for key, own in out.items() if 0 < len(own) <= MAX_PRODUCTS}


def _list_parameters(dataflow: Dataflow, instruction: Instruction) -> list[int]:
    """Return the pieces of trained parameters that an instruction reads."""
    tensors = dataflow.graph.tensors
    reads = [read for read in instruction.reads if tensors[read.tensor].kind == "parameter"]
    return [source for read in reads if tensors[read.tensor].gradient for source in read.sources]


def find_deferred(dataflow: Dataflow) -> Mapping[SegmentKey, DeferredGradients]:
    """Return what the cut defers. Segments that are recomputed defer nothing.

    Raises BadInput where the cut names segments that are not there, or a later one.
    """
    deferred = dataflow.cut.deferred
    if not deferred:
        return {}
    segments, possible = {(i.machine, i.stage) for i in dataflow.instructions}, find_deferrable(dataflow)
    for (machine, stage), after in deferred.items():
        if (machine, stage) not in segments or (machine, after) not in segments or after > stage:
            facts = f"machine {machine} cannot defer gradients of stage {stage} to after backward of stage {after}"
            raise BadInput("E341", facts)
    return {
        key: DeferredGradients(after, tuple(possible[key]))
        for key, after in deferred.items()
        if key in possible and key not in dataflow.cut.recomputed
    }
