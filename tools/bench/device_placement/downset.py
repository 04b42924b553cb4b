"""Downsets of an order: sets of groups that hold all that comes before them. Pipelines are chains of downsets.

("Ideals" in Tarnawski et al., NeurIPS 2020, section 4.1.) A row of a matrix is a downset: true where a group is inside.
"""

import heapq
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from .layer_groups import LayerGroups

Rank = Callable[[int, int], tuple[float, float]]  # group, step in which it became ready -> the least comes first
Rows = npt.NDArray[np.bool_]  # downsets x groups


def all_downsets(groups: LayerGroups, *, at_most: int) -> Rows | None:
    """Every downset, by size; None where there are more than `at_most`."""
    follows = np.zeros((groups.count, groups.count), dtype=np.int16)
    for before, after in groups.order:
        follows[before, after] = 1
    inside = np.zeros((1, groups.count), dtype=np.bool_)
    missing = follows.sum(axis=0, dtype=np.int16)[None, :]
    levels, found = [inside], 1
    for _ in range(groups.count):
        row, group = np.nonzero((missing == 0) & ~inside)
        grown = inside[row]
        grown[np.arange(len(row)), group] = True
        first = _first_of_each(grown)
        found += len(first)
        if found > at_most:
            return None
        inside, missing = grown[first], missing[row[first]] - follows[group[first]]
        levels.append(inside)
    return np.concatenate(levels)


def prefixes(order: Sequence[int], count: int) -> Rows:
    """The downsets that a linear order passes through, the empty one first. count: groups in all."""
    place = np.empty(count, dtype=np.int64)
    place[np.asarray(order, dtype=np.int64)] = np.arange(count)
    rows: Rows = np.arange(count + 1)[:, None] > place[None, :]
    return rows


def united(families: Sequence[Rows]) -> Rows:
    """Every downset of the families once."""
    rows = np.concatenate(families)
    return rows[_first_of_each(rows)]


def linear_orders(groups: LayerGroups, *, seed: int, count: int) -> list[list[int]]:
    """Different orders in which the groups can stand: by depth, by breadth, by few open nets, and `count` mixed."""
    rng = np.random.default_rng(seed)
    after: list[list[int]] = [[] for _ in range(groups.count)]
    waits = [0] * groups.count
    for a, b in sorted(groups.order):
        after[a].append(b)
        waits[b] += 1
    orders = [
        _ordered(after, waits, lambda group, step: (-step, group)),
        _ordered(after, waits, lambda group, step: (-step, -group)),
        _ordered(after, waits, lambda group, step: (step, group)),
        _ordered(after, waits, lambda group, step: (group, step)),
        _few_open(groups, after, waits),
    ]
    for chance in rng.random((count, groups.count)).tolist():
        orders.append(_ordered(after, waits, _by_depth(chance)))
    return orders


def _by_depth(chance: Sequence[float]) -> Rank:
    """What became ready last comes first; of several, the one of the least chance."""
    return lambda group, step: (-step, chance[group])


def _ordered(after: Sequence[Sequence[int]], waits: Sequence[int], rank: Rank) -> list[int]:
    """Always the ready group of the least rank."""
    left = list(waits)
    heap = [(rank(group, 0), group) for group, count in enumerate(left) if not count]
    heapq.heapify(heap)
    order = []
    while heap:
        _, group = heapq.heappop(heap)
        order.append(group)
        for other in after[group]:
            left[other] -= 1
            if not left[other]:
                heapq.heappush(heap, (rank(other, len(order)), other))
    return order


def _few_open(groups: LayerGroups, after: Sequence[Sequence[int]], waits: Sequence[int]) -> list[int]:
    """Always the ready group that leaves the least cost of nets open, that is with pins before and behind."""
    nets_of: list[list[int]] = [[] for _ in range(groups.count)]
    for net, (pins, _) in enumerate(groups.nets):
        for pin in pins:
            nets_of[pin].append(net)
    seen = [0] * len(groups.nets)
    left, order = list(waits), []
    ready = {group: step for step, group in enumerate(g for g, count in enumerate(left) if not count)}

    def opened(group: int) -> float:
        change = 0.0
        for net in nets_of[group]:
            pins, cost = groups.nets[net]
            change += cost * ((seen[net] == 0) - (seen[net] + 1 == len(pins)))
        return change

    while ready:
        group = min(ready, key=lambda g: (opened(g), -ready[g], g))
        del ready[group]
        order.append(group)
        for net in nets_of[group]:
            seen[net] += 1
        for other in after[group]:
            left[other] -= 1
            if not left[other]:
                ready[other] = groups.count + len(order)
    return order


def _first_of_each(rows: Rows) -> npt.NDArray[np.intp]:
    """The number of the first of each set of equal rows, in rising order."""
    packed = np.ascontiguousarray(np.packbits(rows, axis=1))
    keys = packed.view(np.dtype((np.void, packed.shape[1]))).ravel()
    return np.sort(np.unique(keys, return_index=True)[1])
