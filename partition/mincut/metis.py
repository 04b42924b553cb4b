"""METIS with what goes in sanitised and what comes out checked and repaired, by total work or by level.

METIS fails silently in known ways: empty parts on small dense graphs, one part for all with a dominant vertex, overflow
of large weights; and it prints what it thinks of sides without vertices. (Karypis and Kumar, "Multilevel k-way
partitioning", 1998; "Multilevel algorithms for multi-constraint graph partitioning", SC 1998.) Its answer is a start,
judged by the simulator; here it only has to be a partition without empty parts, as even as one can be.
"""

from collections.abc import Sequence

import numpy as np
import pymetis

from .csr_graph import Adjacency, Floats
from .balance import allowed, evened, excess, filled, loads_of, require_vertices, shares_of
from ..ir.box import Ints
from .integers import integers
from .metis_ctypes import MetisMissing, metis_library

SEEDS = 3
LEVELS_MAX = 128  # recursive bisection keeps so many constraints even; it takes a second for three thousand vertices
KWAY_MAX = 50_000  # weights of several constraints beyond which k-way takes many times as long
ENTRIES_MAX = 400_000  # weights and neighbours beyond which one seed has to do
SMALL = 50  # vertices a part below which k-way leaves parts empty
ONE_BISECTION, SEVERAL_BISECTION, KWAY = 1.001, 1.01, 1.03  # tolerances of balance that METIS itself would take


def metis(graph: Adjacency, parts: int, *, seed: int, shares: Sequence[float] | None = None) -> list[int]:
    """A part for each vertex, none empty, that shares the FLOPs and cuts few bytes.

    Vertices of one home (see Adjacency) get one part. shares: each part's share of the FLOPs, equal by default. Raises
    Infeasible with fewer vertices than parts.
    """
    return _best(graph, graph.flops[:, None], shares_of(parts, shares), seed)


def metis_levels(
    graph: Adjacency, parts: int, *, level_of: Sequence[int], seed: int, shares: Sequence[float] | None = None
) -> list[int]:
    """A part for each vertex, none empty, that shares the FLOPs of every level and of all levels, and cuts few bytes.

    level_of: per vertex the number of its level, below zero for none; more than LEVELS_MAX are merged with their
    neighbours. Raises Infeasible as `metis`, and MetisMissing where pymetis hides what this takes.
    """
    metis_library()
    numbers, level = np.unique(np.asarray(level_of, dtype=np.int64), return_inverse=True)
    there = numbers >= 0
    group = np.where(there, np.cumsum(there) - 1, -1)
    count = int(there.sum())
    if count > LEVELS_MAX:
        group = np.where(there, group * LEVELS_MAX // count, -1)
    member = group[level.reshape(-1)][:, None] == np.arange(max(1, int(group.max(initial=0)) + 1))
    weights = np.where(member, graph.flops[:, None], 0.0)
    if member.shape[1] > 1:  # the total too: of many levels with an odd block each, one part must not get all of these
        weights = np.append(weights, weights.sum(axis=1)[:, None], axis=1)
    return _best(graph, weights, shares_of(parts, shares), seed)


def _best(graph: Adjacency, weights: Floats, shares: Floats, seed: int) -> list[int]:
    """Of several attempts, the one that cuts least among the most even."""
    count, parts = len(graph), len(shares)
    require_vertices(count, parts)
    if parts == 1:
        return [0] * count
    merged, number = graph.contracted()
    if len(merged) < parts:
        merged, number = graph, np.arange(count, dtype=np.int64)
    summed = loads_of(weights, number, len(merged))
    loads: Floats = summed[:, summed.any(axis=0)] if summed.any() else np.ones((len(merged), 1))
    room = allowed(loads, shares)
    answers = [evened(merged, loads, answer, room) for answer in _attempts(merged, loads, shares, seed)]
    best = min(answers, key=lambda part_of: (excess(loads, part_of, room), merged.cut_bytes(part_of)))
    return [int(part) for part in best[number]]


def _attempts(graph: Adjacency, loads: Floats, shares: Floats, seed: int) -> list[Ints]:
    """Recursive bisection from several seeds, and k-way where it can be trusted."""
    parts, constraints = len(shares), loads.shape[1]
    seeds = range(seed, seed + (SEEDS if loads.size + len(graph.ends) <= ENTRIES_MAX else 1))
    out = [_divided(graph, loads, shares, attempt) for attempt in seeds]
    large = len(graph) >= SMALL * parts and (constraints == 1 or loads.size <= KWAY_MAX)
    dominated = bool((loads.max(axis=0) > loads.sum(axis=0) * shares.min()).any())
    if parts > 2 and large and not dominated:
        answers = [_asked(graph, loads, shares, attempt, kway=True) for attempt in seeds]
        out += [filled(graph, loads, answer, [1] * parts) for answer in answers]
    return out


def _divided(graph: Adjacency, loads: Floats, shares: Floats, seed: int) -> Ints:
    """Recursive bisection, one call of METIS a bisection, so that no side has fewer vertices than parts.

    METIS' own recursion goes on with sides of no vertices, and prints what it thinks of that to standard output.
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
        side_of = _asked(inside, work, np.array([shares[half].sum() for half in halves]), seed, kway=False)
        side_of = filled(inside, work, side_of, [len(half) for half in halves])
        for side, half in enumerate(halves):
            mine = np.flatnonzero(side_of == side)
            pending.append((inside.within(mine) if len(half) > 1 else inside, vertices[mine], half))
    return part_of


def _asked(graph: Adjacency, loads: Floats, shares: Floats, seed: int, *, kway: bool) -> Ints:
    """METIS' answer to sane numbers; constraints without any weight left are left out."""
    some = loads[:, loads.any(axis=0)]
    columns = some.T if some.shape[1] else np.ones((1, len(graph)))
    weights = np.stack([integers(column, least=int(len(columns) == 1)) for column in columns], axis=1)
    targets = np.repeat((shares / shares.sum())[:, None], len(columns), axis=1)
    bisection = ONE_BISECTION if len(columns) == 1 else SEVERAL_BISECTION
    bytes = integers(graph.bytes)
    try:
        library = metis_library()
    except MetisMissing:
        return _through_pymetis(graph, weights, bytes, targets, seed=seed, kway=kway)
    allowed = np.full(len(columns), KWAY if kway else bisection)
    return library.partition(graph, weights, bytes, targets, tolerances=allowed, seed=seed, kway=kway)


def _through_pymetis(graph: Adjacency, weights: Ints, bytes: Ints, targets: Floats, *, seed: int, kway: bool) -> Ints:
    """The same with one constraint, where METIS' own functions are out of sight."""
    answer = pymetis.part_graph(
        len(targets),
        adjacency=pymetis.CSRAdjacency(graph.starts.tolist(), graph.ends.tolist()),
        vweights=weights[:, 0].tolist(),
        eweights=bytes.tolist(),
        tpwgts=targets[:, 0].tolist(),
        recursive=not kway,
        options=pymetis.Options(seed=seed % 2**31),
    )
    return np.array(answer.vertex_part, dtype=np.int64)
