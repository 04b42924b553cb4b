"""Coarser groups, level by level: what the dearest nets join becomes one group, so that a search can move it together.

As multilevel partitioners do (Karypis and Kumar, 1998), with the pins of a net sharing its cost (Catalyurek and
Aykanat, 1999); but the dearest of all first, since what placements of layers must not cut is far dearer than the rest.
"""

from collections.abc import Sequence

import numpy as np

from .layer_groups import LayerGroups, merge_groups

WIDE = 32  # pins of a net that are looked at: a wider one says little about any two of them
NOISE = 0.5  # how far the order of joining differs from one call to the next, in powers of e


def coarsen(
    groups: LayerGroups, rng: np.random.Generator, *, min_count: int, largest: float, apart: Sequence[int] | None = None
) -> list[LayerGroups]:
    """Return the groups and ever coarser ones, each of half as many, down to about `min_count`.

    largest: the most time of a joined group. apart: a number per group; groups of different numbers stay apart.
    """
    order = _rank_pairs(groups, rng)
    levels = [groups]
    forest = _GroupForest(groups, largest, apart)
    goal = groups.count
    while goal > min_count and order:
        goal = max(min_count, goal // 2)
        while order and forest.count > goal:
            forest.join(*order.pop())
        if forest.count < levels[-1].count:
            levels.append(forest.merge_all(groups))
    return levels


def project_values(source: LayerGroups, target: LayerGroups, values: Sequence[int]) -> list[int]:
    """Return values of the source's groups as values of the target's, by the layers that they share.

    If a group of the target has layers of several, the last one counts.
    """
    out = [0] * target.count
    for old, new in zip(source.group_of, target.group_of, strict=True):
        out[new] = values[old]
    return out


def _rank_pairs(groups: LayerGroups, rng: np.random.Generator) -> list[tuple[int, int]]:
    """Return the pairs of groups that share nets, the most expensive last, with some random noise."""
    ties: dict[tuple[int, int], float] = {}
    for pins, cost in groups.nets:
        near = pins[:WIDE]
        for i, a in enumerate(near):
            for b in near[i + 1 :]:
                ties[a, b] = ties.get((a, b), 0.0) + cost / (len(pins) - 1)
    pairs = list(ties)
    ranks = np.log(np.array(list(ties.values()))) + NOISE * rng.standard_normal(len(pairs))
    return [pairs[i] for i in np.argsort(ranks, kind="stable").tolist()]


class _GroupForest:
    """Groups that are being joined: a union-find forest with the time of each tree."""

    def __init__(self, groups: LayerGroups, largest: float, apart: Sequence[int] | None) -> None:
        self.above = list(range(groups.count))
        self.time = list(groups.time)
        self.kind = list(zip(groups.on_accelerator, apart or [0] * groups.count, strict=True))
        self.largest = largest
        self.count = groups.count

    def find_root(self, group: int) -> int:
        """Return the group that stands for all those joined with this one."""
        while self.above[group] != group:
            self.above[group] = group = self.above[self.above[group]]
        return group

    def join(self, a: int, b: int) -> None:
        """Join two groups if they may be together and the result is not too large."""
        a, b = self.find_root(a), self.find_root(b)
        if a == b or self.kind[a] != self.kind[b] or self.time[a] + self.time[b] > self.largest:
            return
        self.above[b] = a
        self.time[a] += self.time[b]
        self.count -= 1

    def merge_all(self, groups: LayerGroups) -> LayerGroups:
        """Return the groups with all that have been joined so far merged."""
        return merge_groups(groups, [(self.find_root(group), group) for group in range(groups.count)])
