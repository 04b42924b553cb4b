"""Local search: an operator, and the light ones that follow it, take another layout while that makes the plan better.

This is hill climbing on the simulator: a move that improves the rank is kept at once. Every trial is lowered and
simulated, so a fixed budget of instructions limits their number.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

from ..dataflow.cut import Cut, PlacedBox, colocate_overwriters, find_partial_ops, fuse_boxes
from ..ir.graph import Graph, Op
from ..layouts.device_mesh import DeviceMesh, Layout, enumerate_layouts
from ..layouts.layout_search import mesh_of_machines, mesh_shapes_of
from ..layouts.standard_cuts import boxes_of_layout
from .plan import PlanningProblem

MAX_INSTRUCTIONS = 10_000  # that one search simulates, over all trials
MAX_TRIALS = 60
Rank = TypeVar("Rank", bound=tuple)  # type: ignore[type-arg]


def improve_cut(
    problem: PlanningProblem, cut: Cut, rank: Callable[[Cut], Rank], known: Rank | None = None
) -> Cut | None:
    """Search for a better cut by `rank`, where smaller is better; None where there is none.

    known: the rank of `cut`, if it is known.
    """
    trials = min(MAX_TRIALS, MAX_INSTRUCTIONS // max(1, cut.box_count))
    if not trials:
        return None
    best, best_rank, improved = cut, rank(cut) if known is None else known, False
    moves = _enumerate_moves(problem)
    for _ in range(trials):
        move = next(moves, None)
        if move is None:
            break
        trial = _apply_move(problem, best, move)
        if _machines_in_use(trial) < _machines_in_use(best):  # fewer machines are another planning problem
            continue
        trial_rank = rank(trial)
        if trial_rank < best_rank:
            best, best_rank, improved = trial, trial_rank, True
    return best if improved else None


def _machines_in_use(cut: Cut) -> int:
    return len({machine for pieces in cut.boxes.values() for _, machine in pieces})


Move = Mapping[str, Sequence[PlacedBox]]


def _apply_move(problem: PlanningProblem, cut: Cut, move: Move) -> Cut:
    boxes = colocate_overwriters(problem.graph, {**cut.boxes, **move})
    partial = {op.name for op in find_partial_ops(problem.graph, boxes)}
    folds = {name: pieces for name, pieces in cut.folds.items() if name in partial and name not in move}
    return Cut(cut.machines, fuse_boxes(cut.machines, boxes), folds, wave=cut.wave)


def _enumerate_moves(problem: PlanningProblem) -> Iterator[Move]:
    """Other boxes for the operators, those with most work first, one move of each in turn."""
    graph = problem.graph
    cluster, machines = problem.cluster, problem.machines
    # Parts go to machines in order, so unlike machines in the reverse order make other cuts.
    orders = (
        [machines, machines[::-1]] if len({machine.flops_per_s for machine in cluster.machines}) > 1 else [machines]
    )
    meshes = [mesh_of_machines(cluster, order, shape) for order in orders for shape in mesh_shapes_of(cluster)]
    heavy = sorted((op for op in graph.ops if op.name not in problem.pins), key=lambda op: (-op.flops, op.name))
    pending = deque(_operator_moves(graph, op, meshes, problem) for op in heavy)
    while pending:  # in turn, so that a small budget reaches all heavy operators
        options = pending.popleft()
        move = next(options, None)
        if move is not None:
            yield move
            pending.append(options)


def _operator_moves(graph: Graph, op: Op, meshes: Sequence[DeviceMesh], problem: PlanningProblem) -> Iterator[Move]:
    for mesh in meshes:
        for layout in enumerate_layouts(op.nest.loops, mesh.shape):
            if layout:
                yield _move_with_followers(graph, op, mesh, layout, problem)
    for machine in problem.machines:
        yield {op.name: [(op.nest.box, machine)]}


def _move_with_followers(graph: Graph, op: Op, mesh: DeviceMesh, layout: Layout, problem: PlanningProblem) -> Move:
    """An operator in a layout, and the light operators after it that can have the same layout."""
    out = {op.name: boxes_of_layout(op, mesh, layout)}
    axes = [(dimension, op.nest.loops[loop].axis) for dimension, loop in layout]
    outputs = set(op.outputs)
    for other in graph.ops[graph.ops.index(op) + 1 :]:
        light = other.flops < op.flops / 16 and other.name not in problem.pins
        if not light or not outputs.intersection(other.inputs):
            continue
        loops = {loop.axis: i for i, loop in enumerate(other.nest.loops) if loop.kind == "parallel"}
        if all(axis in loops for _, axis in axes):
            same = tuple((dimension, loops[axis]) for dimension, axis in axes)
            if same in enumerate_layouts(other.nest.loops, mesh.shape):
                out[other.name] = boxes_of_layout(other, mesh, same)
                outputs.update(other.outputs)
    return out
