"""Groups in a line, cut into an interval a device so that the largest load is least: dynamic programming over the cuts.

The loads of all intervals are a table, made at once: a net is cut by an interval unless it has none or all of its pins
in it, and where that is so is a few rectangles of the table.
"""

import itertools
import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from .layer_groups import LayerGroups

Floats = npt.NDArray[np.float64]
Numbers = npt.NDArray[np.int64]
MIN_CUTS, MAX_CUTS = 100, 800  # places where the line may be cut
CELLS = 25_000_000  # pairs of cuts times states of the dynamic program


def split_order(groups: LayerGroups, order: Sequence[int]) -> list[int] | None:
    """Return a device for each group, accelerators first; None if no cut of the order fits the devices.

    Of a long line, only the cheapest places of even stretches are cut.
    """
    states = (groups.accelerators + 1) * (groups.cpus + 1)
    cuts = _choose_cuts(groups, order, max(MIN_CUTS, min(MAX_CUTS, math.isqrt(CELLS // states))))
    of_accelerator, of_cpu = _compute_loads(groups, order, cuts)
    ends = len(cuts) - 1
    values: dict[tuple[int, int], Floats] = {}
    before: dict[tuple[int, int], tuple[npt.NDArray[np.int8], Numbers]] = {}
    for state in ((a, c) for a in range(groups.accelerators + 1) for c in range(groups.cpus + 1)):
        value = np.full(ends + 1, np.inf)
        device, start = np.zeros(ends + 1, dtype=np.int8), np.zeros(ends + 1, dtype=np.int64)
        if state == (0, 0):
            value[0] = 0.0
        for kind, table in enumerate((of_accelerator, of_cpu)):
            earlier = values.get((state[0] - (kind == 0), state[1] - (kind == 1)))
            if earlier is None:
                continue
            cost = np.maximum(earlier[:, None], table)
            best = cost.argmin(axis=0)
            best_cost = cost[best, np.arange(ends + 1)]
            better = best_cost < value
            value[better], start[better], device[better] = best_cost[better], best[better], kind
        values[state], before[state] = value, (device, start)
    state, at = (groups.accelerators, groups.cpus), ends
    if not np.isfinite(values[state][at]):
        return None
    device_of = [0] * groups.count
    while state != (0, 0):
        device, start = before[state]
        kind, begin = int(device[at]), int(start[at])
        number = groups.accelerators + state[1] - 1 if kind else state[0] - 1
        for place in range(cuts[begin], cuts[at]):
            device_of[order[place]] = number
        state = (state[0] - (kind == 0), state[1] - (kind == 1))
        at = begin
    return device_of


def _choose_cuts(groups: LayerGroups, order: Sequence[int], count_limit: int) -> list[int]:
    """Choose about `count_limit` places where the order may be cut, both ends included."""
    count = groups.count
    if count < count_limit:
        return list(range(count + 1))
    place_of = {group: place for place, group in enumerate(order)}
    opened = np.zeros(count + 1)
    for pins, cost in groups.nets:
        places = [place_of[pin] for pin in pins]
        opened[min(places) + 1] += cost
        opened[max(places) + 1] -= cost
    crossing = np.cumsum(opened)
    edges = np.linspace(1, count, count_limit, dtype=np.int64)
    inside = [a + int(crossing[a:b].argmin()) for a, b in itertools.pairwise(edges.tolist())]
    return [0, *inside, count]


def _compute_loads(groups: LayerGroups, order: Sequence[int], cuts: Sequence[int]) -> tuple[Floats, Floats]:
    """Return [i, j]: the load between cuts i and j, on an accelerator and on a CPU; infinite if not allowed."""
    line = np.asarray(order, dtype=np.int64)

    def sums(values: Sequence[float]) -> Floats:
        upto = np.concatenate([[0.0], np.cumsum(np.asarray(values, dtype=np.float64)[line])])[list(cuts)]
        between: Floats = upto[None, :] - upto[:, None]
        return between

    backward = np.tri(len(cuts), k=-1, dtype=np.bool_)
    refused = sums([float(not able) for able in groups.on_accelerator]) > 0.5
    too_large = sums(groups.size_bytes) > groups.memory_bytes * (1 + 1e-12)
    of_accelerator, of_cpu = sums(groups.time) + _compute_cut_costs(groups, line, cuts), sums(groups.cpu_time)
    of_accelerator[backward | refused | too_large] = np.inf
    np.fill_diagonal(of_accelerator, 0.0)
    of_cpu[backward] = np.inf
    return of_accelerator, of_cpu


def _compute_cut_costs(groups: LayerGroups, line: Numbers, cuts: Sequence[int]) -> Floats:
    """Return [i, j]: the cost of the nets that are cut by what lies between cuts i and j, for i <= j."""
    stretches = len(cuts) - 1
    stretch_of = np.empty(groups.count, dtype=np.int64)
    stretch_of[line] = np.repeat(np.arange(stretches), np.diff(cuts))
    change = np.zeros((stretches + 2, stretches + 2))  # of what is not cut; summed along both axes below
    total = 0.0
    for pins, cost in groups.nets:
        at = sorted({int(stretch_of[pin]) for pin in pins})
        if len(at) == 1:
            continue
        total += cost
        for low, high in zip([-1, *at], [*at, stretches], strict=True):  # between two pins, from cut low + 1 to high
            change[low + 1, 0] += cost
            change[high + 1, 0] -= cost
            change[low + 1, high + 1] -= cost
            change[high + 1, high + 1] += cost
        change[0, at[-1] + 1] += cost  # all pins inside
        change[at[0] + 1, at[-1] + 1] -= cost
    whole = change.cumsum(axis=0).cumsum(axis=1)[: stretches + 1, : stretches + 1]
    cut: Floats = np.maximum(total - whole, 0.0)
    return cut
