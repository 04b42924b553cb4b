"""Carries the cut of a training graph over to another graph of the model, which was captured apart and may differ.

That is the graph of evaluation, or that of batches of another size.
"""

from collections import Counter
from collections.abc import Sequence

from ..ir.box import Box, volume
from ..ir.graph import Graph, Op, TensorInfo, is_at_origin
from ..ir.regrouped_box import regroup_box
from .cut import Cut, PlacedBox, assign_fold_owners


def carry_cut(train: Graph, cut: Cut, other: Graph) -> Cut:
    """Derive the cut of another graph that leaves every parameter where the training graph's cut has it.

    An operator that both graphs have (same module, same kind, same count, same loops) keeps its boxes, in the same
    proportions where the graph was captured for other sizes; another goes whole to the machine that computes most of
    what it reads. What is read of the output is collected where the loss is.
    """
    cut = assign_fold_owners(train, cut)
    known = {key: op for op, key in zip(train.ops, _operator_keys(train), strict=True)}
    home = cut.boxes[train.producers[train.results[0]]][0][1]
    boxes: dict[str, Sequence[PlacedBox]] = {}
    folds: dict[str, Sequence[PlacedBox]] = {}
    producers, twins = other.producers, dict[str, Op]()
    for op, key in zip(other.ops, _operator_keys(other), strict=True):
        twin = known.get(key)
        if twin is not None and _has_like_loops(twin, op):
            sizes = [[loop.size for loop in one.nest.loops] for one in (twin, op)]
            boxes[op.name] = _scale(cut.boxes[twin.name], *sizes)
            twins[op.name] = twin
            if twin.name in cut.folds and sizes[0] == sizes[1]:
                folds[op.name] = cut.folds[twin.name]
            continue
        makers = [placed_box for name in op.inputs if name in producers for placed_box in boxes[producers[name]]]
        boxes[op.name] = [(op.nest.box, _busiest_machine(makers, home))]
    collected = {producers[name] for name in other.results}
    boxes |= {op.name: [(op.nest.box, home)] for op in other.ops if op.name in collected}
    for name, ops in other.overwritten.items():
        if name in train.overwritten and all(op.name in twins for op in ops):
            boxes |= {op.name: _keep_writers(twins[op.name], cut, op, boxes[op.name]) for op in ops}
            continue
        holder = cut.owners[name][0][1] if name in cut.owners else home
        boxes |= {op.name: [(op.nest.box, holder)] for op in ops}
    owners = {
        name: _regroup(pieces, train.tensors[name], other.tensors[name])
        for name, pieces in cut.owners.items()
        if name in other.tensors
    }
    return Cut(cut.machines, boxes, folds, owners, wave=cut.wave)


def _keep_writers(twin: Op, cut: Cut, op: Op, boxes: Sequence[PlacedBox]) -> Sequence[PlacedBox]:
    """The boxes of an operator that overwrites a buffer, each part of which the same machine writes as its twin's.

    The first part of a sum writes it. Where that is on another machine, as a small part may vanish, none is cut.
    """
    free = [i for i in range(len(op.nest.loops)) if i not in op.nest.reduction_loops]

    def list_writers(of: Op, placed: Sequence[PlacedBox]) -> set[tuple[Box, int]]:
        sizes = [(of.nest.loops[i].size, op.nest.loops[i].size) for i in free]
        parts = [([box[i] for i in free], machine) for box, machine in placed if is_at_origin(of.nest, box)]
        return {
            (tuple(_scale_interval(one, *size) for one, size in zip(part, sizes, strict=True)), machine)
            for part, machine in parts
        }

    writers = list_writers(twin, cut.boxes[twin.name])
    if list_writers(op, boxes) == writers:
        return boxes
    whole = dict(enumerate(op.nest.box))
    found = [(whole | dict(zip(free, written, strict=True)), machine) for written, machine in writers]
    return sorted((tuple(box[i] for i in range(len(box))), machine) for box, machine in found)


def _regroup(pieces: Sequence[PlacedBox], here: TensorInfo, there: TensorInfo) -> Sequence[PlacedBox]:
    """The same elements on the same machines, where only one of the graphs divides a dimension into several axes."""
    if here.sizes == there.sizes:
        return pieces
    return [(other, machine) for box, machine in pieces for _, other in regroup_box(box, here.sizes, there.sizes)]


def _operator_keys(graph: Graph) -> list[tuple[str, str, int]]:
    """A key of every operator that is the same in both graphs: module, kind, and its number among these."""
    seen = Counter[tuple[str, str]]()
    keys = []
    for op in graph.ops:
        kind = (op.module, op.target)
        keys.append((*kind, seen[kind]))
        seen[kind] += 1
    return keys


def _has_like_loops(a: Op, b: Op) -> bool:
    """Whether boxes of `a`, in proportion, are legal boxes of `b`."""
    return len(a.nest.loops) == len(b.nest.loops) and _cuttable(a) <= _cuttable(b)


def _scale(pieces: Sequence[PlacedBox], sizes: Sequence[int], others: Sequence[int]) -> Sequence[PlacedBox]:
    """Boxes of loops of `sizes` as boxes of loops of other sizes. One of which nothing is left has no place."""
    if sizes == others:
        return pieces
    scaled = [(tuple(map(_scale_interval, box, sizes, others)), machine) for box, machine in pieces]
    return [(box, machine) for box, machine in scaled if volume(box)]


def _scale_interval(interval: tuple[int, int], size: int, other: int) -> tuple[int, int]:
    start, stop = interval
    return (start * other // size, stop * other // size) if size else (0, other)


def _cuttable(op: Op) -> set[int]:
    return {i for i, loop in enumerate(op.nest.loops) if loop.kind != "fixed"}


def _busiest_machine(makers: Sequence[tuple[Box, int]], home: int) -> int:
    share = Counter[int]()
    for box, machine in makers:
        share[machine] += volume(box)
    return max(sorted(share), key=lambda m: share[m]) if share else home
