"""Proposes candidates: ways to cut a graph over a cluster, each of which the simulator then scores.

mesh AxB                 the best layouts on a mesh of the machines (layout_search.py)
mesh AxB by bytes        the same where bytes count four times
mesh AxB by memory       the same with shares by the machines' memory
mesh AxB to fit          the same with shares by speed up to what fits in memory (fitting_shares.py)
mesh AxB, hosts alike    the same chosen as if machines of several hosts were as near as those of one
mesh AxB, whole apart    operators that cannot be cut on a machine each, the others on the mesh (whole_operators.py)
batch, whole apart       the same with the others cut along the batch, as people place experts by hand
..., all rows            of these, with whole tensors sent to and from such operators, not the rows that they read
stages x mesh SxAxB      a pipeline of S stages, each on a mesh of its own; with "to fit" as above
stages x meshes          a pipeline of stages of unlike size, each on a mesh of its own (stage_division.py)
stages x meshes, turned  the same with the last machines for the first stages
stages x meshes, uneven  the same where some machines may have next to no work
wavefront SxAxB/W        layers of recurrent nets on S meshes, in waves W products deep (wavefront.py)
slices                   every layer cut along its hidden units
stages, even stages      contiguous stages by dynamic programming, with and without traffic
tiles AxB                image rows and columns along a grid
metis AXES               METIS on the graph of blocks along a set of axes (cut_axes.py)
metis levels AXES        the same with every level of the model balanced
kahypar AXES             Mt-KaHyPar on the hypergraph of these blocks
"""

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from ..cluster.cost_model import CostModel
from ..cluster.hierarchy import find_hosts
from ..cluster.machines import Cluster
from ..dataflow.cut import Cut, colocate_overwriters, find_partial_ops, fuse_boxes, one_machine_cut
from ..ir.graph import Graph
from ..layouts.device_mesh import DeviceMesh
from ..layouts.layout_search import mesh_of_machines, mesh_shapes, mesh_shapes_of, search_layouts
from ..layouts.resharding_cost import EQUAL_WEIGHTS, TrafficWeights
from ..layouts.stage_division import MeshCosts, divide_stages
from ..layouts.standard_cuts import contiguous_stages, divide_batch, slice_layers, tile_images
from .block_cuts import BlocksAlongAxes, cut_axis_sets, cut_by_kahypar, cut_by_metis
from .fitting_shares import fit_shares, is_memory_tight
from .plan import FAIR_SHARE, Boxes, Candidate, CutMaker, CutOrReason, PlanningProblem, Rejected
from .wavefront import assign_layers, find_layers, group_counts, wave_lengths
from .whole_operators import spread_whole_operators

MAX_MEMORY_RATIO = 1.25  # largest to smallest memory per FLOP/s; beyond, shares by memory are tried too
TO_FIT = " to fit"  # in the names of candidates that are made where memory is tight
MAX_DIVIDED_WORK = 4_000  # operators times machines up to which stages of unlike size are worth their time
# The sum over pairs of operators does not see that latencies overlap where several messages leave at once.
BYTES_FIRST = TrafficWeights(network=4.0, latency=0.0)
WEIGHTS = ((EQUAL_WEIGHTS, ""), (BYTES_FIRST, " by bytes"))


def propose_candidates(
    problem: PlanningProblem,
    costs: CostModel | None = None,
    *,
    prefix: str = "",
    names: Collection[str] | None = None,
) -> Iterator[Candidate | Rejected]:
    """Yield all candidates in a fixed order; those that cannot be made or leave a machine idle as `Rejected`.

    costs: the cost model of the graph, if there is one already. prefix: only candidates whose name begins so. names:
    only those of these names.
    """
    count = len(problem.cluster)
    if count == 1:
        yield Candidate("one machine", one_machine_cut(problem.graph))
        return
    # By names the candidates are those of another problem, whose memory may be tight where that of this one is not.
    tight = names is not None or is_memory_tight(problem)
    for name, make in _makers(problem, costs or CostModel(problem.graph.tensors), tight=tight):
        if not name.startswith(prefix) or (names is not None and name not in names):
            continue
        boxes_and_folds = make()
        if isinstance(boxes_and_folds, str):
            yield Rejected(name, boxes_and_folds)
            continue
        cut = _complete_cut(problem, *boxes_and_folds)
        used = {machine for pieces in cut.boxes.values() for _, machine in pieces}
        if len(used) == count:
            yield Candidate(name, cut)
        else:
            yield Rejected(name, f"it uses {len(used)} of {count} machines")


def candidate_names(problem: PlanningProblem, *, tight: bool = False) -> list[str]:
    """The names of all candidates that there may be. tight: also of those for machines that lack memory."""
    costs = CostModel(problem.graph.tensors)
    return [name for name, _ in _makers(problem, costs, tight=tight or is_memory_tight(problem))]


def count_stages(name: str, machines: int) -> int:
    """Return how many stages a candidate has, by its name; 1 where all machines work on each operator.

    0 where only the whole graph says it.
    """
    if name.startswith(("wavefront", "stages x meshes")):
        return 0
    if name.startswith("stages x mesh "):
        return int(name.removeprefix("stages x mesh ").partition("x")[0])
    return machines if name in ("stages", "even stages", "metis layers", "metis levels layers") else 1


def cuts_like_blocks_alike(name: str) -> bool:
    """Return whether a candidate, by its name, cuts the blocks that a graph repeats alike, however many they are."""
    return not name.startswith(("metis", "kahypar"))


def _complete_cut(problem: PlanningProblem, boxes: Boxes, folds: Boxes, wave: int = 0) -> Cut:
    """The cut with operators where they are pinned, and those that touch an overwritten buffer together."""
    graph, count = problem.graph, len(problem.cluster)
    pinned = {name: [(operator_box(graph, name), machine)] for name, machine in problem.pins.items()}
    all_boxes = colocate_overwriters(graph, {**boxes, **pinned})
    partial_ops = {op.name for op in find_partial_ops(graph, all_boxes)}
    return Cut(
        count,
        fuse_boxes(count, all_boxes),
        {name: pieces for name, pieces in folds.items() if name in partial_ops},
        wave=wave,
    )


def operator_box(graph: Graph, name: str) -> tuple[tuple[int, int], ...]:
    """All points of an operator."""
    return next(op.nest.box for op in graph.ops if op.name == name)


def _makers(problem: PlanningProblem, costs: CostModel, *, tight: bool) -> Iterator[tuple[str, CutMaker]]:
    machines = problem.machines
    yield from _make_on_meshes(problem, costs, tight=tight)
    yield from _make_in_stages(problem, costs, tight=tight)
    layers = find_layers(problem.graph)
    for count in group_counts(layers, len(machines)):
        for shape, wave in itertools.product(mesh_shapes(len(machines) // count), wave_lengths(problem.graph)):
            make = partial(_wavefront, problem, layers, (count, *shape), costs=costs, wave=wave)
            yield f"wavefront {format_shape((count, *shape))}/{wave}", make
    yield "slices", partial(_slices, problem)
    for name, traffic in (("stages", True), ("even stages", False)):
        yield name, partial(_contiguous, problem, traffic=traffic)
    for shape in mesh_shapes(len(machines))[::-1][:2]:
        yield f"tiles {format_shape(shape)}", partial(_tiles, problem, shape)
    for axes in cut_axis_sets(problem.graph, len(machines)):
        along = BlocksAlongAxes(problem.graph, axes)
        yield f"metis {axes.name}", partial(cut_by_metis, problem, along, levels=False)
        if axes.axes and axes.parts <= len(machines):
            yield f"metis levels {axes.name}", partial(cut_by_metis, problem, along, levels=True)
            yield f"kahypar {axes.name}", partial(cut_by_kahypar, problem, along)


def _make_on_meshes(problem: PlanningProblem, costs: CostModel, *, tight: bool) -> Iterator[tuple[str, CutMaker]]:
    machines = problem.machines
    for shape in mesh_shapes_of(problem.cluster):
        name, groups = f"mesh {format_shape(shape)}", [(machines, shape)]
        yield name, partial(_on_mesh, problem, groups, costs)
        yield f"{name} by bytes", partial(_on_mesh, problem, groups, costs, BYTES_FIRST)
        if _memory_differs(problem.cluster):
            yield f"{name} by memory", partial(_by_memory, problem, shape, costs)
        if tight:
            yield f"{name}{TO_FIT}", partial(_to_fit, problem, groups, costs)
    if len(find_hosts(problem.cluster)) > 1:
        alike = replace(problem.cluster, links=())
        for (weights, how), shape in itertools.product(WEIGHTS, mesh_shapes(len(machines))):
            make = partial(_on_mesh, problem, [(machines, shape)], costs, weights, reckoned_on=alike)
            yield f"mesh {format_shape(shape)}{how}, hosts alike", make
    yield from _make_whole_apart(problem, costs)


def _make_whole_apart(problem: PlanningProblem, costs: CostModel) -> Iterator[tuple[str, CutMaker]]:
    """Yield what places whole operators side by side; packing rows may cost more than they take on a fast network."""
    machines, tried = problem.machines, list[dict[str, int]]()
    for all_rows, rows in ((False, ""), (True, ", all rows")):
        apart = spread_whole_operators(problem.graph, problem.cluster, costs, problem.pins, all_rows=all_rows)
        if not apart or apart in tried:
            continue
        tried.append(apart)
        fixed = replace(problem, pins={**apart, **problem.pins})
        for shape, (weights, how) in itertools.product(mesh_shapes_of(problem.cluster), WEIGHTS):
            make = partial(_on_mesh, fixed, [(machines, shape)], costs, weights)
            yield f"mesh {format_shape(shape)}{how}, whole apart{rows}", make
        yield f"batch, whole apart{rows}", partial(_along_batch, problem, apart)


def _make_in_stages(problem: PlanningProblem, costs: CostModel, *, tight: bool) -> Iterator[tuple[str, CutMaker]]:
    machines = problem.machines
    for stages, shape in _staged_shapes(problem, tight=tight):
        size = len(machines) // stages
        name = f"stages x mesh {stages}x{format_shape(shape)}"
        groups = [(machines[at : at + size], shape) for at in range(0, len(machines), size)]
        yield name, partial(_on_mesh, problem, groups, costs)
        if tight:
            yield f"{name}{TO_FIT}", partial(_to_fit, problem, groups, costs)
    if len(machines) <= 2 or len(problem.graph.ops) * len(machines) > MAX_DIVIDED_WORK:
        return
    unlike, meshes = (
        len({m.flops_per_s for m in problem.cluster.machines}) > 1,
        MeshCosts(problem.graph, problem.cluster, costs),
    )
    for order, how in ((machines, ""), (machines[::-1], ", turned"))[: 1 + unlike]:
        yield f"stages x meshes{how}", partial(_in_unlike_stages, problem, order, meshes)
        yield f"stages x meshes, uneven{how}", partial(_in_unlike_stages, problem, order, meshes, least_load=0.0)
        if tight:
            yield f"stages x meshes{TO_FIT}{how}", partial(_in_unlike_stages, problem, order, meshes, cautious=True)


def format_shape(shape: Sequence[int]) -> str:
    return "x".join(str(n) for n in shape)


def _slices(problem: PlanningProblem) -> CutOrReason:
    line = mesh_of_machines(problem.cluster, problem.machines, (len(problem.cluster),))
    boxes = slice_layers(problem.graph, line)
    return "no operator is wide enough" if boxes is None else (boxes, {})


def _along_batch(problem: PlanningProblem, apart: Mapping[str, int]) -> CutOrReason:
    line = mesh_of_machines(problem.cluster, problem.machines, (len(problem.cluster),))
    boxes = divide_batch(problem.graph, line)
    if boxes is None:
        return "no operator has a sample for every machine"
    return {**boxes, **{name: [(operator_box(problem.graph, name), machine)] for name, machine in apart.items()}}, {}


def _tiles(problem: PlanningProblem, shape: tuple[int, ...]) -> CutOrReason:
    boxes = tile_images(problem.graph, mesh_of_machines(problem.cluster, problem.machines, shape))
    return "no operator slides over an image of that size" if boxes is None else (boxes, {})


def _staged_shapes(problem: PlanningProblem, *, tight: bool) -> list[tuple[int, tuple[int, ...]]]:
    """(stages, shape of each stage's mesh), where micro-batches fill a pipeline, or memory is tight.

    In fewer layers a machine holds less of what it exchanges with others.
    """
    count = len(problem.cluster)
    if problem.micro_batches == 1 and not tight:
        return []
    counts = [s for s in range(2, count) if count % s == 0 and s <= len(problem.graph.ops)]
    return [(stages, shape) for stages in counts for shape in mesh_shapes(count // stages)]


def _on_mesh(
    problem: PlanningProblem,
    groups: Sequence[tuple[Sequence[int], tuple[int, ...]]],
    costs: CostModel,
    weights: TrafficWeights = EQUAL_WEIGHTS,
    *,
    reckoned_on: Cluster | None = None,
    shares: Sequence[float] = (),
) -> CutOrReason:
    """The best layouts, the operators in as many stages as there are groups of machines.

    reckoned_on: the same machines on another network, which the layouts are chosen for. shares: of the work that the
    machines get, by their speed if there are none.
    """
    graph, cluster = problem.graph, problem.cluster
    meshes = [mesh_of_machines(cluster, machines, shape) for machines, shape in groups]
    if shares:
        meshes = [replace(mesh, speeds=tuple(shares[m] for m in mesh.machines)) for mesh in meshes]
    stages = contiguous_stages(graph, cluster, [sum(mesh.speeds) for mesh in meshes])
    if stages is None:
        return f"{len(graph.ops)} operators for {len(groups)} stages"
    mesh_of = {op.name: meshes[stage] for op, stage in zip(graph.ops, stages, strict=True)}
    mesh_of |= {name: mesh_of_machines(cluster, [machine], (1,)) for name, machine in problem.pins.items()}
    return search_layouts(graph, reckoned_on or cluster, lambda op: mesh_of[op.name], weights=weights, costs=costs)


def _in_unlike_stages(
    problem: PlanningProblem,
    machines: Sequence[int],
    meshes: MeshCosts,
    *,
    least_load: float = FAIR_SHARE,
    cautious: bool = False,
) -> CutOrReason:
    """The best layouts of stages, which groups of the machines in this order have. For the rest see `divide_stages`."""
    graph, cluster, micro_batches = problem.graph, problem.cluster, problem.micro_batches
    stages = divide_stages(meshes, machines, micro_batches=micro_batches, least_load=least_load, cautious=cautious)
    if stages is None:
        return "no division into stages has a part for every machine"
    mesh_of, start = dict[str, DeviceMesh](), 0
    for stage in stages:
        mesh = mesh_of_machines(cluster, stage.machines, stage.shape)
        mesh_of |= {op.name: mesh for op in graph.ops[start : stage.stop]}
        start = stage.stop
    mesh_of |= {name: mesh_of_machines(cluster, [machine], (1,)) for name, machine in problem.pins.items()}
    return search_layouts(graph, cluster, lambda op: mesh_of[op.name], costs=meshes.costs)


def _wavefront(
    problem: PlanningProblem, layers: Sequence[range], shape: tuple[int, ...], *, costs: CostModel, wave: int
) -> CutOrReason:
    """The best layouts, with each layer of recurrent nets on one of shape[0] meshes, and other operators on all."""
    graph, cluster, machines = problem.graph, problem.cluster, problem.machines
    size = len(machines) // shape[0]
    groups = [mesh_of_machines(cluster, machines[at : at + size], shape[1:]) for at in range(0, len(machines), size)]
    every = mesh_of_machines(cluster, machines, (len(machines),))
    mesh_of = {name: groups[group] for name, group in assign_layers(graph, layers, shape[0]).items()}
    mesh_of |= {name: mesh_of_machines(cluster, [machine], (1,)) for name, machine in problem.pins.items()}
    boxes, folds = search_layouts(graph, cluster, lambda op: mesh_of.get(op.name, every), costs=costs)
    return boxes, folds, wave


def _memory_differs(cluster: Cluster) -> bool:
    """Whether some machines have less memory for their speed than others, so that shares by speed may not fit."""
    ratios = [machine.memory_bytes / machine.flops_per_s for machine in cluster.machines]
    return max(ratios) > MAX_MEMORY_RATIO * min(ratios)


def _by_memory(problem: PlanningProblem, shape: tuple[int, ...], costs: CostModel) -> CutOrReason:
    """The best layouts where every machine's share is by its memory in place of its speed."""
    memory = [float(machine.memory_bytes) for machine in problem.cluster.machines]
    return _on_mesh(problem, [(problem.machines, shape)], costs, shares=memory)


def _to_fit(
    problem: PlanningProblem, groups: Sequence[tuple[Sequence[int], tuple[int, ...]]], costs: CostModel
) -> CutOrReason:
    """The best layouts where shares are by speed as far as memory goes."""

    def make(shares: Sequence[float]) -> tuple[CutOrReason, Cut | None]:
        made = _on_mesh(problem, groups, costs, shares=shares)
        return made, None if isinstance(made, str) else _complete_cut(problem, *made)

    return fit_shares(problem, make)


def _contiguous(problem: PlanningProblem, *, traffic: bool) -> CutOrReason:
    graph, cluster = problem.graph, problem.cluster
    stages = contiguous_stages(graph, cluster, [m.flops_per_s for m in cluster.machines], traffic=traffic)
    if stages is None:
        return f"{len(graph.ops)} operators for {len(cluster)} stages"
    return {op.name: [(op.nest.box, stage)] for op, stage in zip(graph.ops, stages, strict=True)}, {}


def max_machines(graph: Graph) -> int:
    """An upper bound on the machines that a cut can use: the points of all loops that may be cut."""
    total = 0
    for op in graph.ops:
        points = 1
        for loop in op.nest.loops:
            points *= loop.size if loop.kind != "fixed" else 1
        total += points
    return total
