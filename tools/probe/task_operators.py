"""Measures the operators of a task: each by itself, in whole steps of the uncut model, of real weights and samples.

A program in which every operator is a segment of its own runs some steps in a process of as many threads as a worker
has. What a segment takes, without what any segment costs, is compared with what the cost model says. In turn with
these, the same process makes steps as one machine does that has the whole model: of these the memory is measured, and
the time, which is that of all operators together; and such steps with the threads of all the cores. After each of these
as many processes as have cores of their own make a step at once, or as many as are planned for if these are more: how
much longer it takes depends on how much of a model lies in caches, which are shared, as memory is. Now one of them is
slower at an operator, now the other, and machines that have parts of it wait for the slower one each time.
"""

import statistics
import tempfile
import uuid
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from ...partition.cluster.cost_model import CostModel, Work
from ...partition.cluster.machines import HeldBytes, Machine, ProcessMemory
from ...partition.dataflow.cut import one_machine_cut
from ...partition.dataflow.dataflow import RUN, Dataflow
from ...partition.dataflow.lowering import lower_cut
from ...partition.dataflow.memory_model import peak_memory
from ...partition.ir.graph import Graph
from ...runtime.hosts.host import Role
from ...runtime.launcher.launcher import Launcher
from ...runtime.worker.program import programs
from ..measured.saved_probe import MAX_RATIO, MIN_RATIO, Ratio
from ..task.capture_task import CapturedTask
from ..task.load_task import TaskSpec
from .contention import compute_contention
from .measure_step import make_setup
from .operator_halves import OperatorHalves, compute_ratios, list_halves
from .operator_process import ENTRY, MAX_STEPS, Medians, OperatorSetup, OperatorTimes

NAME = "operators"
MAX_BYTES = 1 << 30  # that the uncut model may take, in all processes together
MAX_STEP_S = 3.0  # by the cost model
MIN_S = 1e-7  # a segment takes longer
MAX_SCALE = 2.0  # of a step of the whole model to the sum of its operators: more would be other work that disturbed
MIN_MEMORY, MAX_MEMORY = 0.5, 10.0  # ratios beyond are those of models of next to no bytes
DIGITS = 3


@dataclass(frozen=True)
class TaskRatios:
    """Measured over modelled: seconds of operators by signature. memory: of the whole model; None where it is not told.

    contention: how many times as long all operators take while all cores are busy, or where processes take turns; None
    where there is one process. speedup: how many times as fast one process makes a step that has all the cores;
    None where there are no more than it has.
    """

    operators: dict[str, Ratio]
    memory: ProcessMemory | None
    contention: float | None = None
    speedup: float | None = None


def measure_operators(
    capture: CapturedTask,
    spec: TaskSpec,
    machine: Machine,
    known: Mapping[str, Ratio],
    *,
    threads: int,
    processes: int = 1,
    cores: int = 1,
) -> TaskRatios | None:
    """Measure a captured task; return the ratios of its operators that are not known yet, and of its memory.

    None where the uncut model takes too much memory or time to be measured. machine: modelled seconds are those of this
    one. threads: of each process; processes: that work at once in the end, where their memory allows that; cores: how
    many of these have cores of their own.
    """
    graph = capture.train
    works = _find_works(graph)
    flow = lower_cut(graph, one_machine_cut(graph))
    modelled = sum(sum(work.modelled_seconds(machine)) for work in works.values())
    (held,) = peak_memory(flow)
    memory = sum(held)
    if memory > MAX_BYTES or modelled > MAX_STEP_S:
        return None
    divided = _divide(flow)
    processes = next((n for n in (processes, min(processes, cores)) if n * memory <= MAX_BYTES), 1)
    halves = list_halves(graph, machine)
    timed = _run(capture, spec, flow, divided, halves, threads, processes, threads * cores)
    first, found = timed[0], defaultdict[str, list[Ratio]](list)
    segments = _scale_to_whole(first, machine)
    for signature, ratio in _compare(divided, works, segments, machine):
        found[signature].append(ratio)
    operators = {signature: _average(ratios) for signature, ratios in found.items()}
    operators |= compute_ratios(halves, first.halves, machine) if first.halves else {}
    return TaskRatios(
        {name: ratio for name, ratio in operators.items() if name not in known},
        _find_memory(timed, held) if first.peak_bytes else None,
        _compute_contention(timed, cores) if processes > 1 else None,
        _compute_speedup(first, cores) if first.undivided_s else None,
    )


def _find_memory(timed: Sequence[OperatorTimes], held: HeldBytes) -> ProcessMemory:
    """Return what the process took that took most; it differs by a tenth, as malloc leaves holes by chance."""
    own = max(one.resting_bytes for one in timed) - held.steady
    ratio = max(one.peak_bytes - one.resting_bytes for one in timed) / max(1, held.working)
    return ProcessMemory(max(0, own), _round(min(MAX_MEMORY, max(MIN_MEMORY, ratio))))


def _compute_speedup(first: OperatorTimes, cores: int) -> float:
    by_rounds = (whole / undivided for whole, undivided in zip(first.whole_s, first.undivided_s, strict=True))
    return _round(min(cores, max(1 / cores, statistics.median(by_rounds))))


def _scale_to_whole(first: OperatorTimes, machine: Machine) -> Medians:
    """Return the seconds of segments, such that without what each costs they add up to a step of the whole model."""
    costs, own = (machine.segment_s, machine.segment_back_s), sum(map(sum, first.segments))
    whole_s = (statistics.median(first.whole_s) if first.whole_s else 0.0) - machine.step_s - sum(costs)
    parts_s = own - len(first.segments) * sum(costs)
    if whole_s <= 0 or parts_s <= 0:
        return first.segments
    scale = min(MAX_SCALE, max(1 / MAX_SCALE, whole_s / parts_s))
    return [
        (costs[0] + scale * (ahead - costs[0]), costs[1] + scale * (back - costs[1])) for ahead, back in first.segments
    ]


def _compute_contention(timed: Sequence[OperatorTimes], cores: int) -> float:
    """Return the contention of all operators of the task, between machines that wait for each other after each one."""
    rounds = list(zip(*(one.crowded_segments_s for one in timed), strict=True))
    waiting_s = [sum(map(max, zip(*segments_s, strict=True))) for segments_s in rounds]
    if len(timed) <= cores:
        return compute_contention(timed[0].computed_alone_s, [waiting_s] * len(timed), len(timed))
    later = [waiting / max(map(sum, segments_s)) for waiting, segments_s in zip(waiting_s, rounds, strict=True)]
    crowded_s = [[s * times for s, times in zip(one.crowded_s, later, strict=True)] for one in timed]
    return compute_contention(timed[0].alone_s, crowded_s, cores)


def has_unknown(capture: CapturedTask, known: Mapping[str, Ratio]) -> bool:
    """Whether a captured task has operators of which no ratio is known."""
    return any(work.signature not in known for work in _find_works(capture.train).values())


def _find_works(graph: Graph) -> dict[str, Work]:
    costs = CostModel(graph.tensors)
    return {op.name: costs.work(op, op.nest.box) for op in graph.ops}


def _divide(flow: Dataflow) -> Dataflow:
    """Return the same with a segment for each instruction."""
    instructions = [msgspec.structs.replace(one, stage=number) for number, one in enumerate(flow.instructions)]
    return replace(flow, instructions=instructions)


def _run(
    capture: CapturedTask,
    spec: TaskSpec,
    flow: Dataflow,
    divided: Dataflow,
    halves: Sequence[OperatorHalves],
    threads: int,
    processes: int,
    all_threads: int,
) -> list[OperatorTimes]:
    whole, program = (msgspec.msgpack.encode(programs(one, training=True)[0]) for one in (flow, divided))
    with tempfile.TemporaryDirectory(prefix="cutset-operators-") as folder:
        step = make_setup(spec, capture, Path(folder), steps=MAX_STEPS)
        names = [f"{NAME}-{number}" for number in range(processes)]
        roles = []
        for number, name in enumerate(names):
            own = msgspec.structs.replace(step, program=program, peers=[name])
            setup = OperatorSetup(
                **msgspec.structs.asdict(own),
                whole=whole,
                threads=all_threads,
                processes=tuple(names),
                number=number,
                halves=() if number else tuple(one.programs for one in halves),
            )
            roles.append(Role(name, ENTRY, msgspec.to_builtins(setup, builtin_types=(bytes,)), threads=threads))
        with Launcher(roles, job=f"operators-{uuid.uuid4().hex[:12]}") as launcher:
            return [msgspec.convert(timed, OperatorTimes) for timed in launcher.run()]


def _compare(
    flow: Dataflow, works: Mapping[str, Work], measured: Medians, machine: Machine
) -> Iterator[tuple[str, Ratio]]:
    """Yield the ratio of each operator, by signature."""
    for instruction, (forward, backward) in zip(flow.instructions, measured, strict=True):
        if instruction.kind != RUN:
            continue
        work = works[instruction.op]
        ahead, back = work.modelled_seconds(machine)
        yield (
            work.signature,
            (
                _divide_seconds(forward - machine.segment_s, ahead),
                _divide_seconds(backward - machine.segment_back_s, back) if work.gradients else 1.0,
            ),
        )


def _divide_seconds(measured: float, modelled: float) -> float:
    if modelled <= 0:
        return 1.0
    return min(MAX_RATIO, max(MIN_RATIO, max(MIN_S, measured) / modelled))


def _average(ratios: list[Ratio]) -> Ratio:
    forward, backward = (_round(statistics.median(side)) for side in zip(*ratios, strict=True))
    return forward, backward


def _round(ratio: float) -> float:
    return float(f"{ratio:.{DIGITS}g}")
