"""Min-cut by METIS, its input sanitised and its output checked and repaired, balancing the total work or every level.

METIS fails silently in known ways: empty parts on small dense graphs, one part for all with a dominant vertex, overflow
of large weights; and it prints complaints about sides without vertices. (Karypis and Kumar, "Multilevel k-way
partitioning", 1998; "Multilevel algorithms for multi-constraint graph partitioning", SC 1998.)

Steps of both entry points:

1. Contract every block with its anchor, so that views stay with their data.
2. Ask METIS by recursive bisection (one bisection a call) from several seeds, and k-way where it can be trusted.
3. Move vertices out of parts that are too heavy (balance.py).
4. Take the partition that cuts least among the most even ones.

The result is one candidate, to be scored by the simulator.
"""

from collections.abc import Sequence

import numpy as np
import pymetis

from ..ir.box import Ints
from .balance import (
    excess,
    fill_parts,
    part_capacity,
    part_fractions,
    part_loads,
    rebalance,
    require_vertices,
    scale_to_integers,
)
from .csr_graph import CsrGraph, Floats
from .metis_ctypes import MetisUnavailable, load_metis

SEEDS = 3
MAX_LEVELS = 128  # recursive bisection keeps so many constraints even; it takes a second for three thousand vertices
MAX_KWAY_WEIGHTS = 50_000  # weights of several constraints beyond which k-way takes many times as long
MAX_ENTRIES = 400_000  # weights and neighbours beyond which one seed has to do
SMALL = 50  # vertices a part below which k-way leaves parts empty
ONE_BISECTION, SEVERAL_BISECTION, KWAY = 1.001, 1.01, 1.03  # tolerances of balance that METIS itself would take


def partition_metis(graph: CsrGraph, parts: int, *, seed: int, shares: Sequence[float] | None = None) -> list[int]:
    """Partition a graph so that FLOPs are balanced, few bytes are cut and no part is empty: a part for each vertex.

    Vertices with one anchor (see CsrGraph) get one part. shares: each part's fraction of the FLOPs, equal by default.
    Raises Infeasible with fewer vertices than parts.
    """
    return _best_partition(graph, graph.flops[:, None], part_fractions(parts, shares), seed)


def partition_metis_levels(
    graph: CsrGraph, parts: int, *, level_of: Sequence[int], seed: int, shares: Sequence[float] | None = None
) -> list[int]:
    """Partition a graph so that the FLOPs of every level are balanced: a part for each vertex, none empty.

    This is METIS' multi-constraint partitioning (Karypis and Kumar, SC 1998): a vertex has a vector of weights, one for
    each level, which is its FLOPs at its own level and zero at the others, and each component is balanced over parts.
    Machines then work at the same time at every depth of the model.

    level_of: per vertex the number of its level, below zero for none; more than MAX_LEVELS are merged with their
    neighbours. Raises Infeasible as `partition_metis`, and MetisUnavailable where pymetis hides what this takes.
    """
    load_metis()
    numbers, level = np.unique(np.asarray(level_of, dtype=np.int64), return_inverse=True)
    valid = numbers >= 0
    group = np.where(valid, np.cumsum(valid) - 1, -1)
    count = int(valid.sum())
    if count > MAX_LEVELS:
        group = np.where(valid, group * MAX_LEVELS // count, -1)
    member = group[level.reshape(-1)][:, None] == np.arange(max(1, int(group.max(initial=0)) + 1))
    weights = np.where(member, graph.flops[:, None], 0.0)
    if member.shape[1] > 1:  # balance the total too: one part must not get the odd block of every level
        weights = np.append(weights, weights.sum(axis=1)[:, None], axis=1)
    return _best_partition(graph, weights, part_fractions(parts, shares), seed)


def _best_partition(graph: CsrGraph, weights: Floats, shares: Floats, seed: int) -> list[int]:
    """The attempt that cuts least among the most even ones."""
    count, parts = len(graph), len(shares)
    require_vertices(count, parts)
    if parts == 1:
        return [0] * count
    merged, number = graph.contract()
    if len(merged) < parts:
        merged, number = graph, np.arange(count, dtype=np.int64)
    summed = part_loads(weights, number, len(merged))
    loads: Floats = summed[:, summed.any(axis=0)] if summed.any() else np.ones((len(merged), 1))
    room = part_capacity(loads, shares)
    attempts = [rebalance(merged, loads, part_of, room) for part_of in _partition_attempts(merged, loads, shares, seed)]
    best = min(attempts, key=lambda part_of: (excess(loads, part_of, room), merged.cut_bytes(part_of)))
    return [int(part) for part in best[number]]


def _partition_attempts(graph: CsrGraph, loads: Floats, shares: Floats, seed: int) -> list[Ints]:
    """Partitions by recursive bisection from several seeds, and k-way where that can be trusted."""
    parts, constraints = len(shares), loads.shape[1]
    seeds = range(seed, seed + (SEEDS if loads.size + len(graph.ends) <= MAX_ENTRIES else 1))
    out = [_bisect_recursively(graph, loads, shares, attempt) for attempt in seeds]
    large = len(graph) >= SMALL * parts and (constraints == 1 or loads.size <= MAX_KWAY_WEIGHTS)
    dominated = bool((loads.max(axis=0) > loads.sum(axis=0) * shares.min()).any())
    if parts > 2 and large and not dominated:
        partitions = [_call_metis(graph, loads, shares, attempt, kway=True) for attempt in seeds]
        out += [fill_parts(graph, loads, part_of, [1] * parts) for part_of in partitions]
    return out


def _bisect_recursively(graph: CsrGraph, loads: Floats, shares: Floats, seed: int) -> Ints:
    """Bisect recursively, with one call of METIS a bisection, so that no side has fewer vertices than parts.

    METIS' own recursion goes on with sides of no vertices, and prints complaints to standard output.
    """
    part_of = np.zeros(len(graph), dtype=np.int64)
    pending = [(graph, np.arange(len(graph), dtype=np.int64), np.arange(len(shares)))]
    while pending:
        inside, vertices, parts = pending.pop()
        if len(parts) == 1:
            part_of[vertices] = parts[0]
            continue
        halves = np.split(parts, [len(parts) // 2])
        work = loads[vertices]
        side_of = _call_metis(inside, work, np.array([shares[half].sum() for half in halves]), seed, kway=False)
        side_of = fill_parts(inside, work, side_of, [len(half) for half in halves])
        for side, half in enumerate(halves):
            chosen = np.flatnonzero(side_of == side)
            pending.append((inside.subgraph(chosen) if len(half) > 1 else inside, vertices[chosen], half))
    return part_of


def _call_metis(graph: CsrGraph, loads: Floats, shares: Floats, seed: int, *, kway: bool) -> Ints:
    """Call METIS with sane numbers; constraints without any weight are left out."""
    weighted = loads[:, loads.any(axis=0)]
    columns = weighted.T if weighted.shape[1] else np.ones((1, len(graph)))
    weights = np.stack([scale_to_integers(column, of_zero=int(len(columns) == 1)) for column in columns], axis=1)
    targets = np.repeat((shares / shares.sum())[:, None], len(columns), axis=1)
    bisection = ONE_BISECTION if len(columns) == 1 else SEVERAL_BISECTION
    bytes = scale_to_integers(graph.bytes)
    try:
        library = load_metis()
    except MetisUnavailable:
        return _through_pymetis(graph, weights, bytes, targets, seed=seed, kway=kway)
    tolerances = np.full(len(columns), KWAY if kway else bisection)
    return library.partition(graph, weights, bytes, targets, tolerances=tolerances, seed=seed, kway=kway)


def _through_pymetis(graph: CsrGraph, weights: Ints, bytes: Ints, targets: Floats, *, seed: int, kway: bool) -> Ints:
    """Partition with one constraint through pymetis, where METIS' own functions are hidden."""
    result = pymetis.part_graph(
        len(targets),
        adjacency=pymetis.CSRAdjacency(graph.starts.tolist(), graph.ends.tolist()),
        vweights=weights[:, 0].tolist(),
        eweights=bytes.tolist(),
        tpwgts=targets[:, 0].tolist(),
        recursive=not kway,
        options=pymetis.Options(seed=seed % 2**31),
    )
    return np.array(result.vertex_part, dtype=np.int64)
