"""Places the layers of a foreign graph on devices so that the largest load is small: the throughput objective of
Tarnawski et al., NeurIPS 2020 (`device_loads` says what a load is).

Contiguous placements are solved exactly wherever the downsets can be listed. From there, rounds of annealing on coarser
and then finer groups look for any placement that is better.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from ....errors import Infeasible
from .annealing import BATCH, anneal
from .coarsening import coarsen, project_values
from .downset import Downsets, generate_orders, list_downsets, list_prefixes, unite_downsets
from .downset_chain import find_best_chain
from .graphs.layer_graph import LayerGraph, compute_device_loads
from .layer_groups import LayerGroups, group_layers, merge_cycles, merge_expensive_nets, merge_idle_groups
from .linear_partition import split_order

ROUNDS = 20
MIXED_ORDERS = 6
MAX_DOWNSETS = 60_000
MAX_CELLS = 40_000_000  # downsets x groups
SAMPLED_CELLS = 4_000_000  # the same, of a choice of downsets
MAX_EFFORT, SAMPLED_EFFORT = 3e10, 4e9  # for all downsets, and for a choice of them


@dataclass(frozen=True)
class LayerPlacement:
    """Where each layer runs. device_of: its device, accelerators first; loads: of every device."""

    device_of: tuple[int, ...]
    loads: tuple[float, ...]

    @property
    def objective(self) -> float:
        """The largest load of a device."""
        return max(self.loads)


@dataclass(frozen=True)
class ThroughputPlan:
    """best: of any kind. contiguous: the best chain of downsets, None where none was found; proven: whether there is no
    better one."""

    best: LayerPlacement
    contiguous: LayerPlacement | None
    proven: bool


def plan_throughput(
    graph: LayerGraph, *, seed: int = 0, rounds: int = ROUNDS, stop: Callable[[], bool] = lambda: False
) -> ThroughputPlan:
    """Place the layers. stop: asked now and then whether to end early; without it the answer depends on the seed alone.

    Raises Infeasible (E410, E411) where no device can run a layer, or memory does not hold the layers.
    """
    groups = merge_idle_groups(_drop_useless_devices(group_layers(graph)))
    _check_devices(groups)
    chain, proven = _plan_contiguous(groups, seed, stop)
    start = chain if chain is not None else _pack_groups(groups)
    best = _search(groups, start, seed=seed, rounds=rounds, stop=stop)
    contiguous = _place_layers(graph, groups, chain) if chain is not None else None
    return ThroughputPlan(_place_layers(graph, groups, best), contiguous, proven)


def _drop_useless_devices(groups: LayerGroups) -> LayerGroups:
    """Drop the devices of a kind beyond the number of groups, since they stay idle."""
    return replace(groups, accelerators=min(groups.accelerators, groups.count), cpus=min(groups.cpus, groups.count))


def _check_devices(groups: LayerGroups) -> None:
    alone = [group for group in range(groups.count) if not groups.on_accelerator[group]]
    if alone and not groups.cpus:
        layers = sum(group in set(alone) for group in groups.group_of)
        facts = f"{layers} layers, or layers that share a device with them, run on a CPU only, and there is none"
        raise Infeasible("E410", facts, fix="set maxCPUs to 1 or more")


def _plan_contiguous(groups: LayerGroups, seed: int, stop: Callable[[], bool]) -> tuple[list[int] | None, bool]:
    """Return the best chain of downsets as a device for each group, and whether it is proven to be the best."""
    ordered = merge_idle_groups(merge_cycles(groups))
    orders = generate_orders(ordered, seed=seed, count=MIXED_ORDERS)
    bound = 1.01 * (sum(ordered.time) + sum(ordered.cpu_time) + 2 * sum(cost for _, cost in ordered.nets))
    chosen: list[int] | None = None
    for order in orders:
        split = split_order(ordered, order)
        if split is not None and (chosen is None or max(ordered.loads(split)) < bound):
            bound, chosen = max(ordered.loads(split)), project_values(ordered, groups, split)
    # What costs more than the bound when cut is never cut; that leaves fewer downsets.
    tight = merge_idle_groups(merge_cycles(merge_expensive_nets(ordered, bound)))
    complete = list_downsets(tight, limit=min(MAX_DOWNSETS, MAX_CELLS // tight.count))
    if complete is None:
        chain_devices = find_best_chain(
            tight, _sample_downsets(tight, seed), bound, effort=SAMPLED_EFFORT, stop=stop
        ).device_of
        return (project_values(tight, groups, chain_devices) if chain_devices is not None else chosen), False
    last = find_best_chain(tight, complete, bound, effort=MAX_EFFORT, stop=stop)
    if last.device_of is not None:
        chosen = project_values(tight, groups, last.device_of)
    return chosen, last.complete


def _sample_downsets(groups: LayerGroups, seed: int) -> Downsets:
    """Return the downsets of several orders, if there are too many to take all."""
    families = [list_prefixes(order, groups.count) for order in generate_orders(groups, seed=seed, count=MIXED_ORDERS)]
    most = max(2, SAMPLED_CELLS // (groups.count * len(families)))
    step = -(-groups.count // most)
    return unite_downsets([rows[[*range(0, groups.count, step), groups.count]] for rows in families])


def _pack_groups(groups: LayerGroups) -> list[int]:
    """Place the largest group first, each where most memory is free; a CPU has no limit."""
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


def _search(groups: LayerGroups, start: list[int], *, seed: int, rounds: int, stop: Callable[[], bool]) -> list[int]:
    """Return the best placement of several rounds: every third starts at random, the others from the best so far."""
    best, bound = start, max(groups.loads(start))
    devices = groups.accelerators + groups.cpus
    for number in range(min(rounds, groups.count) if devices > 1 else 0):
        if stop():
            break
        rng = np.random.default_rng((seed, number))
        fine = merge_expensive_nets(groups, bound)
        min_count, largest = int(rng.integers(20, 80)), bound * float(rng.uniform(0.15, 1.0))
        here = project_values(groups, fine, best)
        again = number % 3
        levels = coarsen(fine, rng, min_count=min_count, largest=largest, apart=here if again else None)
        device_of = project_values(fine, levels[-1], here)
        hot = (1.0, 0.1, 0.02)[again]
        for depth in range(len(levels) - 1, -1, -1):
            coarsest = depth == len(levels) - 1
            level = levels[depth]
            if not coarsest:
                device_of = project_values(levels[depth + 1], level, device_of)
            device_of = anneal(
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
            best, bound = project_values(fine, groups, device_of), load
    return best


def _place_layers(graph: LayerGraph, groups: LayerGroups, device_of: list[int]) -> LayerPlacement:
    """Return the placement of the graph's own layers and devices, with loads counted by the definition."""
    idle = graph.accelerators - groups.accelerators
    of_layer = [device_of[group] for group in groups.group_of]
    devices = tuple(device if device < groups.accelerators else device + idle for device in of_layer)
    return LayerPlacement(devices, tuple(compute_device_loads(graph, devices)))
