"""What half of an operator takes: for each loop that can be cut, a program of half of it, beside one of the whole.

The cost model lets a part of an operator take its share of the operations. That is wrong where a kernel does something
for the whole in any case, as a convolution of half of the input channels does. Large operators of a task are timed
whole and by halves in turn, each by itself; only how the times compare counts.
"""

import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

from ...partition.cluster.cost_model import CostModel, Work, name_half
from ...partition.cluster.machines import Machine
from ...partition.dataflow.cut import Cut
from ...partition.dataflow.lowering import lower_cut
from ...partition.ir.box import Box, volume
from ...partition.ir.graph import STATE_KINDS, Graph, Op
from ...runtime.hosts.heartbeat import RoleProgress
from ...runtime.worker.program import Program, programs
from ..measured.saved_probe import Ratio
from .operator_timer import OperatorTimer, make_random_states

MIN_SHARE = 0.03  # of the modelled step: smaller operators are not measured by halves
MAX_OPERATORS = 12  # the largest
MAX_BYTES = 64 << 20  # that such an operator reads and writes: it is held once for each half
MAX_STEP_S = 0.5  # by the cost model; of a longer step no halves are measured
BUDGET_S, MIN_ROUNDS, MAX_ROUNDS = 1.5, 3, 15
MAX_RATIO = 8.0  # more would be an accident
MIN_S = 1e-7
Seconds = tuple[float, float]  # forward and backward


@dataclass(frozen=True)
class OperatorHalves:
    """An operator, and the loops that can be halved. works, programs: of the whole, then of a half of each loop."""

    signature: str
    loops: tuple[int, ...]
    works: tuple[Work, ...]
    programs: tuple[bytes, ...]


def list_halves(graph: Graph, machine: Machine) -> list[OperatorHalves]:
    """Return the large operators of a graph that can be cut, each once. machine: sizes are seconds of this one."""
    costs, known = CostModel(graph.tensors), dict[str, tuple[float, Op]]()
    total = 0.0
    for op in graph.ops:
        work = costs.work(op, op.nest.box)
        seconds = sum(work.modelled_seconds(machine))
        total += seconds
        known.setdefault(work.signature, (seconds, op))
    if total > MAX_STEP_S:
        return []
    large = [op for seconds, op in known.values() if seconds >= MIN_SHARE * total and _is_measurable(graph, op)]
    largest = sorted(large, key=lambda op: -sum(costs.work(op, op.nest.box).modelled_seconds(machine)))[:MAX_OPERATORS]
    return [halves for op in largest if (halves := _make_halves(graph, op, costs)).loops]


def _is_measurable(graph: Graph, op: Op) -> bool:
    """Whether the operator can be run of made-up numbers, and changes nothing."""
    read = [graph.tensors[name] for name in op.inputs]
    dtypes = {info.dtype for info in read if info.gradient}
    size = sum(
        volume(graph.tensors[name].box) * graph.tensors[name].element_bytes for name in (*op.inputs, *op.outputs)
    )
    is_random = any(info.kind == "random" for info in read)
    return op.is_cuttable and not op.writes and not is_random and len(dtypes) <= 1 and size <= MAX_BYTES


def _make_halves(graph: Graph, op: Op, costs: CostModel) -> OperatorHalves:
    whole, apart = op.nest.box, op.nest.non_additive  # half of a non-additive loop is two operators
    loops = [i for i, loop in enumerate(op.nest.loops) if loop.kind != "fixed" and loop.size > 1 and i not in apart]
    boxes = [whole, *((*whole[:i], (0, whole[i][1] // 2), *whole[i + 1 :]) for i in loops)]
    packed = tuple(msgspec.msgpack.encode(_make_program(graph, op, box)) for box in boxes)
    works = tuple(costs.work(op, box) for box in boxes)
    return OperatorHalves(works[0].signature, tuple(loops), works, packed)


def _make_program(graph: Graph, op: Op, box: Box) -> Program:
    """Return a program that computes a box of an operator alone, of which all that no parameter is is an input."""
    tensors = {name: graph.tensors[name] for name in (*op.inputs, *op.outputs)}
    inputs = {name for name in op.inputs if tensors[name].kind not in STATE_KINDS}
    kinds = {name: "parameter" if tensors[name].gradient else "constant" for name in inputs}
    own = {name: msgspec.structs.replace(info, kind=kinds.get(name, info.kind)) for name, info in tensors.items()}
    alone = msgspec.structs.replace(graph, tensors=own, ops=(op,), results=(), output=None)
    rest = [(other, 1) for other in _list_rest(op.nest.box, box)]
    program, *_ = programs(lower_cut(alone, Cut(2, {op.name: [(box, 0), *rest]})), training=True)
    states = tuple(state for state in program.states if program.pieces[state.piece].tensor not in inputs)
    return msgspec.structs.replace(program, states=states, shared_in=(), shared_out=())


def _list_rest(whole: Box, box: Box) -> Iterator[Box]:
    """Yield what is left of a box without its first half along one loop."""
    for i, (interval, part) in enumerate(zip(whole, box, strict=True)):
        if interval != part:
            yield (*whole[:i], (part[1], interval[1]), *whole[i + 1 :])


def time_halves(packed: Sequence[Sequence[bytes]], progress: RoleProgress) -> list[list[Seconds]]:
    """Return the median seconds of each program of each operator, which are run in turn.

    Nothing of one that refuses made-up numbers, as a binary cross entropy does.
    """
    times: list[list[Seconds]] = []
    for number, programs_of in enumerate(packed):
        timers = [_make_timer(msgspec.msgpack.decode(one, type=Program)) for one in programs_of]
        try:
            for timer in timers:  # not counted: kernels are chosen, memory is mapped
                timer.run()
        except Exception:  # of the operator, which may be the user's; its parts are then said to take their share
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

    Less than its share is taken for its share, since a plan may be bounded by that.
    """
    found, costs = dict[str, Ratio](), (machine.segment_s, machine.segment_back_s)
    for operator, times in zip(halves, measured, strict=True):
        if not times:
            continue
        own = [tuple(max(MIN_S, s - cost) for s, cost in zip(one, costs, strict=True)) for one in times]
        modelled = [work.modelled_seconds(machine) for work in operator.works]
        for loop, seconds, share, work in zip(operator.loops, own[1:], modelled[1:], operator.works[1:], strict=True):
            halvings = dict(work.halvings)[name_half(operator.signature, loop)]
            ahead, back = (
                _compute_ratio(seconds[i] / own[0][i], share[i] / modelled[0][i] if modelled[0][i] else 1.0, halvings)
                for i in range(2)
            )
            found[name_half(operator.signature, loop)] = (ahead, back if operator.works[0].gradients else 1.0)
    return found


def _compute_ratio(measured: float, modelled: float, halvings: float) -> float:
    ratio = (measured / modelled) ** (1 / halvings) if modelled > 0 else 1.0
    return float(f"{min(MAX_RATIO, max(1.0, ratio)):.3g}")
