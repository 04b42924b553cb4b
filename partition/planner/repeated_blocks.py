"""Finds blocks of operators that a graph repeats, as the layers of a deep net, and makes the graph shorter by some.

Operators start ... start + period * count are `count` blocks alike where each operator is like the one a period before:
the same operator on tensors of the same shapes, which come from the same place - the same tensor, an operator as far
before, or state of its own. Without some of its blocks, such a graph costs less to plan, and what a step costs grows
by as much with every block that is put back.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from ..ir.arguments import rename_tensors
from ..ir.graph import Graph, Op
from ..ir.like_operators import LikeOperators

MIN_BLOCKS = 4  # fewer are not worth it


@dataclass(frozen=True)
class RepeatedBlocks:
    """`count` blocks of `period` operators, the first of which begins at the operator number `start`."""

    start: int
    period: int
    count: int

    @property
    def stop(self) -> int:
        """The number of the first operator after them."""
        return self.start + self.period * self.count


def find_repeated_blocks(graph: Graph) -> list[RepeatedBlocks]:
    """Return the blocks that repeat, in the order of the operators, those that cover most operators found first."""
    kinds = _number_kinds(graph)
    found, open_ranges = list[RepeatedBlocks](), [(0, len(graph.ops))]
    while open_ranges:
        start, stop = open_ranges.pop()
        blocks = _find_longest(graph, kinds, start, stop)
        if blocks is not None:
            found.append(blocks)
            open_ranges += [(start, blocks.start), (blocks.stop, stop)]
    return sorted(found, key=lambda blocks: blocks.start)


def shorten_graph(graph: Graph, kept: Mapping[RepeatedBlocks, int]) -> Graph | None:
    """Return the graph with so many of each of its repeated blocks, at least two; None where others read the rest.

    The first and the last blocks stay. A tensor that a block left out would have made is read of the block that is in
    its place.
    """
    gone, renamed = set[int](), dict[str, str]()
    for blocks, count in kept.items():
        first = blocks.start + blocks.period * (count - count // 2)
        left_out = blocks.period * (blocks.count - count)
        gone.update(range(first, first + left_out))
        for number in range(max(blocks.start + left_out, first), first + left_out):
            pairs = zip(graph.ops[number].outputs, graph.ops[number - left_out].outputs, strict=True)
            renamed.update(pairs)
    made_by_gone = {name for number in gone for name in graph.ops[number].outputs}
    ops = [_rename_tensors(op, renamed) for number, op in enumerate(graph.ops) if number not in gone]
    if made_by_gone.intersection([*graph.results, *(name for op in ops for name in op.inputs)]):
        return None
    if _reads_from_outside(graph, kept, made_by_gone):
        return None
    used = {name for op in ops for name in (*op.inputs, *op.outputs)}.union(graph.results)
    tensors = {name: info for name, info in graph.tensors.items() if name in used or info.kind in ("input", "target")}
    return msgspec.structs.replace(graph, ops=tuple(ops), tensors=tensors)


def _reads_from_outside(graph: Graph, kept: Mapping[RepeatedBlocks, int], made_by_gone: set[str]) -> bool:
    """Whether an operator that is in no block reads what a block makes that is left out."""
    inside = {number for blocks in kept for number in range(blocks.start, blocks.stop)}
    return any(made_by_gone.intersection(op.inputs) for number, op in enumerate(graph.ops) if number not in inside)


def _rename_tensors(op: Op, renamed: Mapping[str, str]) -> Op:
    if not any(name in renamed for name in op.inputs):
        return op
    operands = tuple(
        msgspec.structs.replace(operand, tensor=renamed.get(operand.tensor, operand.tensor))
        for operand in op.nest.operands
    )
    nest = msgspec.structs.replace(op.nest, operands=operands)
    return msgspec.structs.replace(op, nest=nest, arguments=rename_tensors(op.arguments, renamed))


# Likeness ----------------------------------------------------------------------------------------------------------


def _number_kinds(graph: Graph) -> np.ndarray[Any, np.dtype[np.int64]]:
    """A number for each operator; those of like operators on tensors of like shapes are equal."""
    like = LikeOperators(graph.tensors)
    return np.array([like.number(op) for op in graph.ops], dtype=np.int64)


def _find_longest(
    graph: Graph, kinds: np.ndarray[Any, np.dtype[np.int64]], start: int, stop: int
) -> RepeatedBlocks | None:
    """The blocks within a range of operators that cover most of them; of equal ones those of the shortest period."""
    place = {name: (number, at) for number, op in enumerate(graph.ops) for at, name in enumerate(op.outputs)}
    best: RepeatedBlocks | None = None
    for period in range(1, (stop - start) // MIN_BLOCKS + 1):
        for first, length in _runs(kinds[start : stop - period] == kinds[start + period : stop]):
            if length < max((MIN_BLOCKS - 1) * period, 0 if best is None else best.stop - best.start):
                continue
            pairs = range(start + first, start + first + length)
            alike = np.array([_come_from_like_places(graph, place, number, number + period) for number in pairs])
            for inner, inner_length in _runs(alike):
                blocks = RepeatedBlocks(start + first + inner, period, inner_length // period + 1)
                covers = blocks.stop - blocks.start
                if blocks.count >= MIN_BLOCKS and (best is None or covers > best.stop - best.start + period):
                    best = blocks
    return best


def _runs(flags: np.ndarray[Any, np.dtype[np.bool_]]) -> Iterator[tuple[int, int]]:
    """The first index and the length of every run of true values."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], flags.astype(np.int8), [0]])))
    for first, last in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
        yield first, last - first


def _come_from_like_places(graph: Graph, place: Mapping[str, tuple[int, int]], number: int, later: int) -> bool:
    """Whether what two like operators read comes from the same tensor, from as far before, or is state of their own."""
    pairs: Sequence[tuple[str, str]] = list(zip(graph.ops[number].inputs, graph.ops[later].inputs, strict=True))
    for name, other in pairs:
        if name == other:
            continue
        if (name in place) != (other in place):
            return False
        if name in place:
            (maker, at), (other_maker, other_at) = place[name], place[other]
            if (number - maker, at) != (later - other_maker, other_at):
                return False
    return not graph.ops[number].writes
