"""The chain of downsets whose differences, one a device, have the least largest load: the best contiguous placement.

Dynamic programming over pairs of downsets (Tarnawski et al., NeurIPS 2020, section 4.1), restricted to what can still
be better than a bound: with n accelerators used, at most n x bound of the time is done, and the rest fits the others.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .downset import Downsets
from .layer_groups import LayerGroups

Floats = npt.NDArray[np.float64]
Numbers = npt.NDArray[np.int64]
State = tuple[int, int]  # accelerators and CPUs used so far
CELLS = 2_000_000  # pairs of downsets looked at together
OVERHEAD = 20  # what a pair costs beside its groups and nets


@dataclass(frozen=True)
class DownsetChain:
    """device_of: per group its device, accelerators first; None where there is no chain of a load below the bound.

    complete: whether every chain of the family was looked at.
    """

    device_of: list[int] | None
    complete: bool


def find_best_chain(
    groups: LayerGroups,
    family: Downsets,
    bound: float,
    *,
    effort: float = float("inf"),
    crossing: Floats | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> DownsetChain:
    """Return the best chain of a load below `bound`; with all downsets, the best contiguous placement.

    family: downsets, the empty and the full one among them. effort: pairs of downsets times groups and nets after which
    it gives up. crossing: per downset a load of its own, which ending a device's part there has. stop: asked now and
    then whether to give up.
    """
    chains = _ChainSearch(groups, family, bound, effort, crossing, stop)
    device_of = chains.answer()
    return DownsetChain(device_of, chains.effort > 0)


@dataclass
class _StateValues:
    """The state of the dynamic program for every downset: the smallest max load so far, and the last step there."""

    value: Floats
    before: Numbers  # the downset before the last device's part
    device: npt.NDArray[np.int8]  # 0 accelerator, 1 CPU


class _ChainSearch:
    """The dynamic program. Downsets are in rising order of their time on accelerators."""

    def __init__(
        self,
        groups: LayerGroups,
        family: Downsets,
        bound: float,
        effort: float,
        crossing: Floats | None,
        stop: Callable[[], bool],
    ) -> None:
        usable = np.array(groups.on_accelerator)
        times = np.where(usable, np.array(groups.time), 0.0)
        work = family @ times
        order = np.lexsort((family.sum(axis=1), work))
        rows = family[order]
        self.crossing = crossing[order] if crossing is not None else np.zeros(len(rows))
        self.groups = groups
        self.bound = bound
        self.effort = effort
        self.stop = stop
        self.rows = rows
        self.time = rows @ times
        self.cpu_time = rows @ np.array(groups.cpu_time)
        self.size = rows @ np.array(groups.size_bytes)
        self.refused = rows @ (~usable).astype(np.int64)
        self.relief = _compute_cpu_relief(times, np.array(groups.cpu_time), bound)
        self.pins = np.zeros((groups.count, len(groups.nets)), dtype=np.float32)
        for net, (members, _) in enumerate(groups.nets):
            self.pins[list(members), net] = 1
        self.cost = np.array([cost for _, cost in groups.nets])
        self.net_size = self.pins.sum(axis=0)

    def answer(self) -> list[int] | None:
        accelerators, cpus = self.groups.accelerators, self.groups.cpus
        reached: dict[State, _StateValues] = {}
        for state in ((a, c) for a in range(accelerators + 1) for c in range(cpus + 1)):
            reached[state] = self._reach(state, reached)
        return self._place_device(reached)

    def _reach(self, state: State, reached: dict[State, _StateValues]) -> _StateValues:
        count = len(self.rows)
        here = _StateValues(np.full(count, np.inf), np.full(count, -1), np.zeros(count, dtype=np.int8))
        if state == (0, 0):
            here.value[~self.rows.any(axis=1)] = 0.0
            return here
        goals = self._within(state)
        for device, earlier in ((0, (state[0] - 1, state[1])), (1, (state[0], state[1] - 1))):
            if earlier not in reached:
                continue
            old = reached[earlier]
            starts = np.flatnonzero(old.value < self.bound)
            idle = starts[old.value[starts] < here.value[starts]]
            here.value[idle], here.before[idle], here.device[idle] = old.value[idle], idle, device
            for begin, ends in self._blocks(starts, goals, device):
                if self.effort <= 0 or self.stop():
                    self.effort = 0.0
                    return here
                self._improve(here, old, begin, ends, device)
        return here

    def _within(self, state: State) -> Numbers:
        """Return the downsets that these devices can have finished, and whose rest the other devices can do."""
        accelerators, cpus = state
        left = self.groups.accelerators - accelerators, self.groups.cpus - cpus
        done = self.time <= accelerators * self.bound + cpus * self.relief
        rest = self.time[-1] - self.time <= left[0] * self.bound + left[1] * self.relief
        return np.flatnonzero(done & rest)

    def _blocks(self, starts: Numbers, goals: Numbers, device: int) -> Iterator[tuple[Numbers, Numbers]]:
        """Yield starts and goals in blocks; of the goals those whose time can be reached."""
        if not len(starts) or not len(goals):
            return
        reach = self.bound if device == 0 else self.relief
        times = self.time[goals]
        at = 0
        while at < len(starts):
            low = np.searchsorted(times, self.time[starts[at]])
            width = max(1, int(np.searchsorted(times, self.time[starts[at]] + reach, side="right") - low))
            some = starts[at : at + max(16, CELLS // (2 * width))]
            high = np.searchsorted(times, self.time[some[-1]] + reach, side="right")
            for first in range(int(low), int(high), CELLS // len(some)):
                yield some, goals[first : min(int(high), first + CELLS // len(some))]
            at += len(some)

    def _improve(self, here: _StateValues, old: _StateValues, starts: Numbers, goals: Numbers, device: int) -> None:
        load = self._loads(starts, goals, device)
        value = np.maximum(load, old.value[starts][:, None])
        best = value.argmin(axis=0)
        smallest = np.maximum(value[best, np.arange(len(goals))], self.crossing[goals])
        better = (smallest < self.bound) & (smallest < here.value[goals])
        here.value[goals[better]] = smallest[better]
        here.before[goals[better]] = starts[best[better]]
        here.device[goals[better]] = device

    def _loads(self, starts: Numbers, goals: Numbers, device: int) -> Floats:
        """Return the load of goals[j] without starts[i] on a device; infinite where it is not allowed."""
        inner, outer = self.rows[starts], self.rows[goals]
        times = self.time if device == 0 else self.cpu_time
        load: Floats = times[goals][None, :] - times[starts][:, None]
        varies = inner.any(axis=0) & ~outer.all(axis=0)
        self.effort -= load.size * (int(varies.sum()) + OVERHEAD)
        stick_out = inner[:, varies].astype(np.float32) @ (~outer[:, varies]).astype(np.float32).T
        bad = stick_out > 0
        if device == 0:
            held = self.size[goals][None, :] - self.size[starts][:, None]
            # Sums are rounded; a part that fits to the last byte does fit.
            bad |= held > self.groups.memory_bytes * (1 + 1e-12)
            bad |= self.refused[goals][None, :] > self.refused[starts][:, None]
            load = load + self._cut(inner, outer)
        load[bad] = np.inf
        return load

    def _cut(self, inner: Downsets, outer: Downsets) -> Floats:
        """Return the cost of the nets that outer[j] less inner[i] cuts: those with some, but not all, pins in it."""
        less, more = inner.astype(np.float32) @ self.pins, outer.astype(np.float32) @ self.pins
        fixed = (less.min(axis=0) == more.max(axis=0)) & (less.max(axis=0) == more.min(axis=0))
        less, more, cost, size = less[:, ~fixed], more[:, ~fixed], self.cost[~fixed], self.net_size[~fixed]
        self.effort -= len(less) * len(more) * len(cost)
        whole = ((less == 0) * cost) @ (more == size).astype(np.float64).T
        for pins_inside in range(int(size.max(initial=-1)) + 1):
            some = ((less == pins_inside).any(axis=0)) & ((more == pins_inside).any(axis=0))
            same = (less[:, some] == pins_inside) * cost[some]
            whole += same @ (more[:, some] == pins_inside).astype(np.float64).T
        cut: Floats = np.maximum(cost.sum() - whole, 0.0)
        return cut

    def _place_device(self, reached: dict[State, _StateValues]) -> list[int] | None:
        full = int(np.flatnonzero(self.rows.all(axis=1))[0])
        state = self.groups.accelerators, self.groups.cpus
        if not reached[state].value[full] < self.bound:
            return None
        device_of = [0] * self.groups.count
        at = full
        while state != (0, 0):
            last = reached[state]
            before, on_cpu = int(last.before[at]), int(last.device[at])
            number = self.groups.accelerators + state[1] - 1 if on_cpu else state[0] - 1
            for group in np.flatnonzero(self.rows[at] & ~self.rows[before]):
                device_of[int(group)] = number
            state = (state[0], state[1] - 1) if on_cpu else (state[0] - 1, state[1])
            at = before
        return device_of


def _compute_cpu_relief(times: Floats, cpu_times: Floats, bound: float) -> float:
    """Return the most accelerator time that one CPU can take over within the bound: a fractional knapsack."""
    free = float(times[cpu_times <= 0].sum())
    paid = np.flatnonzero(cpu_times > 0)
    paid = paid[np.argsort(-times[paid] / cpu_times[paid], kind="stable")]
    used = np.minimum(np.cumsum(cpu_times[paid]), bound)
    spent = np.diff(used, prepend=0.0)
    return free + float((spent / cpu_times[paid] * times[paid]).sum())
