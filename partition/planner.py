"""Plans a cut: every candidate of the portfolio is spelled out and simulated; the fastest that fits in memory wins."""

import platform
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version

from .block import blocks
from .box import volume
from .candidates import Candidate, candidates, cut_axes, require
from .cluster import Cluster
from .cut import Cut, Placed, one_machine
from .errors import Infeasible, UsageError
from .exchange import Flow, flow
from .graph import Graph
from .matching import fingerprint
from .placement import (
    FORMAT,
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
