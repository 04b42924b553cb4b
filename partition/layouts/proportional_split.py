"""Divides a range among machines by their speeds, so that the slowest is done as early as whole points allow."""

import heapq
import itertools
import math
from collections.abc import Sequence


def split_by_speed(size: int, speeds: Sequence[float]) -> list[int]:
    """Return the edges of the parts of [0, size): part i is [edges[i], edges[i + 1]), for a machine of speed speeds[i].

    No part is empty, however slow its machine; there must be as many points as machines. Of all such splits it is one
    with the least maximum of length / speed, among the parts of one point and among the longer ones. Within that the
    edges are as near as can be to exact proportion, so that axes of related sizes are cut in the same places.
    """
    most = _max_lengths(size, speeds)
    room_after = [*itertools.accumulate(reversed(most), initial=0)][::-1]
    sums = [*itertools.accumulate(speeds, initial=0.0)]
    edges = [0]
    for i, length in enumerate(most, 1):
        exact = math.floor(size * (sums[i] / sums[-1]) + 1e-9)
        low = max(edges[-1] + 1, size - room_after[i])
        high = min(edges[-1] + length, size - (len(most) - i))
        edges.append(min(max(exact, low), high))
    return edges


def _max_lengths(size: int, speeds: Sequence[float]) -> list[int]:
    """Return how long each part may be without taking longer than the slowest of the best split.

    That split gives every machine a point, and each further one to the machine that would be done with it first
    (D'Hondt). It begins a point below the exact shares, which no part of the best split is below.
    """
    fastest = itertools.accumulate(sorted(speeds, reverse=True))
    # Points for each unit of speed, where the machines whose exact share is less than a point have one all the same.
    exact = min((size - len(speeds) + count) / total for count, total in enumerate(fastest, 1))
    lengths = [max(1, math.floor(exact * speed) - 1) for speed in speeds]
    queue = [((length + 1) / speed, i) for i, (length, speed) in enumerate(zip(lengths, speeds, strict=True))]
    heapq.heapify(queue)
    for _ in range(size - sum(lengths)):
        i = queue[0][1]
        lengths[i] += 1
        heapq.heapreplace(queue, ((lengths[i] + 1) / speeds[i], i))
    slowest = max((n / speed for n, speed in zip(lengths, speeds, strict=True) if n > 1), default=0.0)
    return [max(n, math.floor(slowest * speed)) for n, speed in zip(lengths, speeds, strict=True)]
