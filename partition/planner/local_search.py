"""Local search: an operator, and the light ones that go with it, take another layout while that makes the plan better.

Every trial is spelled out and simulated, so only as many are made as a fixed budget of instructions allows.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

from .candidates import Question
from ..dataflow.cut import Cut, Placed, fused, partial_ops, together
from ..ir.graph import Graph, Op
from ..layouts.device_mesh import Layout, Mesh, layouts
from ..layouts.layout_search import grid, shapes
from ..layouts.regular import laid

INSTRUCTIONS_MAX = 10_000  # simulated by one search, all trials together
TRIALS_MAX = 60
Rank = TypeVar("Rank", bound=tuple)  # type: ignore[type-arg]


def polished(question: Question, cut: Cut, rank: Callable[[Cut], Rank]) -> Cut | None:
    """A better cut by `rank`, smaller being better, or None where none was found."""
    best, least, found = cut, rank(cut), False
    trials = min(TRIALS_MAX, INSTRUCTIONS_MAX // max(1, sum(len(pieces) for pieces in cut.boxes.values())))
    moves = _moves(question)
    for _ in range(trials):
        move = next(moves, None)
        if move is None:
            break
        trial = _moved(question, best, move)
        if _used(trial) < _used(best):  # fewer machines are a question of their own
            continue
        score = rank(trial)
        if score < least:
            best, least, found = trial, score, True
    return best if found else None


def _used(cut: Cut) -> int:
    return len({machine for pieces in cut.boxes.values() for _, machine in pieces})


Move = Mapping[str, Sequence[Placed]]


def _moved(question: Question, cut: Cut, move: Move) -> Cut:
    boxes = together(question.graph, {**cut.boxes, **move})
    partial = {op.name for op in partial_ops(question.graph, boxes)}
    folds = {name: pieces for name, pieces in cut.folds.items() if name in partial and name not in move}
    return Cut(cut.machines, fused(cut.machines, boxes), folds)


def _moves(question: Question) -> Iterator[Move]:
    """Other boxes for the operators with most work, in turn."""
    graph = question.graph
    meshes = [grid(question.cluster, question.machines, shape) for shape in shapes(len(question.cluster))]
    heavy = sorted((op for op in graph.ops if op.name not in question.pins), key=lambda op: (-op.flops, op.name))
    turns = deque(_options(graph, op, meshes, question) for op in heavy)
    while turns:  # one move of each operator in turn: a small budget then reaches all the heavy ones
        options = turns.popleft()
        move = next(options, None)
        if move is not None:
            yield move
            turns.append(options)


def _options(graph: Graph, op: Op, meshes: Sequence[Mesh], question: Question) -> Iterator[Move]:
    for mesh in meshes:
        for layout in layouts(op.nest.loops, mesh.shape):
            if layout:
                yield _with_followers(graph, op, mesh, layout, question)
    for machine in question.machines:
        yield {op.name: [(op.nest.box, machine)]}


def _with_followers(graph: Graph, op: Op, mesh: Mesh, layout: Layout, question: Question) -> Move:
    """The operator in a layout, and after it those without parameters of their own that can have the same one."""
    out = {op.name: laid(op, mesh, layout)}
    axes = [(dimension, op.nest.loops[loop].axis) for dimension, loop in layout]
    made = set(op.outputs)
    for other in graph.ops[graph.ops.index(op) + 1 :]:
        light = other.flops < op.flops / 16 and other.name not in question.pins
        if not light or not made.intersection(other.inputs):
            continue
        loops = {loop.axis: i for i, loop in enumerate(other.nest.loops) if loop.kind == "parallel"}
        if all(axis in loops for _, axis in axes):
            same = tuple((dimension, loops[axis]) for dimension, axis in axes)
            if same in layouts(other.nest.loops, mesh.shape):
                out[other.name] = laid(other, mesh, same)
                made.update(other.outputs)
    return out
