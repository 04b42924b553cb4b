"""`Exchange`: how often replicas exchange parameters with shards, and who sends how many bytes to whom in one exchange.

Shards hold contiguous ranges of the machines' parameters, one machine after the other, so a worker exchanges with the
shards whose ranges overlap its own (DistBelief, Dean et al., NIPS 2012, section 4.1: each machine of a replica talks to
the shards with its parameters alone).
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..cluster.machines import Cluster

Floats = npt.NDArray[np.float64]

UPDATE_PASSES = 5  # over the bytes of a push at its shard: gradient, parameter and state read, the last two written


@dataclass(frozen=True)
class Exchange:
    """How often a replica exchanges all its parameters with shards, in times a step.

    overlaps: whether a replica computes meanwhile. lock_step: whether all replicas wait for each other and exchange at
    once; backups: the slowest that they do not wait for, whose steps are lost. bounded: whether no replica takes more
    steps than the others in the long run. ring: whether replicas exchange among themselves, without shards: one alone
    has nothing to exchange.
    """

    pushes: float = 1.0
    fetches: float = 1.0
    overlaps: bool = False
    lock_step: bool = False
    backups: int = 0
    bounded: bool = False
    ring: bool = False


def count_push_bytes(
    parameters: Sequence[int], worker_on: Sequence[int], shard_on: Sequence[int], total: int
) -> Floats:
    """Return the bytes that one replica pushes from machine to machine, [from, to]; a fetch is the transpose.

    parameters: bytes of each worker of the replica. worker_on, shard_on: the machine of each worker and shard. total:
    machines of the cluster. What stays on a machine is on the diagonal.
    """
    out = np.zeros((total, total))
    ends = [0, *itertools.accumulate(parameters)]
    edges = [ends[-1] * s / len(shard_on) for s in range(len(shard_on) + 1)]
    for worker, (low, high) in enumerate(itertools.pairwise(ends)):
        for shard, (start, stop) in enumerate(itertools.pairwise(edges)):
            out[worker_on[worker], shard_on[shard]] += max(0.0, min(high, stop) - max(low, start))
    return out


def occupy_network(cluster: Cluster, sent: Floats) -> dict[str, float]:
    """Return how many seconds bytes from machine to machine occupy each card and link, by its name in words."""
    seconds: dict[str, float] = {}

    def add(place: str, size: float, bandwidth: float) -> None:
        seconds[place] = seconds.get(place, 0.0) + size / bandwidth

    names = [machine.name for machine in cluster.machines]
    shared = [cluster.shared_card(number) for number in range(len(names))]
    cards = [name if card is None else f"host {card.name}" for name, card in zip(names, shared, strict=True)]
    for source, target in zip(*np.nonzero(sent), strict=True):
        if source == target:
            continue
        size = float(sent[source, target])
        if cluster.link(source, target) is not None:
            link = f"the link from {names[source]} to {names[target]}"
            add(link, size, cluster.bandwidth_between(source, target))
        else:
            add(f"the network card of {cards[source]}, sending", size, cluster.bandwidth_out(source))
            add(f"the network card of {cards[target]}, receiving", size, cluster.bandwidth_in(target))
    return seconds


def time_push(cluster: Cluster, sent: Floats) -> float:
    """Return the seconds of a push on an idle network: the busiest card, the way, and the busiest shard's update."""
    if not sent.any():
        return 0.0
    machines = range(len(cluster))
    ways = [cluster.latency_between(a, b) for a, b in zip(*np.nonzero(sent), strict=True) if a != b]
    updates = [float(sent[:, m].sum()) * UPDATE_PASSES / cluster.machines[m].memory_bandwidth for m in machines]
    return max(occupy_network(cluster, sent).values(), default=0.0) + max(ways, default=0.0) + max(updates)


def time_fetch(cluster: Cluster, pushed: Floats) -> float:
    """Return the seconds of a fetch on an idle network: the way of the request, and that of the bytes back."""
    ways = [
        cluster.latency_between(a, b) + cluster.latency_between(b, a)
        for a, b in zip(*np.nonzero(pushed), strict=True)
        if a != b
    ]
    return max(occupy_network(cluster, pushed.T).values(), default=0.0) + max(ways, default=0.0)
