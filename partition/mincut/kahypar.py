"""Mt-KaHyPar: hypergraph partitioning, whose objective is the traffic itself (see block_hypergraph.py).

(Gottesburen, Heuer, Maas, Sanders and
Schlag, "Scalable high-quality hypergraph partitioning", ACM TALG 2024; deterministic: Gottesburen and Hamann, 2022.)
It runs in the calling thread, so that the partition depends on nothing but the arguments.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from ..ir.box import Ints
from .balance import (
    MAX_TOTAL,
    TOLERANCE,
    excess,
    fill_parts,
    part_capacity,
    part_fractions,
    rebalance,
    require_vertices,
    scale_to_integers,
)
from .block_hypergraph import BlockHypergraph
from .csr_graph import Floats

CYCLES = 3  # V-cycles that improve a given start


def partition_kahypar(
    graph: BlockHypergraph,
    parts: int,
    *,
    seed: int,
    shares: Sequence[float] | None = None,
    fixed: Mapping[int, int] | None = None,
    start: Sequence[int] | None = None,
) -> list[int]:
    """Partition a hypergraph so that FLOPs are balanced, few bytes are sent and no part is empty: a part for each
    vertex.

    Vertices with one anchor (see BlockHypergraph) get one part. shares: each part's fraction of the FLOPs, equal by
    default. fixed: vertices whose part is given. start: a partition to improve. Raises Infeasible with
    fewer vertices than parts.
    """
    require_vertices(len(graph), parts)
    if parts == 1:
        return [0] * len(graph)
    fixed = fixed or {}
    anchor = graph.anchor.copy()
    anchor[list(fixed)] = list(fixed)
    merged, number = replace(graph, anchor=anchor).contract()
    if len(merged) < parts:
        merged, number = graph, np.arange(len(graph), dtype=np.int64)
    pins = {int(number[vertex]): part for vertex, part in fixed.items()}
    begin = None if start is None else _contract_start(start, number, pins)
    best = _best_partition(merged, part_fractions(parts, shares), seed, pins, begin)
    return [int(part) for part in best[number]]


def _contract_start(start: Sequence[int], number: Ints, pins: Mapping[int, int]) -> Ints:
    """The start of the contracted vertices: that of the last vertex of each."""
    out = np.zeros(int(number.max()) + 1, dtype=np.int64)
    out[number] = np.asarray(start)
    out[list(pins)] = list(pins.values())
    return out


def _best_partition(
    graph: BlockHypergraph, shares: Floats, seed: int, pins: Mapping[int, int], start: Ints | None
) -> Ints:
    parts = len(shares)
    loads = graph.flops[:, None] if graph.flops.any() else np.ones((len(graph), 1))
    room = part_capacity(loads, shares)
    found = cut_hypergraph(graph, lambda loads: part_capacity(loads, shares)[:, 0], seed=seed, pins=pins, start=start)
    partitions = [found, *([] if start is None else [start])]
    repaired = []
    for partition in partitions:
        full = fill_parts(graph.stars, loads, partition, [1] * parts, still=pins)
        repaired.append(rebalance(graph.stars, loads, full, room, still=pins))
    return min(repaired, key=lambda part_of: (excess(loads, part_of, room), graph.sent_bytes(part_of)))


def cut_hypergraph(
    graph: BlockHypergraph,
    capacity: Callable[[Floats], Floats],
    *,
    seed: int = 0,
    pins: Mapping[int, int] | None = None,
    start: Ints | None = None,
) -> Ints:
    """Return the part of each vertex, as Mt-KaHyPar has them, by the least km1; one may be empty.

    capacity: returns what each part may hold, [parts], of such loads [n, 1], which are the FLOPs as 32 bits hold them.
    pins: vertices whose part is given. start: parts [n] to improve by V-cycles; without it they are found anew.
    """
    module, library = load_kahypar()
    count, pins = len(graph), pins or {}
    weights = scale_to_integers(graph.flops, total=MAX_TOTAL // 2)  # what all parts may hold has to be less, too
    limits = np.ceil(capacity(weights[:, None].astype(np.float64)))
    parts = len(limits)
    context = library.context_from_preset(module.PresetType.DETERMINISTIC_QUALITY)
    context.set_partitioning_parameters(parts, TOLERANCE - 1, module.Objective.KM1)
    context.set_individual_target_block_weights([int(limit) for limit in limits])
    context.logging = False
    module.set_seed(seed % 2**31)
    bounds = graph.starts.tolist()
    pins_of_nets = [graph.pins[a:b].tolist() for a, b in itertools.pairwise(bounds)]
    bytes = scale_to_integers(graph.bytes, total=MAX_TOTAL // parts).tolist()
    hypergraph = library.create_hypergraph(context, count, len(pins_of_nets), pins_of_nets, weights.tolist(), bytes)
    if pins:
        hypergraph.add_fixed_vertices([pins.get(vertex, -1) for vertex in range(count)], parts)
    if start is None:
        return np.array(hypergraph.partition(context).get_partition(), dtype=np.int64)
    partition = hypergraph.create_partitioned_hypergraph(context, parts, start.tolist())
    partition.improve_partition(context, CYCLES)
    return np.array(partition.get_partition(), dtype=np.int64)


@cache
def load_kahypar() -> tuple[Any, Any]:
    """The module and the library object, which can be initialised once in a process.

    That binds the process to its memory, for which the kernel looks at every page that it has: with torch in it, a
    third of a second. A program that will plan calls this before it imports torch.
    """
    import mtkahypar  # here, as most commands do not need it

    return mtkahypar, mtkahypar.initialize(1, print_warnings=False)
