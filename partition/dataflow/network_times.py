"""`NetworkTimes`: when messages leave and land, one after the other on each network card and link."""

from ..cluster.machines import Cluster


class NetworkTimes:
    """When each card and link of a cluster is free again.

    A card sends messages in the order in which they are ready, and receives them in that of their first bytes. A link
    of a pair of machines is a card of its own at both ends.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._sends_free, self._receives_free = dict[object, float](), dict[object, float]()

    def send(self, source: int, target: int, size: int, ready_s: float) -> tuple[float, float]:
        """Return when the first byte of a message leaves, and when it is at the target."""
        cluster = self._cluster
        linked = cluster.link(source, target) is not None
        card = (source, target) if linked else source
        begin_s = max(ready_s, self._sends_free.get(card, 0.0))
        bandwidth = cluster.bandwidth_between(source, target) if linked else cluster.bandwidth_out(source)
        self._sends_free[card] = begin_s + size / bandwidth
        return begin_s, begin_s + cluster.latency_between(source, target)

    def receive(self, source: int, target: int, size: int, first_s: float) -> float:
        """Return when the last byte of a message is there, whose first byte is at the target's card."""
        cluster = self._cluster
        linked = cluster.link(source, target) is not None
        card = (source, target) if linked else target
        through_s = size / cluster.bandwidth_between(source, target)
        card_s = through_s if linked else size / cluster.bandwidth_in(target)
        landed_s = max(max(first_s, self._receives_free.get(card, 0.0)) + card_s, first_s + through_s)
        self._receives_free[card] = landed_s
        return landed_s
