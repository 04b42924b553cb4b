"""Downsets of an order: sets of groups that hold all that comes before them. Pipelines are chains of downsets.

("Ideals" in Tarnawski et al., NeurIPS 2020, section 4.1.) A row of a matrix is a downset: true where a group is inside.
"""

import heapq
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from .layer_groups import LayerGroups

Rank = Callable[[int, int], tuple[float, float]]  # group, step in which it became ready -> the least comes first
Downsets = npt.NDArray[np.bool_]  # downsets x groups


def list_downsets(groups: LayerGroups, *, limit: int) -> Downsets | None:
    """Return every downset, by size; None if there are more than `limit`."""
    follows = np.zeros((groups.count, groups.count), dtype=np.int16)
    for before, after in groups.order:
        follows[before, after] = 1
    inside = np.zeros((1, groups.count), dtype=np.bool_)
    missing = follows.sum(axis=0, dtype=np.int16)[None, :]
    levels, count = [inside], 1
    for _ in range(groups.count):
        row, group = np.nonzero((missing == 0) & ~inside)
        grown = inside[row]
        grown[np.arange(len(row)), group] = True
        first = _find_first_of_each(grown)
        count += len(first)
        if count > limit:
            return None
        inside, missing = grown[first], missing[row[first]] - follows[group[first]]
        levels.append(inside)
    return np.concatenate(levels)


def list_prefixes(order: Sequence[int], count: int) -> Downsets:
    """Return the downsets that a linear order passes through, the empty one first. count: groups in all."""
    place = np.empty(count, dtype=np.int64)
    place[np.asarray(order, dtype=np.int64)] = np.arange(count)
    rows: Downsets = np.arange(count + 1)[:, None] > place[None, :]
    return rows


def unite_downsets(families: Sequence[Downsets]) -> Downsets:
    """Return every downset of the families once."""
    rows = np.concatenate(families)
    return rows[_find_first_of_each(rows)]


def generate_orders(groups: LayerGroups, *, seed: int, count: int) -> list[list[int]]:
    """Return different linear orders of the groups: by depth, by breadth, by few open nets, and `count` random ones."""
    rng = np.random.default_rng(seed)
    after: list[list[int]] = [[] for _ in range(groups.count)]
    waits = [0] * groups.count
    for a, b in sorted(groups.order):
        after[a].append(b)
        waits[b] += 1
    orders = [
        _order_by(after, waits, lambda group, step: (-step, group)),
        _order_by(after, waits, lambda group, step: (-step, -group)),
        _order_by(after, waits, lambda group, step: (step, group)),
        _order_by(after, waits, lambda group, step: (group, step)),
        _order_by_open_nets(groups, after, waits),
    ]
    for chance in rng.random((count, groups.count)).tolist():
        orders.append(_order_by(after, waits, _make_rank(chance)))
    return orders


def _make_rank(chance: Sequence[float]) -> Rank:
    """Rank what became ready last first; of several, the one of the smallest random number."""
    return lambda group, step: (-step, chance[group])


def _order_by(after: Sequence[Sequence[int]], waits: Sequence[int], rank: Rank) -> list[int]:
    """Order the groups by always taking the ready one of the smallest rank."""
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


def _order_by_open_nets(groups: LayerGroups, after: Sequence[Sequence[int]], waits: Sequence[int]) -> list[int]:
    """Order the groups by always taking the ready one that leaves the smallest cost of open nets."""
    nets_of: list[list[int]] = [[] for _ in range(groups.count)]
    for net, (pins, _) in enumerate(groups.nets):
        for pin in pins:
            nets_of[pin].append(net)
    seen = [0] * len(groups.nets)
    left, order = list(waits), []
    ready = {group: step for step, group in enumerate(g for g, count in enumerate(left) if not count)}

    def cost_of_opening(group: int) -> float:
        change = 0.0
        for net in nets_of[group]:
            pins, cost = groups.nets[net]
            change += cost * ((seen[net] == 0) - (seen[net] + 1 == len(pins)))
        return change

    while ready:
        group = min(ready, key=lambda g: (cost_of_opening(g), -ready[g], g))
        del ready[group]
        order.append(group)
        for net in nets_of[group]:
            seen[net] += 1
        for other in after[group]:
            left[other] -= 1
            if not left[other]:
                ready[other] = groups.count + len(order)
    return order


def _find_first_of_each(rows: Downsets) -> npt.NDArray[np.intp]:
    """Return the index of the first of each set of equal rows, in rising order."""
    packed = np.ascontiguousarray(np.packbits(rows, axis=1))
    keys = packed.view(np.dtype((np.void, packed.shape[1]))).ravel()
    return np.sort(np.unique(keys, return_index=True)[1])
