"""The portfolio: ways to cut a graph over a cluster, each of which the simulator then judges.

The best layouts on every mesh of the machines, in one piece and in stages; slices of every layer, grid tiles,
contiguous stages by dynamic programming; METIS on block graphs of several sets of cut axes.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from ..mincut.block_graph import (
    CutAxes,
    block_graph,
    blocks,
    level_groups,
    paired_axes,
    placed,
    spatial_axes,
    unit_axes,
)
from ..cluster.machines import Cluster
from ..cluster.cost_model import Costs
from ..dataflow.cut import Cut, Placed, fused, one_machine, partial_ops, together
from ...errors import Infeasible
from ..mincut.reduction_owners import folds
from ..ir.graph import Graph
from ..mincut.kahypar import KahyparMissing, kahypar
from ..layouts.resharding_cost import EVEN, Weights
from ..layouts.layout_search import grid, meshed, shapes
from ..mincut.metis import LEVELS_MAX, metis, metis_levels
from ..mincut.metis_ctypes import MetisMissing
from ..mincut.block_hypergraph import net_graph
from ..layouts.regular import slices, tiles
from ..layouts.standard_cuts import stage_of

BLOCKS_MAX = 20_000  # a plan of more blocks takes minutes; coarser sets of cut axes then have to do
LEVEL_BLOCKS_MAX = 4_000  # the same where every level is balanced
MEMORY_ALIKE = 1.25  # of memory for speed, the most to the least
# Latencies overlap where several messages leave at once, which the sum over pairs of operators does not see; and who
# asks for few bytes gives time for them.
BYTES_FIRST = Weights(network=4.0, latency=0.0)
FINE_MAX = 16  # machines up to which several blocks an axis and machine are worth their time


@dataclass(frozen=True)
class Candidate:
    """A named cut of a graph over a cluster."""

    name: str
    cut: Cut


@dataclass(frozen=True)
class LeftOut:
    """A candidate that there is not, and why."""

    name: str
    reason: str


@dataclass(frozen=True)
class Question:
    """What is to be cut over what. pins: operator -> the machine that must run it whole. micro_batches: in a step."""

    graph: Graph
    cluster: Cluster
    seed: int = 0
    micro_batches: int = 1
    pins: Mapping[str, int] = field(default_factory=dict)

    @property
    def machines(self) -> range:
        """Numbers of the machines."""
        return range(len(self.cluster))


Boxes = Mapping[str, Sequence[Placed]]
Made = tuple[Boxes, Boxes] | str  # boxes and folds, or why there are none
Maker = Callable[[], Made]


def candidates(graph: Graph, cluster: Cluster, *, seed: int = 0) -> Iterator[Candidate]:
    """All candidates that use every machine of a cluster, in a fixed order."""
    return (found for found in answers(Question(graph, cluster, seed)) if isinstance(found, Candidate))


def answers(question: Question, costs: Costs | None = None, *, only: str = "") -> Iterator[Candidate | LeftOut]:
    """All candidates in a fixed order, and those that cannot be made or leave a machine without work.

    costs: what boxes of the graph cost, where they are worked out already. only: those whose name begins so.
    """
    count = len(question.cluster)
    if count == 1:
        yield Candidate("one machine", one_machine(question.graph))
        return
    for name, make in _makers(question, costs or Costs(question.graph.tensors)):
        if not name.startswith(only):
            continue
        made = make()
        if isinstance(made, str):
            yield LeftOut(name, made)
            continue
        cut = _whole(question, *made)
        used = {machine for pieces in cut.boxes.values() for _, machine in pieces}
        if len(used) == count:
            yield Candidate(name, cut)
        else:
            yield LeftOut(name, f"it uses {len(used)} of {count} machines")


def names(question: Question) -> list[str]:
    """Of all candidates that may be there."""
    return [name for name, _ in _makers(question, Costs(question.graph.tensors))]


def _whole(question: Question, boxes: Boxes, folds: Boxes) -> Cut:
    """The cut with pinned operators where they are pinned, and what touches an overwritten buffer together."""
    graph, count = question.graph, len(question.cluster)
    pinned = {name: [(graph_box(graph, name), machine)] for name, machine in question.pins.items()}
    joined = together(graph, {**boxes, **pinned})
    summed = {op.name for op in partial_ops(graph, joined)}
    return Cut(count, fused(count, joined), {name: pieces for name, pieces in folds.items() if name in summed})


def graph_box(graph: Graph, name: str) -> tuple[tuple[int, int], ...]:
    """All points of an operator."""
    return next(op.nest.box for op in graph.ops if op.name == name)


def _makers(question: Question, costs: Costs) -> Iterator[tuple[str, Maker]]:
    machines = question.machines
    for shape in shapes(len(machines)):
        yield f"mesh {_text(shape)}", partial(_on_mesh, question, [(machines, shape)], costs)
        yield f"mesh {_text(shape)} by bytes", partial(_on_mesh, question, [(machines, shape)], costs, BYTES_FIRST)
        if _memory_differs(question.cluster):
            yield f"mesh {_text(shape)} by memory", partial(_by_memory, question, shape, costs)
    for stages, shape in _staged_shapes(question):
        size = len(machines) // stages
        groups = [(machines[at : at + size], shape) for at in range(0, len(machines), size)]
        yield f"stages x mesh {stages}x{_text(shape)}", partial(_on_mesh, question, groups, costs)
    yield "slices", partial(_slices, question)
    for name, traffic in (("stages", True), ("even stages", False)):
        yield name, partial(_contiguous, question, traffic=traffic)
    for shape in shapes(len(machines))[::-1][:2]:
        yield f"tiles {_text(shape)}", partial(_tiles, question, shape)
    for axes in cut_axes(question.graph, len(machines)):
        yield f"metis {axes.name}", partial(_by_metis, question, axes, levels=False)
        if axes.axes and axes.parts <= len(machines):
            yield f"metis levels {axes.name}", partial(_by_metis, question, axes, levels=True)
            yield f"kahypar {axes.name}", partial(_by_kahypar, question, axes)


def _text(shape: Sequence[int]) -> str:
    return "x".join(str(n) for n in shape)


def _slices(question: Question) -> Made:
    line = grid(question.cluster, question.machines, (len(question.cluster),))
    boxes = slices(question.graph, line)
    return "no operator is wide enough" if boxes is None else (boxes, {})


def _tiles(question: Question, shape: tuple[int, ...]) -> Made:
    boxes = tiles(question.graph, grid(question.cluster, question.machines, shape))
    return "no operator slides over an image of that size" if boxes is None else (boxes, {})


def _staged_shapes(question: Question) -> list[tuple[int, tuple[int, ...]]]:
    """Stages of several machines each: worth it where micro-batches fill the pipeline."""
    count = len(question.cluster)
    if question.micro_batches == 1:
        return []
    found = [s for s in range(2, count) if count % s == 0 and s <= len(question.graph.ops)]
    return [(stages, shape) for stages in found for shape in shapes(count // stages)]


def _on_mesh(
    question: Question,
    groups: Sequence[tuple[Sequence[int], tuple[int, ...]]],
    costs: Costs,
    weights: Weights = EVEN,
) -> Made:
    """The best layouts, the operators in as many stages as there are groups of machines."""
    graph, cluster = question.graph, question.cluster
    meshes = [grid(cluster, machines, shape) for machines, shape in groups]
    stages = stage_of(graph, cluster, [sum(mesh.speeds) for mesh in meshes])
    if stages is None:
        return f"{len(graph.ops)} operators for {len(groups)} stages"
    mesh_of = {op.name: meshes[stage] for op, stage in zip(graph.ops, stages, strict=True)}
    mesh_of |= {name: grid(cluster, [machine], (1,)) for name, machine in question.pins.items()}
    return meshed(graph, cluster, lambda op: mesh_of[op.name], weights=weights, costs=costs)


def _memory_differs(cluster: Cluster) -> bool:
    """Whether machines have less memory for their speed than others: shares by speed may then not fit."""
    ratios = [machine.memory_bytes / machine.flops_per_s for machine in cluster.machines]
    return max(ratios) > MEMORY_ALIKE * min(ratios)


def _by_memory(question: Question, shape: tuple[int, ...], costs: Costs) -> Made:
    """The best layouts when every machine gets a share by its memory, not by its speed."""
    graph, cluster = question.graph, question.cluster
    mesh = replace(
        grid(cluster, question.machines, shape), speeds=tuple(float(m.memory_bytes) for m in cluster.machines)
    )
    pins = {name: grid(cluster, [machine], (1,)) for name, machine in question.pins.items()}
    return meshed(graph, cluster, lambda op: pins.get(op.name, mesh), costs=costs)


def _contiguous(question: Question, *, traffic: bool) -> Made:
    graph, cluster = question.graph, question.cluster
    stages = stage_of(graph, cluster, [m.flops_per_s for m in cluster.machines], traffic=traffic)
    if stages is None:
        return f"{len(graph.ops)} operators for {len(cluster)} stages"
    return {op.name: [(op.nest.box, stage)] for op, stage in zip(graph.ops, stages, strict=True)}, {}


def _by_metis(question: Question, axes: CutAxes, *, levels: bool) -> Made:
    """METIS' cut of a block graph; with `levels` what runs at the same time is shared out evenly by itself."""
    graph, cluster = question.graph, question.cluster
    most = LEVEL_BLOCKS_MAX if levels else BLOCKS_MAX
    try:
        vertices = blocks(graph, axes)
        if not len(cluster) <= len(vertices) <= most:
            return f"{len(vertices)} blocks; it takes {len(cluster)} to {most}"
        joined = block_graph(vertices)
        shares = [machine.flops_per_s for machine in cluster.machines]
        if not levels:
            found = metis(joined, len(cluster), seed=question.seed, shares=shares)
            return placed(vertices, found), folds(vertices, found)
        groups = level_groups(graph, LEVELS_MAX)
        level_of = [groups[block.op] for block in vertices]
        found = metis_levels(joined, len(cluster), level_of=level_of, seed=question.seed, shares=shares)
        return placed(vertices, found), folds(vertices, found)
    except (Infeasible, MetisMissing) as error:
        return error.facts if isinstance(error, Infeasible) else str(error)


def _by_kahypar(question: Question, axes: CutAxes) -> Made:
    """Mt-KaHyPar's cut of the hypergraph of blocks, whose connectivity is the traffic."""
    cluster = question.cluster
    try:
        vertices = blocks(question.graph, axes)
        if not len(cluster) <= len(vertices) <= LEVEL_BLOCKS_MAX:
            return f"{len(vertices)} blocks; it takes {len(cluster)} to {LEVEL_BLOCKS_MAX}"
        shares = [machine.flops_per_s for machine in cluster.machines]
        fixed = {i: question.pins[block.op] for i, block in enumerate(vertices) if block.op in question.pins}
        found = kahypar(net_graph(vertices), len(cluster), seed=question.seed, shares=shares, fixed=fixed)
        return placed(vertices, found), folds(vertices, found)
    except (Infeasible, KahyparMissing) as error:
        return error.facts if isinstance(error, Infeasible) else str(error)


def cut_axes(graph: Graph, count: int) -> list[CutAxes]:
    """The sets of axes to start METIS from: none gives a pipeline, units slices, pairs Megatron's, space tiles."""
    units, space, pairs = unit_axes(graph), spatial_axes(graph), paired_axes(graph)
    sets = [CutAxes("layers", frozenset(), 1)]
    for parts in (count, 4 * count) if count <= FINE_MAX else (count,):
        sets.append(CutAxes(f"units/{parts}", units, parts))
        sets.append(CutAxes(f"pairs/{parts}", pairs, parts, reductions=True))
    for parts in sorted({_side(count), 2 * _side(count)}):
        sets.append(CutAxes(f"space/{parts}", space, parts))
    sets.append(CutAxes(f"units+space/{_side(count)}", units | space, _side(count)))
    distinct: dict[tuple[frozenset[int], int, bool], CutAxes] = {}
    for axes in sets:
        distinct.setdefault((axes.axes, axes.parts if axes.axes else 1, axes.reductions), axes)
    return list(distinct.values())


def _side(count: int) -> int:
    """The side of the smallest square grid of at least `count` tiles."""
    return next(side for side in itertools.count(1) if side * side >= count)


def most_machines(graph: Graph) -> int:
    """An upper bound on the machines that a cut can use: the points of all loops that may be cut."""
    total = 0
    for op in graph.ops:
        points = 1
        for loop in op.nest.loops:
            points *= loop.size if loop.kind == "parallel" else 1
        total += points
    return total


def require(graph: Graph, count: int) -> None:
    """Raise Infeasible where the model has fewer blocks than there are machines."""
    most = most_machines(graph)
    if count > most:
        raise Infeasible(
            "E402", f"{count} machines for a model that divides into {most} blocks at most", fix=f"--machines {most}"
        )
