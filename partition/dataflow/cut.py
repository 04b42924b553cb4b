"""`Cut`: which machine runs which box of every operator, who owns the sums, and who owns the parameters."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ...errors import BadInput
from ..ir.box import Box, cells, fuse, intersect, volume
from ..ir.graph import Graph, Op, is_partial, output_box, read_box

PlacedBox = tuple[Box, int]  # a box and its machine


@dataclass(frozen=True)
class Cut:
    """An assignment of blocks to machines, merged to rectangles.

    boxes: operator -> disjoint boxes that cover its loops, each with its machine.
    folds: operator whose reduction loops are cut -> boxes of its output with the machine that adds the partial sums.
    owners: parameter, buffer or constant -> boxes with the machine that holds them.
    recomputed: (machine, stage) of the segments that recompute their activations in backward (checkpointing).
    wave: how many products deep a wave is (see waves.py), 0 where a machine computes all that it can before it sends.
    deferred: (machine, stage) of the segments whose parameters get their gradients later, with the stage after whose
    backward they do (see deferred_gradients.py).
    """

    machines: int
    boxes: Mapping[str, Sequence[PlacedBox]]
    folds: Mapping[str, Sequence[PlacedBox]] = field(default_factory=dict)
    owners: Mapping[str, Sequence[PlacedBox]] = field(default_factory=dict)
    recomputed: frozenset[tuple[int, int]] = frozenset()
    wave: int = 0
    deferred: Mapping[tuple[int, int], int] = field(default_factory=dict)

    @property
    def box_count(self) -> int:
        """How many boxes all operators together are cut into."""
        return sum(map(len, self.boxes.values()))


def fuse_boxes(machines: int, boxes: Mapping[str, Sequence[PlacedBox]]) -> dict[str, list[PlacedBox]]:
    """Merge the boxes of each machine to the largest rectangles."""
    return {name: _fuse_per_machine(machines, pieces) for name, pieces in boxes.items()}


def _fuse_per_machine(machines: int, pieces: Sequence[PlacedBox]) -> list[PlacedBox]:
    by_machine: list[list[Box]] = [[] for _ in range(machines)]
    for box, machine in pieces:
        by_machine[machine].append(box)
    return [(box, machine) for machine, boxes in enumerate(by_machine) for box in fuse(boxes)]


def one_machine_cut(graph: Graph) -> Cut:
    """The cut that runs the whole model on one machine."""
    return Cut(1, {op.name: [(op.nest.box, 0)] for op in graph.ops})


def colocate_overwriters(graph: Graph, boxes: Mapping[str, Sequence[PlacedBox]]) -> dict[str, Sequence[PlacedBox]]:
    """Move the operators that touch an overwritten buffer to where the first of them is.

    They take its boxes if they read the buffer alike, as a batch norm that is used twice does; else they are whole.
    """
    out = dict(boxes)
    for name, ops in graph.overwritten.items():
        first = ops[0]
        alike = all(_reads_alike(first, op, name) for op in ops)
        home = out[first.name][0][1]
        out |= {op.name: out[first.name] if alike else [(op.nest.box, home)] for op in ops}
    return out


def _reads_alike(a: Op, b: Op, name: str) -> bool:
    """Whether equal boxes of two operators touch the same part of a buffer."""
    loops = [[(loop.size, loop.kind == "fixed") for loop in op.nest.loops] for op in (a, b)]
    readings = [[o.readings for o in op.nest.operands if o.tensor == name] for op in (a, b)]
    return loops[0] == loops[1] and readings[0] == readings[1]


def check_cut(graph: Graph, cut: Cut) -> None:
    """Raise BadInput, naming the operator, unless boxes cover every operator's loops exactly once."""
    for op in graph.ops:
        pieces = cut.boxes.get(op.name)
        if pieces is None:
            raise BadInput("E341", f"the placement says nothing about operator {op.name} ({op.target})")
        _check_cover(f"operator {op.name}", [box for box, _ in pieces], op.nest.box)
        _check_machines(op.name, pieces, cut.machines)
        for box, _ in pieces:
            _check_loops(op, box)
        if op.name in cut.folds:
            _check_cover(f"the sums of {op.name}", [b for b, _ in cut.folds[op.name]], graph.tensors[op.outputs[0]].box)
            _check_machines(op.name, cut.folds[op.name], cut.machines)
    for name, pieces in cut.owners.items():
        if name not in graph.tensors:
            raise BadInput("E341", f"the placement owns {name}, which the model does not have")
        _check_cover(f"parameter {name}", [box for box, _ in pieces], graph.tensors[name].box)
        _check_machines(name, pieces, cut.machines)
    for name, ops in graph.overwritten.items():
        _check_together(name, ops, cut)
        _check_owned(graph, name, ops, cut)


def _check_owned(graph: Graph, name: str, ops: Sequence[Op], cut: Cut) -> None:
    """A buffer is overwritten where it is owned, each part in one piece."""
    owned = cut.owners.get(name)
    if owned is None:
        return
    for op in ops:
        operands = [o for o in op.nest.operands if o.tensor == name]
        for (box, machine), operand in itertools.product(cut.boxes[op.name], operands):
            region = read_box(op.nest, operand, box, graph.tensors[name].extents)
            here = [piece for piece, owner in owned if owner == machine]
            if region is not None and not any(intersect(piece, region) == region for piece in here):
                raise BadInput("E341", f"{name} must be owned where {op.name} overwrites it, on machine {machine}")


def _check_together(name: str, ops: Sequence[Op], cut: Cut) -> None:
    first = ops[0]
    for op in ops[1:]:
        whole_at = {machine for o in (first, op) for _, machine in cut.boxes[o.name]}
        alike = _reads_alike(first, op, name) and sorted(cut.boxes[op.name]) == sorted(cut.boxes[first.name])
        if len(whole_at) > 1 and not alike:
            raise BadInput(
                "E341", f"operators {first.name} and {op.name} must be on one machine: the step overwrites {name}"
            )


def _check_machines(name: str, pieces: Sequence[PlacedBox], machines: int) -> None:
    for _, machine in pieces:
        if not 0 <= machine < machines:
            raise BadInput("E341", f"{name} is placed on machine {machine}; there are {machines}")


def _check_loops(op: Op, box: Box) -> None:
    for loop, interval in zip(op.nest.loops, box, strict=True):
        if loop.kind == "fixed" and interval != (0, loop.size):
            raise BadInput(
                "E341", f"operator {op.name} ({op.target}) is cut along a loop of {loop.size} that must stay whole"
            )


def _check_cover(what: str, boxes: Sequence[Box], whole_box: Box) -> None:
    if not volume(whole_box) and list(boxes) == [whole_box]:
        return
    if any(len(box) != len(whole_box) or intersect(box, whole_box) != box for box in boxes):
        raise BadInput("E341", f"a box of {what} lies outside its loops {whole_box}")
    if sum(volume(box) for box in boxes) != volume(whole_box) or boxes_overlap(boxes):
        raise BadInput("E341", f"the boxes of {what} do not cover {whole_box} exactly once")


def boxes_overlap(boxes: Sequence[Box]) -> bool:
    """Whether any two boxes share a point."""
    if len(boxes) < 2:
        return False
    breaks, index = cells(boxes)
    marked = np.zeros([len(axis) - 1 for axis in breaks], dtype=np.int32)
    for where in index:
        marked[where] += 1
    return bool((marked > 1).any())


def find_partial_ops(graph: Graph, boxes: Mapping[str, Sequence[PlacedBox]]) -> list[Op]:
    """Operators of which some box gives only a partial sum."""
    return [op for op in graph.ops if any(is_partial(op.nest, box) for box, _ in boxes[op.name])]


def assign_fold_owners(graph: Graph, cut: Cut) -> Cut:
    """Give every partial sum an owner: its first reader, box by box, else the machine with most of the work."""
    folds = dict(cut.folds)
    for op in find_partial_ops(graph, cut.boxes):
        if op.name not in folds:
            folds[op.name] = _first_readers(graph, cut, op) or _busiest(graph, cut, op)
    return replace(cut, folds=folds)


def _first_readers(graph: Graph, cut: Cut, op: Op) -> list[PlacedBox]:
    name = op.outputs[0]
    info = graph.tensors[name]
    for reader in graph.ops:
        operand = next((o for o in reader.nest.operands if o.tensor == name), None)
        if operand is None:
            continue
        regions = [(read_box(reader.nest, operand, box, info.extents), m) for box, m in cut.boxes[reader.name]]
        read = [(box, machine) for box, machine in regions if box is not None]
        exact = sum(volume(b) for b, _ in read) == volume(info.box) and not boxes_overlap([b for b, _ in read])
        return _fuse_per_machine(cut.machines, read) if exact else []
    return []


def _busiest(graph: Graph, cut: Cut, op: Op) -> list[PlacedBox]:
    work = [0] * cut.machines
    for box, machine in cut.boxes[op.name]:
        work[machine] += volume(box)
    info = graph.tensors[op.outputs[0]]
    return [(output_box(op, info, op.nest.box), work.index(max(work)))]
