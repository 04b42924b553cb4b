"""Coarser groups, level by level: what the dearest nets join becomes one group, so that a search can move it together.

As multilevel partitioners do (Karypis and Kumar, 1998), with the pins of a net sharing its cost (Catalyurek and
Aykanat, 1999); but the dearest of all first, since what placements of layers must not cut is far dearer than the rest.
"""

from collections.abc import Sequence

import numpy as np

from .layer_groups import LayerGroups, merged

WIDE = 32  # pins of a net that are looked at: a wider one says little about any two of them
NOISE = 0.5  # how far the order of joining differs from one call to the next, in powers of e


def coarser_levels(
    groups: LayerGroups, rng: np.random.Generator, *, least: int, largest: float, apart: Sequence[int] | None = None
) -> list[LayerGroups]:
    """The groups and ever coarser ones, each of half as many, down to about `least`.

    largest: the most time of a joined group. apart: a number per group; groups of different numbers stay apart.
    """
    order = _ties(groups, rng)
    levels = [groups]
    joined = _Joined(groups, largest, apart)
    goal = groups.count
    while goal > least and order:
        goal = max(least, goal // 2)
        while order and joined.count > goal:
            joined.join(*order.pop())
        if joined.count < levels[-1].count:
            levels.append(joined.merged(groups))
    return levels


def carried(source: LayerGroups, target: LayerGroups, values: Sequence[int]) -> list[int]:
    """Values of the source's groups as values of the target's, by the layers that they share.

    Where a target's group has layers of several, the last one counts.
    """
    out = [0] * target.count
    for old, new in zip(source.group_of, target.group_of, strict=True):
        out[new] = values[old]
    return out


def _ties(groups: LayerGroups, rng: np.random.Generator) -> list[tuple[int, int]]:
    """Pairs of groups that share nets, the dearest last, but for chance."""
    ties: dict[tuple[int, int], float] = {}
    for pins, cost in groups.nets:
        near = pins[:WIDE]
        for i, a in enumerate(near):
            for b in near[i + 1 :]:
                ties[a, b] = ties.get((a, b), 0.0) + cost / (len(pins) - 1)
    pairs = list(ties)
    ranks = np.log(np.array(list(ties.values()))) + NOISE * rng.standard_normal(len(pairs))
    return [pairs[i] for i in np.argsort(ranks, kind="stable").tolist()]


class _Joined:
    """Groups as they are joined: a forest with the time and the number of each tree (union-find)."""

    def __init__(self, groups: LayerGroups, largest: float, apart: Sequence[int] | None) -> None:
        self.above = list(range(groups.count))
        self.time = list(groups.time)
        self.kind = list(zip(groups.on_accelerator, apart or [0] * groups.count, strict=True))
        self.largest = largest
        self.count = groups.count

    def root(self, group: int) -> int:
        while self.above[group] != group:
            self.above[group] = group = self.above[self.above[group]]
        return group

    def join(self, a: int, b: int) -> None:
        """Make one of the two, where it is allowed."""
        a, b = self.root(a), self.root(b)
        if a == b or self.kind[a] != self.kind[b] or self.time[a] + self.time[b] > self.largest:
            return
        self.above[b] = a
        self.time[a] += self.time[b]
        self.count -= 1

    def merged(self, groups: LayerGroups) -> LayerGroups:
        """The groups as they are joined now."""
        return merged(groups, [(self.root(group), group) for group in range(groups.count)])
