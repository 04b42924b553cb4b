"""What half of an operator takes: for each loop that can be cut, a program of half of it, beside one of the whole.

The cost model lets a part of an operator take its share of the operations. That is wrong where a kernel does something
for the whole in any case, as a convolution of half of the input channels does; and where an operator is several calls,
as a locally connected layer is, which take less to start than the smallest of its class. Large operators of a task are
timed whole and by halves in turn, each by itself and of random numbers; only how the times compare counts. Operators of
torch and locally connected layers alone are timed so, and none that reads whole numbers, which may say how much there
is to compute.
"""

import statistics
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import torch

from ...partition.cluster.cost_model import CostModel, Work, class_of, name_half
from ...partition.cluster.machines import Machine
from ...partition.dataflow.cut import Cut
from ...partition.dataflow.lowering import lower_cut
from ...partition.ir.box import Box, volume
from ...partition.ir.graph import STATE_KINDS, Graph, Op, read_box
from ...partition.operators.sharding.cost_class import LOCAL
from ...runtime.hosts.heartbeat import RoleProgress
from ...runtime.worker.program import Program, programs
from ..measured.saved_probe import Ratio
from .operator_timer import OperatorTimer, make_random_states

MIN_SHARE = 0.03  # of the modelled step that all operators take that are like one; of less no halves are measured
MAX_OPERATORS = 12  # those of which the step has most
MAX_BYTES = 64 << 20  # that such an operator reads and writes: it is held once for each half
MAX_STEP_S = 0.5  # by the cost model; of a longer step no halves are measured
BUDGET_S, MIN_ROUNDS, MAX_ROUNDS = 1.5, 3, 15
MAX_RATIO = 2.0  # half takes as long as all
REFUSALS = (RuntimeError, ValueError, IndexError, TypeError)  # that operators of torch raise
Seconds = tuple[float, float]  # forward and backward


@dataclass(frozen=True)
class OperatorHalves:
    """An operator, and the loops that can be halved. names: of their ratios, see `name_half`.

    works, programs: of the whole, then of a half of each loop.
    """

    loops: tuple[int, ...]
    names: tuple[str, ...]
    works: tuple[Work, ...]
    programs: tuple[bytes, ...]


def list_halves(graph: Graph, machine: Machine) -> list[OperatorHalves]:
    """Return the large operators of a graph that can be cut, each once. machine: sizes are seconds of this one."""
    costs, like, seconds = CostModel(graph.tensors), dict[str, Op](), defaultdict[str, float](float)
    for op in graph.ops:
        work = costs.work(op, op.nest.box)
        name = name_half(work.signature, op.nest.loops, 0)  # the same for all whose halves have the same names
        like.setdefault(name, op)
        seconds[name] += sum(work.modelled_seconds(machine))
    total = sum(seconds.values())
    if total > MAX_STEP_S:
        return []
    by_size = sorted(seconds, key=lambda name: -seconds[name])
    large = [like[name] for name in by_size if seconds[name] >= MIN_SHARE * total]
    measurable = [op for op in large if _is_measurable(graph, op)][:MAX_OPERATORS]
    return [halves for op in measurable if (halves := _make_halves(graph, op, costs)).loops]


def _is_measurable(graph: Graph, op: Op) -> bool:
    """Whether it is torch's or a locally connected layer, takes as long of made-up numbers, and changes nothing."""
    read = [graph.tensors[name] for name in op.inputs]
    of_numbers = all(info.dtype == "bool" or getattr(torch, info.dtype).is_floating_point for info in read)
    dtypes = {info.dtype for info in read if info.gradient}
    size = sum(
        volume(graph.tensors[name].box) * graph.tensors[name].element_bytes for name in (*op.inputs, *op.outputs)
    )
    is_random = any(info.kind == "random" for info in read)
    is_plain = (op.target.startswith("aten.") or class_of(op) == LOCAL) and of_numbers
    return is_plain and op.is_cuttable and not op.writes and not is_random and len(dtypes) <= 1 and size <= MAX_BYTES


def _make_halves(graph: Graph, op: Op, costs: CostModel) -> OperatorHalves:
    whole, apart = op.nest.box, op.nest.non_additive  # half of a non-additive loop is two operators
    loops = [i for i, loop in enumerate(op.nest.loops) if loop.kind != "fixed" and loop.size > 1 and i not in apart]
    boxes = [whole, *((*whole[:i], (0, whole[i][1] // 2), *whole[i + 1 :]) for i in loops)]
    packed = tuple(msgspec.msgpack.encode(_make_program(graph, op, box)) for box in boxes)
    works = tuple(costs.work(op, box) for box in boxes)
    names = tuple(name_half(works[0].signature, op.nest.loops, i) for i in loops)
    return OperatorHalves(tuple(loops), names, works, packed)


def _make_program(graph: Graph, op: Op, box: Box) -> Program:
    """Return a program that computes a box of an operator alone, of which all that no parameter is is an input.

    It is that of machine 0, which owns what it reads, so that gradients of parameters are added as in any step.
    """
    tensors = {name: graph.tensors[name] for name in (*op.inputs, *op.outputs)}
    inputs = {name for name in op.inputs if tensors[name].kind not in STATE_KINDS}
    kinds = {name: "parameter" if tensors[name].gradient else "constant" for name in inputs}
    own = {name: msgspec.structs.replace(info, kind=kinds.get(name, info.kind)) for name, info in tensors.items()}
    alone = msgspec.structs.replace(graph, tensors=own, ops=(op,), results=(), output=None)
    owners = dict[str, list[tuple[Box, int]]]()
    for operand in op.nest.operands:
        info = own[operand.tensor]
        region = read_box(op.nest, operand, box, info.extents)
        if region is not None and operand.tensor not in owners:
            owners[operand.tensor] = _divide(info.box, region)
    flow = lower_cut(alone, Cut(2, {op.name: _divide(op.nest.box, box)}, owners=owners))
    program, *_ = programs(flow, training=True)
    states = tuple(state for state in program.states if program.pieces[state.piece].tensor not in inputs)
    return msgspec.structs.replace(program, states=states, shared_in=(), shared_out=())


def _divide(whole: Box, part: Box) -> list[tuple[Box, int]]:
    """Return a part of a box for machine 0, and what is left of the box for machine 1."""
    rest = list[Box]()
    for i, ((start, stop), (first, last)) in enumerate(zip(whole, part, strict=True)):
        sides = ((start, first), (last, stop))
        rest += [(*part[:i], side, *whole[i + 1 :]) for side in sides if side[0] < side[1]]
    return [(part, 0), *((box, 1) for box in rest)]


def time_halves(packed: Sequence[Sequence[bytes]], progress: RoleProgress) -> list[list[Seconds]]:
    """Return the median seconds of each program of each operator, which are run in turn.

    Nothing of one that refuses made-up numbers, as a binary cross entropy does; its parts then count by their share.
    """
    times: list[list[Seconds]] = []
    for number, programs_of in enumerate(packed):
        try:
            timers = [_make_timer(msgspec.msgpack.decode(one, type=Program)) for one in programs_of]
            for timer in timers:  # not counted: kernels are chosen, memory is mapped
                timer.run()
        except REFUSALS:
            times.append([])
        else:
            times.append(_time_in_turn(timers, BUDGET_S / len(packed), progress, number))
    return times


def _time_in_turn(
    timers: Sequence[OperatorTimer], budget_s: float, progress: RoleProgress, number: int
) -> list[Seconds]:
    times: list[list[Seconds]] = [[] for _ in timers]
    begin, rounds = time.monotonic(), 0
    while rounds < MIN_ROUNDS or (rounds < MAX_ROUNDS and time.monotonic() - begin < budget_s):
        progress.value = f"halves of operator {number}, round {rounds}"
        for seconds, timer in zip(times, timers, strict=True):
            seconds.append(timer.run())
        rounds += 1
    return [(statistics.median(f for f, _ in one), statistics.median(b for _, b in one)) for one in times]


def _make_timer(program: Program) -> OperatorTimer:
    steps = [step for segment in program.segments for step in segment.steps if step.op]
    return OperatorTimer(program, steps, make_random_states(program))


def compute_ratios(
    halves: Sequence[OperatorHalves], measured: Sequence[Sequence[Seconds]], machine: Machine
) -> dict[str, Ratio]:
    """Return how many times its share half of each operator that was measured takes, by the names of the cost model.

    Its share has a whole start. Less than what the share is of the whole without starts is taken for that, since a plan
    may be bounded by it (lower_bound.py); and for its share what a whole operator hides that takes no longer than what
    a segment costs.
    """
    found, costs = dict[str, Ratio](), (machine.segment_s, machine.segment_back_s)
    for operator, times in zip(halves, measured, strict=True):
        if not times:
            continue
        (whole, *parts), (work, *works) = times, operator.works
        for name, seconds, part in zip(operator.names, parts, works, strict=True):
            shares = zip(work.modelled_seconds(machine), part.modelled_seconds(machine), strict=True)
            ratios, halvings = [1.0, 1.0], dict(part.halvings)[name]
            for i, ((all_of_it, share), cost) in enumerate(zip(shares, costs, strict=True)):
                is_large = whole[i] > 2 * cost and share > 0 and (i == 0 or work.gradients > 0)
                if is_large:
                    start = work.starts(machine)[i]  # of all parts alike
                    least = (share - start) / (all_of_it - start) if start < all_of_it else 1.0
                    taken = max(least, (seconds[i] - cost) / (whole[i] - cost))
                    ratios[i] = _round_ratio(taken / (share / all_of_it), halvings)
            found[name] = (ratios[0], ratios[1])
    return found


def _round_ratio(longer: float, halvings: float) -> float:
    """Return the ratio of a half, of a part that takes so many times as long as its share."""
    return float(f"{min(MAX_RATIO, longer ** (1 / halvings)):.3g}")
