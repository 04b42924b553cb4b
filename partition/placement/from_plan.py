"""A planner's outcome as a placement: the winner's boxes, what it is predicted to cost, and the others' scores."""

import platform
from collections import Counter, defaultdict
from collections.abc import Sequence
from importlib.metadata import version
from importlib.util import find_spec
from typing import TYPE_CHECKING

from ..ir.box import volume
from ..cluster.machines import Cluster
from ..dataflow.cut import Cut, Placed
from ..dataflow.dataflow import Flow
from ..ir.graph import Graph
from .to_cut import fingerprint
from .placement_file import (
    FORMAT,
    Loop,
    MachinePlacement,
    OpPlacement,
    ParameterPlacement,
    Piece,
    Placement,
    Prediction,
    Score,
    Skipped,
    Span,
    Traffic,
)
from ..operators.sharding_rule import PART
from ..dataflow.simulator import SEND, Simulation

if TYPE_CHECKING:
    from ..planner.planner import Judged, Outcome

SPANS_MAX = 20_000  # intervals of a timeline; of a longer one only what is computed is kept


def written(outcome: "Outcome", *, model: str) -> Placement:
    """The placement of an outcome. model: the import string to note."""
    winner, alone, question = outcome.winner, outcome.alone, outcome.question
    graph, cut, simulation = winner.flow.model, winner.flow.cut, winner.simulation
    others = outcome.judged if len(outcome.judged) == 1 else _once(alone, outcome.judged)
    return Placement(
        format=FORMAT,
        model=model,
        batch=next((t.shape[0] for t in graph.tensors.values() if t.kind == "input" and t.shape), 1),
        micro_batches=question.micro_batches,
        fingerprint=fingerprint(graph),
        machines=_machines(winner, winner.cluster),
        ops=_ops(graph, cut),
        parameters=_parameters(graph, cut),
        winner=winner.name,
        objective=outcome.objective,
        verdict=_verdict(outcome),
        predicted=Prediction(
            step_s=simulation.step_s,
            one_machine_s=alone.simulation.step_s,
            bytes_forward=winner.flow.bytes_forward,
            messages_forward=len(winner.flow.edges) + len(winner.flow.shares),
            traffic=_traffic(winner.flow),
            timeline=_timeline(simulation),
        ),
        candidates=[_score(judged) for judged in others],
        left_out=[Skipped(left.name, left.reason) for left in outcome.left_out],
        seed=question.seed,
        versions=_versions(),
    )


def _versions() -> dict[str, str]:
    """Of all that a plan depends on."""
    found = {name: version(name) for name in ("cutset", "torch", "pymetis")}
    if find_spec("mtkahypar") is not None:
        found["mtkahypar"] = version("mtkahypar")
    return found | {"python": platform.python_version()}


def _once(alone: "Judged", judged: "Sequence[Judged]") -> "list[Judged]":
    return [alone, *(other for other in judged if other is not alone)]


def _score(judged: "Judged") -> Score:
    simulation = judged.simulation
    return Score(
        judged.name,
        judged.flow.cut.machines,
        simulation.step_s,
        judged.flow.bytes_forward,
        max(simulation.memory_bytes),
        judged.fits,
        judged.least_share,
    )


def _timeline(simulation: Simulation) -> list[Span]:
    kept = simulation.timeline
    if len(kept) > SPANS_MAX:
        kept = tuple(activity for activity in kept if activity.kind != SEND)
    return [Span(a.machine, a.kind, a.label, a.start_s, a.stop_s) for a in kept]


def _verdict(outcome: "Outcome") -> str:
    """In words: how much faster the plan is than one machine, or how much slower more of them would be."""
    winner, alone = outcome.winner, outcome.alone
    machines, seconds, single = winner.flow.cut.machines, winner.simulation.step_s, alone.simulation.step_s
    if machines == 1:
        return f"{_what_more_take(outcome)}One machine: {_time(seconds)} a step."
    sent = f"{winner.flow.bytes_forward * outcome.question.micro_batches / 1024:.1f} KiB forward{_again(winner)}"
    if not alone.fits:
        return f"One machine is too small; {machines} machines take {_time(seconds)} a step and send {sent}."
    ratio = single / seconds
    if ratio > 1:
        most = max(len(judged.cluster) for judged in outcome.judged)
        of = f"Of {most} machines {machines}" if machines < most else f"{machines} machines"
        return f"{of} pay: {_time(seconds)} a step, {ratio:.2f} times as fast as one; they send {sent}."
    return (
        f"More machines do not pay: {machines} take {_time(seconds)} a step, one takes {_time(single)} "
        f"and is {1 / ratio:.1f} times as fast; the network carries {sent}."
    )


def _again(winner: "Judged") -> str:
    """What is computed twice, in words."""
    cut = winner.flow.cut
    if not cut.recomputed:
        return ""
    segments = {(i.machine, i.stage) for i in winner.flow.instructions}
    return f"; to fit in memory, {len(cut.recomputed)} of {len(segments)} segments make their activations again"


def _what_more_take(outcome: "Outcome") -> str:
    """What the fastest plan for several machines would take, where there were some to choose from."""
    several = [judged for judged in outcome.judged if len(judged.cluster) > 1 and judged.fits]
    if not several:
        return ""
    best = min(several, key=lambda judged: judged.simulation.step_s)
    count, seconds = len(best.cluster), best.simulation.step_s
    times = seconds / outcome.winner.simulation.step_s
    if times < 1:  # something else than time was asked for
        return f"{count} machines would be {1 / times:.1f} times as fast, with {_time(seconds)} a step. "
    return f"More machines do not pay: {count} take {_time(seconds)}, {times:.1f} times as long. "


def _time(seconds: float) -> str:
    """Three digits, in seconds or milliseconds."""
    return f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"


def _machines(winner: "Judged", cluster: Cluster) -> list[MachinePlacement]:
    parameters = Counter[int]()
    for info in winner.flow.graph.parameters:
        for box, machine in winner.flow.cut.owners[info.name]:
            parameters[machine] += volume(box)
    simulation = winner.simulation
    return [
        MachinePlacement(
            m.name,
            m.flops_per_s,
            m.memory_bytes,
            simulation.flops[i],
            simulation.busy_s[i],
            simulation.memory_bytes[i],
            parameters[i],
            sorted(stage for machine, stage in winner.flow.cut.recomputed if machine == i),
        )
        for i, m in enumerate(cluster.machines)
    ]


def _ops(graph: Graph, cut: Cut) -> list[OpPlacement]:
    producers = graph.producers
    return [
        OpPlacement(
            op.name,
            op.target,
            op.module,
            sorted({producers[name] for name in op.inputs if name in producers}),
            op.flops,
            [Loop(graph.axes[loop.axis][0], loop.size, loop.kind) for loop in op.nest.loops],
            _pieces(cut.boxes[op.name]),
            _pieces(cut.folds.get(op.name, ())),
        )
        for op in graph.ops
    ]


def _parameters(graph: Graph, cut: Cut) -> list[ParameterPlacement]:
    return [
        ParameterPlacement(
            info.name,
            list(info.shape),
            info.dtype,
            [graph.axes[axis] for dim in info.axes for axis in dim],
            _pieces(cut.owners[info.name]),
        )
        for info in graph.states
    ]


def _pieces(pieces: Sequence[Placed]) -> list[Piece]:
    return [Piece(list(box), machine) for box, machine in pieces]


def _traffic(spelled: Flow) -> list[Traffic]:
    """Bytes by producing operator (or parameter) and link."""
    producers = spelled.graph.producers
    total: dict[tuple[str, int, int], int] = defaultdict(int)
    for edge in (*spelled.shares, *spelled.edges):
        for _, copy in edge.pairs:
            tensor = spelled.pieces[copy].tensor
            name = producers[tensor].removesuffix(PART) if tensor in producers else tensor
            total[name, edge.source, edge.target] += spelled.piece_bytes(copy)
    return [Traffic(name, source, target, size) for (name, source, target), size in total.items()]
