"""Balance of a partition with one or several constraints: how far from even it is, and moves that mend it.

A part may have its share of a constraint and a little more, and whole vertices: of six equal ones, two of four parts
have two. What cannot be mended so is left.
"""

from collections.abc import Sequence

import numpy as np

from .adjacency import Adjacency, Floats
from .box import Ints

TOLERANCE = 1.05


def loads_of(loads: Floats, part_of: Ints, parts: int) -> Floats:
    """Weight of each part: [parts, constraints], of weights [n, constraints]."""
    return np.stack([np.bincount(part_of, weights=column, minlength=parts) for column in loads.T], axis=1)


def allowed(loads: Floats, shares: Floats) -> Floats:
    """What each part may have of each constraint: [parts, constraints]."""
    target = shares[:, None] * loads.sum(axis=0)
    most = loads.max(axis=0)
    whole = np.ceil(target / np.where(most > 0, most, 1.0) - 1e-6) * most
    return np.asarray(np.maximum(target * TOLERANCE, whole))


def excess(loads: Floats, part_of: Ints, shares: Floats) -> float:
    """The largest part of any constraint beyond what is allowed: 0.1 is ten per cent too much. In whole per cents."""
    room = allowed(loads, shares)
    return round(max(0.0, float((loads_of(loads, part_of, len(shares)) / room).max()) - 1.0), 2)


def evened(graph: Adjacency, loads: Floats, part_of: Ints, shares: Floats) -> Ints:
    """The partition with vertices moved out of parts that have too much, where they cut least and where there is room.

    No move makes another part too heavy, or empties one.
    """
    out, parts = part_of.copy(), len(shares)
    room = allowed(loads, shares) * (1 + 1e-9)
    have = loads_of(loads, out, parts)
    if not (have > room).any():
        return out
    size = np.bincount(out, minlength=parts)
    ties = np.bincount(graph.rows * parts + out[graph.ends], weights=graph.bytes, minlength=len(graph) * parts)
    ties = ties.reshape(len(graph), parts)
    stuck = np.zeros_like(have, dtype=bool)
    while True:
        over = np.where(stuck | (size < 2)[:, None], 0.0, have / room)
        part, constraint = np.unravel_index(int(over.argmax()), over.shape)
        if over[part, constraint] <= 1:
            return out
        members = np.flatnonzero((out == part) & (loads[:, constraint] > 0))
        fits = ((have[None] + loads[members][:, None] <= room) | (loads[members][:, None] == 0)).all(axis=2)
        fits[:, part] = False
        if not fits.any():
            stuck[part, constraint] = True
            continue
        price = (ties[members, part][:, None] - ties[members]) / loads[members, constraint][:, None]
        at, to = np.unravel_index(int(np.where(fits, price, np.inf).argmin()), fits.shape)
        vertex = members[at]
        have[part] -= loads[vertex]
        have[to] += loads[vertex]
        size[part], size[to] = size[part] - 1, size[to] + 1
        row = slice(graph.starts[vertex], graph.starts[vertex + 1])
        ties[graph.ends[row], part] -= graph.bytes[row]
        ties[graph.ends[row], to] += graph.bytes[row]
        out[vertex] = to


def filled(graph: Adjacency, loads: Floats, part_of: Ints, least: Sequence[int]) -> Ints:
    """The partition with so many vertices at least in each part: one by one, those that the heaviest part misses least.

    Work is compared by its share of each constraint, added up.
    """
    out, parts = part_of.copy(), len(least)
    total = loads.sum(axis=0)
    work = (loads / np.where(total > 0, total, 1.0)).sum(axis=1)
    needed = np.asarray(least)
    while True:
        size = np.bincount(out, minlength=parts)
        poor = np.flatnonzero(size < needed)
        if not len(poor):
            return out
        load = np.bincount(out, weights=work, minlength=parts)
        heaviest = max(np.flatnonzero(size > needed).tolist(), key=lambda p: (load[p], size[p], -p))
        inside = (out[graph.rows] == heaviest) & (out[graph.ends] == heaviest)
        ties = np.bincount(graph.rows[inside], weights=graph.bytes[inside], minlength=len(graph))
        members = np.flatnonzero(out == heaviest)
        order = np.lexsort((members, -work[members], ties[members]))
        out[members[order[0]]] = poor[0]
