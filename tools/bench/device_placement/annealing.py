"""Simulated annealing of groups on devices: any placement, contiguous or not, of a small largest load.

Kirkpatrick et al., 1983. The energy is the sum of the loads to a high power, so that every load near the largest
counts. A move of a group changes the loads of two devices only, by what `LayerGroups` says of cut nets.
"""

from collections.abc import Callable, Sequence

import numpy as np

from .layer_groups import LayerGroups

POWER = 12.0
HUGE = 1e20  # a load over the scale above which all are alike, lest powers overflow
OVERFULL = 5.0  # energy of an accelerator that holds twice what it can
BATCH = 1 << 15  # moves proposed at one temperature


def anneal(
    groups: LayerGroups,
    device_of: Sequence[int],
    *,
    seed: int,
    steps: int,
    scale: float,
    hot: float,
    cold: float,
    stop: Callable[[], bool] = lambda: False,
) -> list[int]:
    """Return the best placement met in about `steps` proposed moves from `device_of`, itself among them.

    scale: about the load to come to. hot, cold: the first and last temperature, in energies of a device of that load.
    stop: asked now and then whether to end early. What is kept fits every accelerator, if the start did.
    """
    search = _AnnealingState(groups, device_of, scale)
    rng = np.random.default_rng(seed)
    for temperature in np.geomspace(hot, cold, max(1, steps // BATCH)).tolist():
        if stop():
            break
        search.batch(rng, temperature)
    return search.best


class _AnnealingState:
    """A placement with the loads of its devices, and the best placement so far."""

    def __init__(self, groups: LayerGroups, device_of: Sequence[int], scale: float) -> None:
        devices = groups.accelerators + groups.cpus
        self.groups = groups
        self.scale = scale if scale > 0 else 1.0
        self.device_of = list(device_of)
        self.best = list(device_of)
        self.load = groups.loads(device_of)
        self.best_load = max(self.load) if groups.fits(device_of) else float("inf")
        # Where memory is short, too much of it costs energy, so that a way through it may lead to a better placement.
        roomy = sum(groups.size_bytes) <= groups.memory_bytes
        self.tight = 0.0 if roomy else OVERFULL / (groups.memory_bytes or 1.0)
        self.held = [0.0] * devices
        for group, device in enumerate(device_of):
            self.held[device] += groups.size_bytes[group]
        # Per group and net of it: pins by device, pins in all, cost. Lists are shared between the pins of a net.
        self.nets_of: list[list[tuple[list[int], int, float]]] = [[] for _ in range(groups.count)]
        self.near: list[list[int]] = [[] for _ in range(groups.count)]
        for pins, cost in groups.nets:
            at = [0] * devices
            for pin in pins:
                at[device_of[pin]] += 1
                self.nets_of[pin].append((at, len(pins), cost))
        for group, near in enumerate(_list_neighbours(groups)):
            self.near[group] = near or [group]

    def batch(self, rng: np.random.Generator, temperature: float) -> None:
        """Propose BATCH moves: half of them to a neighbour's device, half to any."""
        groups, device_of, load, held = self.groups, self.device_of, self.load, self.held
        accelerators, devices = groups.accelerators, len(load)
        scale = self.scale
        room, usable, size = groups.memory_bytes, groups.on_accelerator, groups.size_bytes
        chosen = rng.integers(0, groups.count, BATCH).tolist()
        where = rng.random(BATCH).tolist()
        allowed = (-np.log(1.0 - rng.random(BATCH)) * temperature).tolist()
        tight = self.tight
        energy = [
            min(max(x, 0.0) / scale, HUGE) ** POWER + tight * (max(0.0, h - room) if d < accelerators else 0.0)
            for d, (x, h) in enumerate(zip(load, held, strict=True))
        ]
        for group, place, rise in zip(chosen, where, allowed, strict=True):
            here = device_of[group]
            if place < 0.5:
                near = self.near[group]
                there = device_of[near[int(place * 2 * len(near))]]
            else:
                there = int((place - 0.5) * 2 * devices)
            if there == here:
                continue
            if there < accelerators and not usable[group]:
                continue
            leaving, joining = load[here], load[there]
            cut_here = cut_there = 0.0
            for at, pins, cost in self.nets_of[group]:
                if at[here] == 1:
                    cut_here -= cost
                elif at[here] == pins:
                    cut_here += cost
                if not at[there]:
                    cut_there += cost
                elif at[there] + 1 == pins:
                    cut_there -= cost
            leaving += cut_here - groups.time[group] if here < accelerators else -groups.cpu_time[group]
            joining += cut_there + groups.time[group] if there < accelerators else groups.cpu_time[group]
            less = min(max(leaving, 0.0) / scale, HUGE) ** POWER
            more = min(joining / scale, HUGE) ** POWER
            if tight:
                less += tight * max(0.0, held[here] - size[group] - room) if here < accelerators else 0.0
                more += tight * max(0.0, held[there] + size[group] - room) if there < accelerators else 0.0
            if less + more - energy[here] - energy[there] > rise:
                continue
            device_of[group] = there
            load[here], load[there], energy[here], energy[there] = leaving, joining, less, more
            held[here] -= size[group]
            held[there] += size[group]
            for at, _, _ in self.nets_of[group]:
                at[here] -= 1
                at[there] += 1
            if max(load) < self.best_load and (not tight or groups.fits(device_of)):
                self._keep()

    def _keep(self) -> None:
        self.best = list(self.device_of)
        # Sums of many small changes drift: start afresh from the exact loads.
        self.load[:] = self.groups.loads(self.device_of)
        self.best_load = max(self.load)


def _list_neighbours(groups: LayerGroups) -> list[list[int]]:
    """Return for each group the other pins of its nets, once for each shared net; of wide nets the first 32."""
    near: list[list[int]] = [[] for _ in range(groups.count)]
    for pins, _ in groups.nets:
        for pin in pins:
            near[pin].extend(other for other in pins[:32] if other != pin)
    return near
