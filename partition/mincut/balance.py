"""Balance of a partition with one or several constraints: how far from even it is, and moves that repair it.

A part may have its share of a constraint and a little more, or what whole vertices add up to: of six equal vertices,
two of four parts have two. What cannot be repaired by moving single vertices is left.
"""

import math
from collections.abc import Container, Sequence

import numpy as np

from ...errors import Infeasible
from ..ir.box import Ints
from .csr_graph import CsrGraph, Floats

TOLERANCE = 1.05
MAX_MOVES = 2000
MIN_FRACTION = 1e-4
MIN_GAIN = 1e-3  # of a part's capacity; smaller steps would take too long


def part_loads(loads: Floats, part_of: Ints, parts: int) -> Floats:
    """The weight of each part, [parts, constraints], from the weights of the vertices, [n, constraints]."""
    return np.stack([np.bincount(part_of, weights=column, minlength=parts) for column in loads.T], axis=1)


def part_capacity(loads: Floats, shares: Floats) -> Floats:
    """The capacity of each part in each constraint: [parts, constraints].

    That is TOLERANCE times its share, or more where whole vertices do not divide so evenly: as much as results from
    placing the heavy ones, heaviest first, on the part that is filled least by it (longest processing time first;
    Graham, "Bounds on multiprocessing timing anomalies", 1969).
    """
    target = shares[:, None] * loads.sum(axis=0)
    fill = np.full(loads.shape[1], TOLERANCE)
    for constraint, column in enumerate(loads.T):
        heavy = column[column > (TOLERANCE - 1) * target[:, constraint].min()]
        have = np.zeros(len(shares))
        for weight in -np.sort(-heavy):
            have[((have + weight) / shares).argmin()] += weight  # LPT
        fill[constraint] = max(TOLERANCE, (have / target[:, constraint]).max())
    return np.asarray(target * fill * (1 + 1e-9))


def excess(loads: Floats, part_of: Ints, room: Floats) -> float:
    """How far the fullest part is beyond its capacity: 0.1 is ten per cent too much. Rounded to whole per cents."""
    return round(max(0.0, float((part_loads(loads, part_of, len(room)) / room).max()) - 1.0), 2)


def part_fractions(parts: int, weights: Sequence[float] | None) -> Floats:
    """Each part's fraction of the whole, [parts], equal by default; a fraction of zero becomes MIN_FRACTION."""
    shares = np.ones(parts) if weights is None else np.asarray(weights, dtype=np.float64)
    shares = np.maximum(shares / shares.sum(), MIN_FRACTION)
    return np.asarray(shares / shares.sum())


def require_vertices(count: int, parts: int) -> None:
    """Raise Infeasible where there are fewer vertices than parts."""
    if count < parts:
        raise Infeasible(
            "E401", f"{parts} parts of a graph of {count} blocks", fix=f"--machines {max(1, count)} or fewer"
        )


def rebalance(graph: CsrGraph, loads: Floats, part_of: Ints, room: Floats, *, still: Container[int] = ()) -> Ints:
    """Move vertices out of parts that are too heavy, those whose move cuts least first.

    room: what each part may have (`allowed`). A vertex goes where there is room; if nowhere, where it makes the part
    less heavy than the one it comes from, which can then give others. No part is emptied. still: vertices that stay.
    """
    moves = _Moves(graph, loads, part_of.copy(), room)
    free = np.array([vertex not in still for vertex in range(len(part_of))], dtype=bool)
    stuck = np.zeros(room.shape, dtype=bool)
    for _ in range(MAX_MOVES):
        full = np.where(stuck | (moves.size < 2)[:, None], 0.0, moves.have / room)
        part, constraint = (int(at) for at in np.unravel_index(int(full.argmax()), full.shape))
        if full[part, constraint] <= 1:
            break
        members = np.flatnonzero((moves.part_of == part) & (loads[:, constraint] > 0) & free)
        chosen = moves.best(members, part, constraint)
        if chosen is None:
            stuck[part, constraint] = True
        else:
            moves.move(*chosen)
    return moves.part_of


class _Moves:
    """A partition that is being repaired. have: the weight of each part, [parts, constraints]."""

    def __init__(self, graph: CsrGraph, loads: Floats, part_of: Ints, room: Floats) -> None:
        self.graph, self.loads, self.part_of, self.room = graph, loads, part_of, room
        self.have = part_loads(loads, part_of, len(room))
        self.size = np.bincount(part_of, minlength=len(room))

    def best(self, members: Ints, part: int, constraint: int) -> tuple[int, int] | None:
        """The vertex of a part that should move, and the part to move it to; None where no move helps."""
        if not len(members):
            return None
        work = self.loads[members]
        after = np.where(work[:, None] > 0, (self.have[None] + work[:, None]) / self.room[None], 0.0).max(axis=2)
        after[:, part] = np.inf
        if (after <= 1).any():
            ties = self._ties(members)
            price = (ties[:, part][:, None] - ties) / work[:, constraint][:, None]
            at, to = np.unravel_index(int(np.where(after <= 1, price, np.inf).argmin()), after.shape)
        elif (after < self.have[part, constraint] / self.room[part, constraint] - MIN_GAIN).any():
            at, to = np.unravel_index(int(after.argmin()), after.shape)
        else:
            return None
        return int(members[at]), int(to)

    def _ties(self, members: Ints) -> Floats:
        """Bytes of the edges from vertices to each part: [members, parts]."""
        begin, count = self.graph.starts[members], np.diff(self.graph.starts)[members]
        row = np.repeat(np.arange(len(members)), count)
        entry = np.arange(len(row)) + np.repeat(begin - (np.cumsum(count) - count), count)
        parts = len(self.room)
        pair = row * parts + self.part_of[self.graph.ends[entry]]
        ties = np.bincount(pair, self.graph.bytes[entry], minlength=len(members) * parts)
        return ties.reshape(len(members), parts).astype(np.float64)

    def move(self, vertex: int, to: int) -> None:
        source = self.part_of[vertex]
        self.have[source] -= self.loads[vertex]
        self.have[to] += self.loads[vertex]
        self.size[source] -= 1
        self.size[to] += 1
        self.part_of[vertex] = to


def fill_parts(
    graph: CsrGraph, loads: Floats, part_of: Ints, minimum: Sequence[int], *, still: Container[int] = ()
) -> Ints:
    """Move vertices, one by one from the heaviest part, until every part has its minimum number of them.

    The vertex with the weakest ties to the heaviest part goes first. Work is compared by the sum of its fractions of
    all constraints. still: vertices that must not move; where only such are left, parts stay empty.
    """
    out, parts = part_of.copy(), len(minimum)
    total = loads.sum(axis=0)
    work = (loads / np.where(total > 0, total, 1.0)).sum(axis=1)
    needed = np.asarray(minimum)
    free = np.array([vertex not in still for vertex in range(len(out))], dtype=bool)
    while True:
        size = np.bincount(out, minlength=parts)
        poor = np.flatnonzero(size < needed)
        rich = np.flatnonzero((size > needed) & (np.bincount(out[free], minlength=parts) > 0))
        if not len(poor) or not len(rich):
            return out
        load = np.bincount(out, weights=work, minlength=parts)
        heaviest = max(rich.tolist(), key=lambda p: (load[p], size[p], -p))
        inside = (out[graph.rows] == heaviest) & (out[graph.ends] == heaviest)
        ties = np.bincount(graph.rows[inside], weights=graph.bytes[inside], minlength=len(graph))
        members = np.flatnonzero((out == heaviest) & free)
        order = np.lexsort((members, -work[members], ties[members]))
        out[members[order[0]]] = poor[0]


MAX_WEIGHT = 1_000_000  # with larger ratios of weights METIS finds bad partitions
MAX_TOTAL = 2**31 - 1


def scale_to_integers(values: Floats, *, of_zero: int = 1, total: int = MAX_TOTAL) -> Ints:
    """Integers in proportion to `values`, at least one, `of_zero` for values of zero; their sum is at most `total`."""
    if not len(values):
        return np.zeros(0, dtype=np.int64)
    part = values / (float(values.max()) or 1.0)
    scale = min(MAX_WEIGHT, (total - len(values)) / max(1.0, math.fsum(part)))
    return np.where(values > 0, np.maximum(1, np.floor(part * scale)), of_zero).astype(np.int64)
