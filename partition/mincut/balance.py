"""Balance of a partition with one or several constraints: how far from even it is, and moves that mend it.

A part may have its share of a constraint and a little more, or what whole vertices come to: of six equal ones, two of
four parts have two. What cannot be mended so is left.
"""

from collections.abc import Container, Sequence

import numpy as np

from .csr_graph import Adjacency, Floats
from ..ir.box import Ints
from ...errors import Infeasible

TOLERANCE = 1.05
MOVES_MAX = 2000
LEAST_SHARE = 1e-4
LEAST_GAIN = 1e-3  # of a part's room; smaller steps would go on for long


def loads_of(loads: Floats, part_of: Ints, parts: int) -> Floats:
    """Weight of each part: [parts, constraints], of weights [n, constraints]."""
    return np.stack([np.bincount(part_of, weights=column, minlength=parts) for column in loads.T], axis=1)


def allowed(loads: Floats, shares: Floats) -> Floats:
    """What each part may have of each constraint: [parts, constraints].

    TOLERANCE times its share; more where whole vertices do not divide so: what placing the heavy ones, heaviest first,
    each where it makes the least of the share, comes to (longest processing time first; Graham, 1969).
    """
    target = shares[:, None] * loads.sum(axis=0)
    fill = np.full(loads.shape[1], TOLERANCE)
    for constraint, column in enumerate(loads.T):
        heavy = column[column > (TOLERANCE - 1) * target[:, constraint].min()]
        have = np.zeros(len(shares))
        for weight in -np.sort(-heavy):
            have[((have + weight) / shares).argmin()] += weight
        fill[constraint] = max(TOLERANCE, (have / target[:, constraint]).max())
    return np.asarray(target * fill * (1 + 1e-9))


def excess(loads: Floats, part_of: Ints, room: Floats) -> float:
    """The largest part of any constraint beyond what is allowed: 0.1 is ten per cent too much. In whole per cents."""
    return round(max(0.0, float((loads_of(loads, part_of, len(room)) / room).max()) - 1.0), 2)


def shares_of(parts: int, given: Sequence[float] | None) -> Floats:
    """Each part's share of the whole, [parts], equal by default; a share of nothing becomes a very small one."""
    shares = np.ones(parts) if given is None else np.asarray(given, dtype=np.float64)
    shares = np.maximum(shares / shares.sum(), LEAST_SHARE)
    return np.asarray(shares / shares.sum())


def require_vertices(count: int, parts: int) -> None:
    """Raise Infeasible where there are fewer vertices than parts."""
    if count < parts:
        raise Infeasible(
            "E401", f"{parts} parts of a graph of {count} blocks", fix=f"--machines {max(1, count)} or fewer"
        )


def evened(graph: Adjacency, loads: Floats, part_of: Ints, room: Floats, *, still: Container[int] = ()) -> Ints:
    """The partition with vertices moved out of parts that have too much, where they cut least.

    room: what each part may have (`allowed`). A vertex goes where there is room; if nowhere, where it makes the part
    less heavy than the one it comes from, which can then give others. No part is emptied. still: vertices that stay.
    """
    moves = _Moves(graph, loads, part_of.copy(), room)
    free = np.array([vertex not in still for vertex in range(len(part_of))], dtype=bool)
    stuck = np.zeros(room.shape, dtype=bool)
    for _ in range(MOVES_MAX):
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
    """A partition in the making, and what each part has: [parts, constraints]."""

    def __init__(self, graph: Adjacency, loads: Floats, part_of: Ints, room: Floats) -> None:
        self.graph, self.loads, self.part_of, self.room = graph, loads, part_of, room
        self.have = loads_of(loads, part_of, len(room))
        self.size = np.bincount(part_of, minlength=len(room))

    def best(self, members: Ints, part: int, constraint: int) -> tuple[int, int] | None:
        """Of these vertices of a part, the one that is to go, and where to; None where that would not help."""
        if not len(members):
            return None
        work = self.loads[members]
        after = np.where(work[:, None] > 0, (self.have[None] + work[:, None]) / self.room[None], 0.0).max(axis=2)
        after[:, part] = np.inf
        if (after <= 1).any():
            ties = self._ties(members)
            price = (ties[:, part][:, None] - ties) / work[:, constraint][:, None]
            at, to = np.unravel_index(int(np.where(after <= 1, price, np.inf).argmin()), after.shape)
        elif (after < self.have[part, constraint] / self.room[part, constraint] - LEAST_GAIN).any():
            at, to = np.unravel_index(int(after.argmin()), after.shape)
        else:
            return None
        return int(members[at]), int(to)

    def _ties(self, members: Ints) -> Floats:
        """Bytes that join vertices to each part: [members, parts]."""
        begin, count = self.graph.starts[members], np.diff(self.graph.starts)[members]
        row = np.repeat(np.arange(len(members)), count)
        entry = np.arange(len(row)) + np.repeat(begin - (np.cumsum(count) - count), count)
        parts = len(self.room)
        joined = row * parts + self.part_of[self.graph.ends[entry]]
        ties = np.bincount(joined, self.graph.bytes[entry], minlength=len(members) * parts)
        return ties.reshape(len(members), parts).astype(np.float64)

    def move(self, vertex: int, to: int) -> None:
        source = self.part_of[vertex]
        self.have[source] -= self.loads[vertex]
        self.have[to] += self.loads[vertex]
        self.size[source] -= 1
        self.size[to] += 1
        self.part_of[vertex] = to


def filled(graph: Adjacency, loads: Floats, part_of: Ints, least: Sequence[int], *, still: Container[int] = ()) -> Ints:
    """The partition with so many vertices at least in each part: one by one, those that the heaviest part misses least.

    Work is compared by its share of each constraint, added up. still: vertices that stay; where nothing else is left,
    parts stay empty.
    """
    out, parts = part_of.copy(), len(least)
    total = loads.sum(axis=0)
    work = (loads / np.where(total > 0, total, 1.0)).sum(axis=1)
    needed = np.asarray(least)
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
