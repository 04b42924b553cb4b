"""`CoreTimes`: when machines are done with what they compute, where some of them are processes that share cores.

Cores are shared as an operating system does it, equally among those that compute at a moment (processor sharing;
Kleinrock, "Time-shared systems: a theoretical treatment", JACM 1967). A machine by itself computes at full speed. What
travels by a network is handled by the same cores meanwhile, first by those that are idle.
"""

from ..cluster.machines import Cluster

Stops = list[tuple[int, float]]  # machines, and when they will be done


class CoreTimes:
    """What is left of what each machine computes. All moments are in seconds, and never go back."""

    def __init__(self, cluster: Cluster) -> None:
        self._shared = {machine: cores for cores in cluster.shared for machine in cores.machines}
        self._left = dict[int, float]()  # seconds at full speed, of the machines that compute now and share cores
        self._since = dict[int, float]()
        self._handling = dict.fromkeys(cluster.shared, 0.0)  # cores that are busy with what travels

    def start(self, machine: int, seconds: float, now: float) -> Stops:
        """Begin to compute for so many seconds at full speed; return all machines that this gives another end."""
        if machine not in self._shared:
            return [(machine, now + seconds)]
        self._advance(machine, now)
        self._left[machine], self._since[machine] = seconds, now
        return self._stops(machine, now)

    def finish(self, machine: int, now: float) -> Stops:
        """Have done what was begun; return the other machines, which are quicker from now on."""
        if machine not in self._shared:
            return []
        self._advance(machine, now)
        del self._left[machine]
        return self._stops(machine, now)

    def handle(self, machine: int, cores: float, now: float) -> Stops:
        """Handle what travels at a machine's end with so many more cores, or fewer if negative.

        Return the machines that this gives another end.
        """
        if machine not in self._shared:
            return []
        self._advance(machine, now)
        self._handling[self._shared[machine]] += cores
        return self._stops(machine, now)

    def _advance(self, machine: int, now: float) -> None:
        """Take off what the machines that share these cores have computed until now."""
        busy, slowdown = self._busy(machine), self._slowdown(machine)
        for other in busy:
            self._left[other] -= (now - self._since[other]) / slowdown
            self._since[other] = now

    def _stops(self, machine: int, now: float) -> Stops:
        busy, slowdown = self._busy(machine), self._slowdown(machine)
        return [(other, now + max(0.0, self._left[other]) * slowdown) for other in busy]

    def _slowdown(self, machine: int) -> float:
        shared = self._shared[machine]
        return shared.slowdown(len(self._busy(machine)), self._handling[shared])

    def _busy(self, machine: int) -> list[int]:
        return [other for other in self._shared[machine].machines if other in self._left]
