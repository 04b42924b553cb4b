"""`NetworkTimes`: when messages leave and land, one after the other on each network card and link."""

import math
from dataclasses import dataclass

from ..cluster.machines import Cluster


@dataclass(frozen=True)
class _Way:
    """What a message from one machine to another passes: the cards of both ends, and how fast each and all are.

    sends, receives: numbers of the cards. Bandwidths are in bytes/s.
    """

    sends: int
    receives: int
    bandwidth_out: float
    bandwidth_in: float
    bandwidth: float
    latency_s: float


class NetworkTimes:
    """When each card and link of a cluster is free again.

    A card sends messages in the order in which they are ready, and receives them in that of their first bytes; machines
    of a host may share one. A link of a pair of machines is a card of its own at both ends.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._ways: dict[tuple[int, int], _Way] = {}
        self._sends_free, self._receives_free = [0.0] * len(cluster), [0.0] * len(cluster)
        self._shared = {card: self._add_card() for card in cluster.cards}

    def send(self, source: int, target: int, size: int, ready_s: float) -> tuple[float, float]:
        """Return when the first byte of a message leaves, and when it is at the target."""
        way = self._ways.get((source, target)) or self._find_way(source, target)
        begin_s = max(ready_s, self._sends_free[way.sends])
        self._sends_free[way.sends] = begin_s + size / way.bandwidth_out
        return begin_s, begin_s + way.latency_s

    def receive(self, source: int, target: int, size: int, first_s: float) -> float:
        """Return when the last byte of a message is there, whose first byte is at the target's card."""
        way = self._ways.get((source, target)) or self._find_way(source, target)
        card_s = max(first_s, self._receives_free[way.receives]) + size / way.bandwidth_in
        landed_s = self._receives_free[way.receives] = max(card_s, first_s + size / way.bandwidth)
        return landed_s

    def _find_way(self, source: int, target: int) -> _Way:
        cluster = self._cluster
        bandwidth, latency_s = cluster.bandwidth_between(source, target), cluster.latency_between(source, target)
        if cluster.copies_between(source, target) is not None:  # the sender is busy with it until all of it is there
            way = _Way(source, target, math.inf, math.inf, math.inf, latency_s)
        elif cluster.link(source, target) is None:
            out, in_ = cluster.bandwidth_out(source), cluster.bandwidth_in(target)
            way = _Way(self._card(source), self._card(target), out, in_, bandwidth, latency_s)
        else:
            own = self._add_card()
            way = _Way(own, own, bandwidth, bandwidth, bandwidth, latency_s)
        self._ways[source, target] = way
        return way

    def _card(self, machine: int) -> int:
        """Return the number of a machine's card: its own, by which its copies go too, or one after all of these."""
        shared = self._cluster.shared_card(machine)
        return machine if shared is None else self._shared[shared]

    def _add_card(self) -> int:
        self._sends_free.append(0.0)
        self._receives_free.append(0.0)
        return len(self._sends_free) - 1
