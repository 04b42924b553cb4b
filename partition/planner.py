"""Plans a cut: every candidate of the portfolio is spelled out and simulated; the fastest that fits in memory wins.

Also turns a placement file back into a cut, refusing one that does not match the model, and carries the cut of a
training graph over to the evaluation graph.
"""

import platform
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version

from .block import blocks
from .box import Box, volume
from .candidates import Candidate, candidates, cut_axes, require
from .cluster import Cluster
from .cut import Cut, Placed, check, one_machine, with_folds
from .errors import BadInput, Infeasible, UsageError
from .exchange import Flow, flow
from .graph import Graph, Op
from .placement import (
    FORMAT,
    Fingerprint,
    Loop,
    MachinePlacement,
    OpPlacement,
    ParameterPlacement,
    Piece,
    Placement,
    Prediction,
    Score,
    Span,
    Traffic,
)
from .simulator import Simulation, simulate

# Who asks for k machines wants them used. Where the network is so slow that the fastest plan would leave a machine
# idle, it has at least this part of its even share of the work; the verdict says that one machine would be faster.
FAIR_SHARE = 0.25


@dataclass(frozen=True)
class _Judged:
    name: str
    flow: Flow
    simulation: Simulation
    fits: bool
    least_share: float

    @property
    def rank(self) -> tuple[bool, bool, float, int, str]:
        """The best plan has the smallest."""
        seconds, sent = self.simulation.step_s, self.flow.bytes_forward
        return (not self.fits, self.least_share < FAIR_SHARE, seconds, sent, self.name)


def plan(graph: Graph, cluster: Cluster, *, model: str, seed: int = 0, only: str = "") -> Placement:
    """The best cut of `graph` over all machines of `cluster`.

    model: the import string to note in the file. only: consider the candidates whose name begins so ("metis").
    Raises Infeasible where no candidate uses every machine or fits in memory.
    """
    require(graph, len(cluster))
    alone = _judge(Candidate("one machine", one_machine(graph)), graph, cluster.first(1))
    if len(cluster) == 1:
        judged = [alone]
    else:
        judged = [_judge(candidate, graph, cluster) for candidate in candidates(graph, cluster, seed=seed)]
    names = [j.name for j in judged]
    judged = [j for j in judged if len(cluster) == 1 or j.name.startswith(only)]
    if names and not judged:
        raise UsageError("E202", f"no candidate begins with {only!r}; there are {', '.join(names)}", fix="--only metis")
    if not judged:
        most = max(len(blocks(graph, axes)) for axes in cut_axes(graph, len(cluster)))
        raise Infeasible(
            "E403",
            f"no way was found to give each of {len(cluster)} machines a part of the model, divided into {most} blocks",
            fix=f"--machines {min(most, len(cluster) - 1)} or fewer",
        )
    winner = min(judged, key=lambda j: j.rank)
    if not winner.fits:
        raise _too_small(winner, cluster)
    others = [alone, *judged] if len(cluster) > 1 else judged
    return _placement(graph, cluster, winner, alone, others, model, seed)


def _judge(candidate: Candidate, graph: Graph, cluster: Cluster) -> _Judged:
    spelled = flow(graph, candidate.cut)
    simulation = simulate(spelled, cluster)
    fits = all(n <= m.memory_bytes for n, m in zip(simulation.memory_bytes, cluster.machines, strict=True))
    total, speed = sum(simulation.flops), sum(m.flops_per_s for m in cluster.machines)
    due = [total * m.flops_per_s / speed for m in cluster.machines]
    share = min((done / even for done, even in zip(simulation.flops, due, strict=True) if even), default=1.0)
    return _Judged(candidate.name, spelled, simulation, fits, share)


def _too_small(winner: _Judged, cluster: Cluster) -> Infeasible:
    needs = [
        f"{m.name} has {m.memory_bytes} bytes and needs {n}"
        for m, n in zip(cluster.machines, winner.simulation.memory_bytes, strict=True)
        if n > m.memory_bytes
    ]
    return Infeasible(
        "E404", f"no plan fits in memory; the nearest, {winner.name}: {'; '.join(needs)}", fix="use more machines"
    )


def _verdict(winner: _Judged, alone: _Judged) -> str:
    machines, seconds, single = winner.flow.cut.machines, winner.simulation.step_s, alone.simulation.step_s
    if machines == 1:
        return f"One machine: {_ms(single)} a step."
    ratio = single / seconds
    sent = f"{winner.flow.bytes_forward / 1024:.1f} KiB forward"
    if not alone.fits:
        return f"One machine is too small; {machines} machines take {_ms(seconds)} a step and send {sent}."
    if ratio > 1:
        return f"{machines} machines pay: {_ms(seconds)} a step, {ratio:.2f} times as fast as one; they send {sent}."
    return (
        f"More machines do not pay: {machines} take {_ms(seconds)} a step, one takes {_ms(single)} "
        f"and is {1 / ratio:.1f} times as fast; the network carries {sent}."
    )


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"


def _placement(
    graph: Graph,
    cluster: Cluster,
    winner: _Judged,
    alone: _Judged,
    others: Sequence[_Judged],
    model: str,
    seed: int,
) -> Placement:
    simulation = winner.simulation
    return Placement(
        format=FORMAT,
        model=model,
        batch=next((t.shape[0] for t in graph.tensors.values() if t.kind == "input" and t.shape), 1),
        fingerprint=fingerprint(graph),
        machines=_machines(winner, cluster),
        ops=_ops(graph, winner.flow.cut),
        parameters=_parameters(graph, winner.flow.cut),
        winner=winner.name,
        verdict=_verdict(winner, alone),
        predicted=Prediction(
            step_s=simulation.step_s,
            one_machine_s=alone.simulation.step_s,
            bytes_forward=winner.flow.bytes_forward,
            messages_forward=len(winner.flow.edges) + len(winner.flow.shares),
            traffic=_traffic(winner.flow),
            timeline=[Span(a.machine, a.kind, a.label, a.start_s, a.stop_s) for a in simulation.timeline],
        ),
        candidates=[
            Score(
                j.name,
                j.flow.cut.machines,
                j.simulation.step_s,
                j.flow.bytes_forward,
                max(j.simulation.memory_bytes),
                j.fits,
                j.least_share,
            )
            for j in others
        ],
        seed=seed,
        versions={name: version(name) for name in ("cutset", "torch", "pymetis")}
        | {"python": platform.python_version()},
    )


def fingerprint(graph: Graph) -> Fingerprint:
    """What a placement remembers of its model."""
    return Fingerprint([(p.name, list(p.shape), p.dtype) for p in graph.parameters], graph.digest)


def _machines(winner: _Judged, cluster: Cluster) -> list[MachinePlacement]:
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
            total[producers.get(tensor, tensor), edge.source, edge.target] += spelled.piece_bytes(copy)
    return [Traffic(name, source, target, size) for (name, source, target), size in total.items()]


# Back from a file --------------------------------------------------------------------------------------------------


def cut_of(placement: Placement, graph: Graph) -> Cut:
    """The cut that a placement describes, checked against the model's graph. BadInput names the first difference."""
    _compare(placement, graph)
    cut = Cut(
        len(placement.machines),
        {op.name: _placed(op.boxes) for op in placement.ops},
        {op.name: _placed(op.fold) for op in placement.ops if op.fold},
        {p.name: _placed(p.boxes) for p in placement.parameters},
    )
    check(graph, cut)
    return cut


def _placed(pieces: Sequence[Piece]) -> list[Placed]:
    return [(tuple((start, stop) for start, stop in piece.box), piece.machine) for piece in pieces]


def _compare(placement: Placement, graph: Graph) -> None:
    ours, theirs = fingerprint(graph), placement.fingerprint
    fix = f"cutset plan {placement.model} -o NEW.json"
    here = {name: (tuple(shape), dtype) for name, shape, dtype in ours.parameters}
    there = {name: (tuple(shape), dtype) for name, shape, dtype in theirs.parameters}
    for name in [*there, *here]:
        if here.get(name) != there.get(name):
            raise BadInput(
                "E340",
                f"the placement is for another model: parameter {name} is {_described(there.get(name))} "
                f"in the placement, {_described(here.get(name))} in the model",
                fix=fix,
            )
    for i in range(max(len(placement.ops), len(graph.ops))):
        before = _op_line(placement.ops[i]) if i < len(placement.ops) else "missing"
        now = _graph_op_line(graph.ops[i]) if i < len(graph.ops) else "missing"
        if before != now:
            raise BadInput(
                "E340",
                f"the placement is for another model: operator {i} is {before} in the placement, {now} in the model",
                fix=fix,
            )
    if ours.graph != theirs.graph:
        raise BadInput(
            "E340",
            f"the placement is for another model: same parameters and operators, other arguments "
            f"(graph {theirs.graph[:12]} in the placement, {ours.graph[:12]} in the model)",
            fix=fix,
        )


def _described(parameter: tuple[tuple[int, ...], str] | None) -> str:
    return "missing" if parameter is None else f"{parameter[1]}{list(parameter[0])}"


def _op_line(op: OpPlacement) -> str:
    return f"{op.name} {op.op} {[loop.size for loop in op.loops]}"


def _graph_op_line(op: Op) -> str:
    return f"{op.name} {op.target} {[loop.size for loop in op.nest.loops]}"


# Evaluation --------------------------------------------------------------------------------------------------------


def carry_over(train: Graph, cut: Cut, evaluation: Graph) -> Cut:
    """The cut of the evaluation graph that leaves every parameter where training has it.

    An operator that both graphs have (same module, same kind, same count, same loops) keeps its boxes; another goes
    whole to the machine that computes most of what it reads. The output is collected where the loss is.
    """
    cut = with_folds(train, cut)
    known = {key: op for op, key in zip(train.ops, _keys(train), strict=True)}
    home = cut.boxes[train.producers[train.results[0]]][0][1]
    boxes: dict[str, Sequence[Placed]] = {}
    folds: dict[str, Sequence[Placed]] = {}
    producers = evaluation.producers
    for op, key in zip(evaluation.ops, _keys(evaluation), strict=True):
        twin = known.get(key)
        if twin is not None and _same_loops(twin, op):
            boxes[op.name] = cut.boxes[twin.name]
            if twin.name in cut.folds:
                folds[op.name] = cut.folds[twin.name]
            continue
        makers = [placed for name in op.inputs if name in producers for placed in boxes[producers[name]]]
        boxes[op.name] = [(op.nest.box, _most(makers, home))]
    boxes[evaluation.ops[-1].name] = [(evaluation.ops[-1].nest.box, home)]
    for name, ops in evaluation.overwritten.items():
        holder = cut.owners[name][0][1] if name in cut.owners else home
        boxes |= {op.name: [(op.nest.box, holder)] for op in ops}
    owners = {name: pieces for name, pieces in cut.owners.items() if name in evaluation.tensors}
    return Cut(cut.machines, boxes, folds, owners)


def _keys(graph: Graph) -> list[tuple[str, str, int]]:
    """What an operator is called in both graphs: module, kind, and how many of these came before in the module."""
    seen = Counter[tuple[str, str]]()
    keys = []
    for op in graph.ops:
        kind = (op.module, op.target)
        keys.append((*kind, seen[kind]))
        seen[kind] += 1
    return keys


def _same_loops(a: Op, b: Op) -> bool:
    """Whether boxes of `a` are legal boxes of `b`."""
    return [loop.size for loop in a.nest.loops] == [loop.size for loop in b.nest.loops] and _cuttable(a) <= _cuttable(b)


def _cuttable(op: Op) -> set[int]:
    return {i for i, loop in enumerate(op.nest.loops) if loop.kind != "fixed"}


def _most(makers: Sequence[tuple[Box, int]], home: int) -> int:
    share = Counter[int]()
    for box, machine in makers:
        share[machine] += volume(box)
    return max(sorted(share), key=lambda m: share[m]) if share else home
