"""Places the layers of a foreign graph on devices so that the largest load is small: the throughput objective of
Tarnawski et al., NeurIPS 2020 (`device_loads` says what a load is).

Contiguous placements are solved exactly wherever the downsets can be listed. From there, rounds of annealing on coarser
and then finer groups look for any placement that is better.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from .annealing import BATCH, annealed
from .coarsening import carried, coarser_levels
from .downset import Rows, all_downsets, linear_orders, prefixes, united
from .downset_chain import best_chain
from ....errors import Infeasible
from .layer_graph import LayerGraph, device_loads
from .layer_groups import LayerGroups, grouped, without_cycles, without_dear_nets, without_idle_groups
from .linear_partition import split_line

ROUNDS = 20
MIXED_ORDERS = 6
DOWNSETS_MAX = 60_000
CELLS_MAX = 40_000_000  # downsets x groups
SOME_CELLS = 4_000_000  # the same, of a choice of downsets
EFFORT_MAX, EFFORT_SOME = 3e10, 4e9  # for all downsets, and for a choice of them


@dataclass(frozen=True)
class Placed:
    """device_of: per layer its device, accelerators first. loads: per device."""

    device_of: tuple[int, ...]
    loads: tuple[float, ...]

    @property
    def objective(self) -> float:
        """The largest load."""
        return max(self.loads)


@dataclass(frozen=True)
class ThroughputPlan:
    """best: of any kind. contiguous: the best chain of downsets, None where none was found; proven: whether there is no
    better one."""

    best: Placed
    contiguous: Placed | None
    proven: bool


def plan_throughput(
    graph: LayerGraph, *, seed: int = 0, rounds: int = ROUNDS, stop: Callable[[], bool] = lambda: False
) -> ThroughputPlan:
    """Place the layers. stop: asked now and then whether to end early; without it the answer depends on the seed alone.

    Raises Infeasible (E410, E411) where no device can run a layer, or memory does not hold the layers.
    """
    groups = without_idle_groups(_with_useful_devices(grouped(graph)))
    _check_devices(groups)
    chain, proven = _contiguous(groups, seed, stop)
    start = chain if chain is not None else _packed(groups)
    best = _searched(groups, start, seed=seed, rounds=rounds, stop=stop)
    contiguous = _placed(graph, groups, chain) if chain is not None else None
    return ThroughputPlan(_placed(graph, groups, best), contiguous, proven)


def _with_useful_devices(groups: LayerGroups) -> LayerGroups:
    """No more devices of a kind than groups: others stay idle."""
    return replace(groups, accelerators=min(groups.accelerators, groups.count), cpus=min(groups.cpus, groups.count))


def _check_devices(groups: LayerGroups) -> None:
    alone = [group for group in range(groups.count) if not groups.on_accelerator[group]]
    if alone and not groups.cpus:
        layers = sum(group in set(alone) for group in groups.group_of)
        facts = f"{layers} layers, or layers that share a device with them, run on a CPU only, and there is none"
        raise Infeasible("E410", facts, fix="set maxCPUs to 1 or more")


def _contiguous(groups: LayerGroups, seed: int, stop: Callable[[], bool]) -> tuple[list[int] | None, bool]:
    """The best chain of downsets as a device per group, and whether it is proven to be the best."""
    ordered = without_idle_groups(without_cycles(groups))
    orders = linear_orders(ordered, seed=seed, count=MIXED_ORDERS)
    bound = 1.01 * (sum(ordered.time) + sum(ordered.cpu_time) + 2 * sum(cost for _, cost in ordered.nets))
    chosen: list[int] | None = None
    for order in orders:
        split = split_line(ordered, order)
        if split is not None and (chosen is None or max(ordered.loads(split)) < bound):
            bound, chosen = max(ordered.loads(split)), carried(ordered, groups, split)
    # What costs more than the bound when cut is never cut; that leaves fewer downsets.
    tight = without_idle_groups(without_cycles(without_dear_nets(ordered, bound)))
    complete = all_downsets(tight, at_most=min(DOWNSETS_MAX, CELLS_MAX // tight.count))
    if complete is None:
        found = best_chain(tight, _several(tight, seed), bound, effort=EFFORT_SOME, stop=stop).device_of
        return (carried(tight, groups, found) if found is not None else chosen), False
    last = best_chain(tight, complete, bound, effort=EFFORT_MAX, stop=stop)
    if last.device_of is not None:
        chosen = carried(tight, groups, last.device_of)
    return chosen, last.complete


def _several(groups: LayerGroups, seed: int) -> Rows:
    """Downsets of several orders, where there are too many to take all."""
    families = [prefixes(order, groups.count) for order in linear_orders(groups, seed=seed, count=MIXED_ORDERS)]
    most = max(2, SOME_CELLS // (groups.count * len(families)))
    step = -(-groups.count // most)
    return united([rows[[*range(0, groups.count, step), groups.count]] for rows in families])


def _packed(groups: LayerGroups) -> list[int]:
    """Somewhere for every group: the largest first, each where most memory is free; a CPU has no limit."""
    free = [groups.memory_bytes] * groups.accelerators
    device_of = [groups.accelerators] * groups.count
    for group in sorted(range(groups.count), key=lambda g: (-groups.size_bytes[g], g)):
        roomiest = max(range(groups.accelerators), key=lambda d: (free[d], -d), default=0)
        held = groups.size_bytes[group]
        if groups.on_accelerator[group] and free and free[roomiest] >= held:
            free[roomiest] -= held
            device_of[group] = roomiest
        elif not groups.cpus:
            needed, limit = sum(groups.size_bytes), groups.memory_bytes
            facts = f"{needed:.4g} bytes of layers do not fit {groups.accelerators} accelerators of {limit:.4g} bytes"
            raise Infeasible("E411", facts, fix="give more machines, or more memory, or a CPU")
    return device_of


def _searched(groups: LayerGroups, start: list[int], *, seed: int, rounds: int, stop: Callable[[], bool]) -> list[int]:
    """The best placement of several rounds: every third from chance, the others from the best so far."""
    best, bound = start, max(groups.loads(start))
    devices = groups.accelerators + groups.cpus
    for number in range(min(rounds, groups.count) if devices > 1 else 0):
        if stop():
            break
        rng = np.random.default_rng((seed, number))
        fine = without_dear_nets(groups, bound)
        least, largest = int(rng.integers(20, 80)), bound * float(rng.uniform(0.15, 1.0))
        here = carried(groups, fine, best)
        again = number % 3
        levels = coarser_levels(fine, rng, least=least, largest=largest, apart=here if again else None)
        device_of = carried(fine, levels[-1], here)
        hot = (1.0, 0.1, 0.02)[again]
        for depth in range(len(levels) - 1, -1, -1):
            coarsest = depth == len(levels) - 1
            level = levels[depth]
            if not coarsest:
                device_of = carried(levels[depth + 1], level, device_of)
            device_of = annealed(
                level,
                device_of,
                seed=seed + number,
                steps=BATCH * (4 if coarsest else 2),
                scale=bound,
                hot=hot if coarsest else min(hot, 0.03),
                cold=0.0005,
                stop=stop,
            )
        load = max(fine.loads(device_of))
        if load < bound and fine.fits(device_of):
            best, bound = carried(fine, groups, device_of), load
    return best


def _placed(graph: LayerGraph, groups: LayerGroups, device_of: list[int]) -> Placed:
    """The placement of the graph's own layers and devices, its loads counted by the definition."""
    idle = graph.accelerators - groups.accelerators
    of_layer = [device_of[group] for group in groups.group_of]
    mine = tuple(device if device < groups.accelerators else device + idle for device in of_layer)
    return Placed(mine, tuple(device_loads(graph, mine)))
