"""Cuts of the graph of blocks, by METIS and by Mt-KaHyPar, along several sets of axes."""

import itertools
from functools import cached_property

from ...errors import Infeasible
from ..ir.graph import Graph
from ..mincut.block_graph import boxes_by_operator, build_block_graph, level_groups
from ..mincut.block_hypergraph import build_block_hypergraph
from ..mincut.blocks import Blocks, split_into_blocks
from ..mincut.csr_graph import CsrGraph
from ..mincut.cut_axes import CutAxes, paired_axes, spatial_axes, unit_axes
from ..mincut.kahypar import partition_kahypar
from ..mincut.metis import MAX_LEVELS, partition_metis, partition_metis_levels
from ..mincut.metis_ctypes import MetisUnavailable
from ..mincut.reduction_owners import reduction_owners
from .plan import CutOrReason, PlanningProblem

MAX_BLOCKS = 20_000  # a plan of more blocks takes minutes; coarser sets of cut axes must do then
MAX_LEVEL_BLOCKS = 4_000  # the same where every level is balanced
MAX_FINE_MACHINES = 16  # machines up to which several blocks an axis and machine are worth their time


class BlocksAlongAxes:
    """The blocks of a graph along a set of axes, and their graph, made once for all that partition them."""

    def __init__(self, graph: Graph, axes: CutAxes) -> None:
        self._graph, self._axes = graph, axes

    @cached_property
    def blocks(self) -> Blocks:
        """The blocks. Raises Infeasible where there are too many."""
        return split_into_blocks(self._graph, self._axes)

    @cached_property
    def graph(self) -> CsrGraph:
        """The graph of the blocks. Raises Infeasible where there are too many edges."""
        return build_block_graph(self.blocks)


def cut_by_metis(problem: PlanningProblem, along: BlocksAlongAxes, *, levels: bool) -> CutOrReason:
    """METIS' cut of the block graph; with `levels`, the work of every level is balanced on its own."""
    graph, cluster = problem.graph, problem.cluster
    limit = MAX_LEVEL_BLOCKS if levels else MAX_BLOCKS
    try:
        vertices = along.blocks
        if not len(cluster) <= len(vertices) <= limit:
            return f"{len(vertices)} blocks; it takes {len(cluster)} to {limit}"
        block_graph = along.graph
        shares = [machine.flops_per_s for machine in cluster.machines]
        if not levels:
            part_of = partition_metis(block_graph, len(cluster), seed=problem.seed, shares=shares)
            return boxes_by_operator(vertices, part_of), reduction_owners(vertices, part_of)
        groups = level_groups(graph, MAX_LEVELS)
        level_of = [groups[block.op] for block in vertices]
        part_of = partition_metis_levels(block_graph, len(cluster), level_of=level_of, seed=problem.seed, shares=shares)
        return boxes_by_operator(vertices, part_of), reduction_owners(vertices, part_of)
    except (Infeasible, MetisUnavailable) as error:
        return error.facts if isinstance(error, Infeasible) else str(error)


def cut_by_kahypar(problem: PlanningProblem, along: BlocksAlongAxes) -> CutOrReason:
    """Mt-KaHyPar's cut of the hypergraph of blocks, whose connectivity is the traffic."""
    cluster = problem.cluster
    try:
        vertices = along.blocks
        if not len(cluster) <= len(vertices) <= MAX_LEVEL_BLOCKS:
            return f"{len(vertices)} blocks; it takes {len(cluster)} to {MAX_LEVEL_BLOCKS}"
        shares = [machine.flops_per_s for machine in cluster.machines]
        fixed = {i: problem.pins[block.op] for i, block in enumerate(vertices) if block.op in problem.pins}
        part_of = partition_kahypar(
            build_block_hypergraph(vertices), len(cluster), seed=problem.seed, shares=shares, fixed=fixed
        )
        return boxes_by_operator(vertices, part_of), reduction_owners(vertices, part_of)
    except Infeasible as error:
        return error.facts


def cut_axis_sets(graph: Graph, count: int) -> list[CutAxes]:
    """The sets of axes for METIS: none gives a pipeline, units slices, pairs Megatron-LM's cut, space tiles."""
    units, space, pairs = unit_axes(graph), spatial_axes(graph), paired_axes(graph)
    sets = [CutAxes("layers", frozenset(), 1)]
    for parts in (count, 4 * count) if count <= MAX_FINE_MACHINES else (count,):
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
