"""The layers of a recurrent net on different machines, which compute different time steps at the same time.

A layer is all that lies between the first and the last reader of a weight that several operators read alike, as the
time steps of an unrolled net read W_hh. The layers go to contiguous groups of machines, every other operator to all.
"""

from collections import defaultdict
from collections.abc import Sequence

from ..dataflow.waves import find_depths
from ..ir.graph import Graph

WAVES = (8, 16)  # in how many waves a net is cut


def find_layers(graph: Graph) -> list[range]:
    """The layers of recurrent nets, as positions of operators, in order."""
    readers: dict[tuple[str, str, str], list[int]] = defaultdict(list)
    for position, op in enumerate(graph.ops):
        for operand in op.nest.operands:
            if graph.tensors[operand.tensor].kind == "parameter":
                readers[operand.tensor, op.target, operand.argument].append(position)
    spans = sorted((found[0], found[-1] + 1) for found in readers.values() if len(found) > 1)
    merged: list[tuple[int, int]] = []
    for start, stop in spans:  # a weight and its bias, or cells that take turns, are one layer
        if merged and start < merged[-1][1]:
            merged[-1] = merged[-1][0], max(stop, merged[-1][1])
        else:
            merged.append((start, stop))
    starts = [start for start, _ in merged[1:]]
    ends = [*starts, *(_end_of_module(graph, stop) for _, stop in merged[-1:])]
    return [
        range(start, end if graph.ops[end - 1].module == graph.ops[stop - 1].module else stop)
        for (start, stop), end in zip(merged, ends, strict=True)
    ]


def _end_of_module(graph: Graph, stop: int) -> int:
    """Where the operators of the module end that the operator before `stop` belongs to."""
    module = graph.ops[stop - 1].module
    return next((i for i in range(stop, len(graph.ops)) if graph.ops[i].module != module), len(graph.ops))


def assign_layers(graph: Graph, layers: Sequence[range], groups: int) -> dict[str, int]:
    """The group of machines of every operator in a layer, by its name: contiguous, the largest work smallest."""
    work = [sum(graph.ops[i].flops for i in layer) for layer in layers]
    best: list[tuple[float, list[int]]] = [(sum(work[: i + 1]), [0]) for i in range(len(work))]
    for _ in range(1, groups):
        best = [
            min(
                ((max(best[j - 1][0], sum(work[j : i + 1])), [*best[j - 1][1], j]) for j in range(1, i + 1)),
                default=(float("inf"), best[i][1]),
            )
            for i in range(len(work))
        ]
    begins = best[-1][1]
    return {
        graph.ops[position].name: sum(begin <= i for begin in begins) - 1
        for i, layer in enumerate(layers)
        for position in layer
    }


def wave_lengths(graph: Graph) -> list[int]:
    """How many products deep the waves may be."""
    deepest = max(find_depths(graph).values())
    return list(dict.fromkeys(max(1, round(deepest / waves)) for waves in WAVES))


def group_counts(layers: Sequence[range], machines: int) -> list[int]:
    """Into how many groups of equal size the machines can be divided, one or more layers for each."""
    return [count for count in range(2, min(len(layers), machines) + 1) if machines % count == 0]
