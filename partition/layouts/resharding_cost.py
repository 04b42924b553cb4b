"""The resharding cost: seconds on the network between the layouts of two operators, for all pairs at once.

Indices: p layouts of the operator that makes a tensor, q of the one that reads it, m machines. What the busiest machine
receives, or the senders send on average, is what `lower_cut` would make of it.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import permutations

import numpy as np
import numpy.typing as npt

from ..cluster.hierarchy import find_hosts
from ..cluster.machines import Cluster
from ..dataflow.reduction_split import summary_bytes
from ..ir.graph import Operand, TensorInfo
from .device_mesh import DeviceMesh, Ints
from .layout_space import LayoutSpace, Regions, input_regions, output_regions

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class TrafficWeights:
    """How a second on the network counts against one of compute. network: of sending bytes. latency: of a message."""

    network: float = 1.0
    latency: float = 1.0


EQUAL_WEIGHTS = TrafficWeights()
MIN_MESSAGE_S = 1e-6  # that a machine spends on a message at least: of equal layouts the one with fewer is better


class LayoutTraffic:
    """The network costs of layouts on one cluster.

    Of links between single pairs it is known which machines they make near, as on one host (`find_hosts`), and what
    they carry on average inside and between hosts; the rest is left to the simulator.
    """

    def __init__(self, cluster: Cluster, weights: TrafficWeights) -> None:
        self.weights = weights
        self.message_s = max(MIN_MESSAGE_S, *(machine.message_s for machine in cluster.machines))
        self.hosts = [np.array(host) for host in find_hosts(cluster)]
        numbers = range(len(cluster))
        host_of = {n: h for h, host in enumerate(self.hosts) for n in host.tolist()}
        self.host_of = np.array([host_of[n] for n in numbers])
        if len(self.hosts) == 1:
            self.between_hosts = self.inside_host = (
                _Network.of_pairs(cluster, permutations(numbers, 2)) if cluster.links else _Network.of_cards(cluster)
            )
            self._slowest = self.between_hosts.slowest(numbers)
            return
        pairs = list(permutations(numbers, 2))
        far = [(a, b) for a, b in pairs if host_of[a] != host_of[b]]
        self.between_hosts = replace(_Network.of_pairs(cluster, far), cards=_find_cards(cluster))
        near = [(a, b) for a, b in pairs if host_of[a] == host_of[b]]
        self.inside_host = _Network.of_pairs(cluster, near)

    def send_state(self, of: LayoutSpace, operand: Operand, info: TensorInfo) -> Floats:
        """A region of state that several machines read goes from its owner to the others, and its gradient returns.

        Owners of the model's parameters are many, so all readers' cards are taken to send alike: [p].
        """
        need = input_regions(of, operand, info)
        everywhere = need.points.sum(axis=1)
        union = _count_union(need, range(need.boxes.shape[1]))
        copies = far = everywhere - union
        if len(self.hosts) > 1:
            far = self._count_far_copies(need, everywhere / np.maximum(1, union))
        size = info.travelling_bytes / np.maximum(1, need.there.sum(axis=1))
        machines = of.mesh.machines
        near_s = (copies - far) * size / self.inside_host.slowest(machines)
        return self._weigh(near_s, far * size / self.between_hosts.slowest(machines), info)

    def _count_far_copies(self, need: Regions, readers: Floats) -> Floats:
        """Points of state that go to another host than that of their owner, who is any of their readers: [p].

        readers: machines that read a point, on average: [p].
        """
        far = np.zeros(len(readers))
        for host in self.hosts:
            here = need.points[:, host].sum(axis=1)
            readers_here = here / np.maximum(1, _count_union(need, host.tolist()))
            far += here * (1 - np.minimum(1, readers_here / np.maximum(1, readers)))
        return far

    def exchange_summaries(self, of: LayoutSpace, output: TensorInfo) -> Floats:
        """The summary of each part of non-additive loops goes to all others, and its gradient returns: [p]."""
        nest, shape = of.op.nest, of.mesh.shape
        cut_by = [[d for d, i in layout if i in nest.non_additive] for layout in of.layouts]
        parts = np.array([math.prod(shape[d] for d in dimensions) for dimensions in cut_by])
        if parts.max() == 1:
            return np.zeros(len(parts))
        apart = self._find_dimensions_between_hosts(of.mesh)
        near = np.array([math.prod(shape[d] for d in dimensions if d not in apart) for dimensions in cut_by])
        others = [i for i in range(len(nest.loops)) if i not in nest.non_additive]
        size = (of.boxes[:, :, others, 1] - of.boxes[:, :, others, 0]).prod(axis=2).max(axis=1) * summary_bytes(of.op)
        near_s = (near - 1) * size / self.inside_host.slowest(of.mesh.machines)
        far_s = (parts - near) * size / self.between_hosts.slowest(of.mesh.machines)
        return self._weigh(near_s, far_s, output)

    def between(self, maker: LayoutSpace, reader: LayoutSpace, operand: Operand, info: TensorInfo) -> Floats:
        """Seconds on the network between two operators, forward and back: [p, q]."""
        need = input_regions(reader, operand, info)
        expand = self.expand(output_regions(maker, info), need, info)
        summed = maker.parts > 1
        if not summed.any():
            return expand
        folded = np.minimum(self.direct(maker, need, info), expand + self.fold(maker, info)[:, None])
        return np.where(summed[:, None], folded, expand)

    def expand(self, have: Regions, need: Regions, info: TensorInfo) -> Floats:
        """From the machines that have a tensor to those that need it: [p, q]."""
        return self._transfer_seconds(have, need, np.ones(len(have.boxes), dtype=np.int64), info)

    def fold(self, maker: LayoutSpace, info: TensorInfo) -> Floats:
        """From the parts of a sum to the machines that own a share each: [p]."""
        if len(self.hosts) > 1:
            return np.array(
                [
                    self._seconds_between(maker.partial[p], maker.complete[p], info)[0, 0]
                    for p in range(len(maker.parts))
                ]
            )
        missing = maker.parts[:, None] * maker.complete.points - maker.partial.beside(maker.complete)
        received = (missing * info.travelling_bytes / self.between_hosts.bandwidth).max(axis=1)
        return self._weigh(0.0, received, info)

    def direct(self, maker: LayoutSpace, need: Regions, info: TensorInfo) -> Floats:
        """From the parts of a sum straight to its readers; infinite where some point has none, or several: [p, q]."""
        seconds = self._transfer_seconds(maker.partial, need, maker.parts, info)
        return np.where(need.once(info)[None], seconds, np.inf)

    def _transfer_seconds(self, have: Regions, need: Regions, parts: Ints, info: TensorInfo) -> Floats:
        """Seconds until every machine has what it needs and does not have: [p, q].

        parts: how many machines have a part of the sum at each point, [p]; 1 where there is no sum.
        """
        if len(self.hosts) > 1:
            return self._seconds_between(have, need, info)
        size = (parts[:, None, None] * need.points[None] - have.common(need)) * info.travelling_bytes
        received = (size / self.between_hosts.bandwidth).max(axis=2)
        sent = size.sum(axis=2) / np.maximum(1, have.there.sum(axis=1))[:, None] / self._slowest
        return self._weigh(0.0, np.maximum(received, sent), info)

    def _seconds_between(self, have: Regions, need: Regions, info: TensorInfo) -> Floats:
        """The same where it matters which machine sends to which: [p, q]. A row of pairs of layouts at a time."""
        same = self.host_of[:, None] == self.host_of
        apart, mates = ~same, same & ~np.eye(len(same), dtype=bool)
        rows = []
        for p in range(len(have.boxes)):
            size = have[p].between_machines(need)[0] * info.travelling_bytes  # [q, from, to]
            near_s, far_s = (
                _busiest_seconds(size * mates, self.inside_host),
                _busiest_seconds(size * apart, self.between_hosts),
            )
            messages = (size * (mates | apart) > 0).sum(axis=1).max(axis=1) * (2 if info.gradient else 1)
            rows.append(self._weigh(near_s, far_s, info) + self.weights.latency * self.message_s * messages)
        return np.stack(rows)

    def _weigh(self, near_s: Floats | float, far_s: Floats, info: TensorInfo) -> Floats:
        """Seconds of bytes and of a message, forward, and again backward where a gradient returns.

        near_s, far_s: of what crosses inside hosts and between them, at the same time.
        """
        latency_s = np.where(
            far_s > 0, self.between_hosts.latency_s, np.where(np.asarray(near_s) > 0, self.inside_host.latency_s, 0.0)
        )
        once = self.weights.network * np.maximum(near_s, far_s) + self.weights.latency * latency_s
        return once * (2.0 if info.gradient else 1.0)

    def _find_dimensions_between_hosts(self, mesh: DeviceMesh) -> set[int]:
        """The dimensions of a mesh along which machines of several hosts stand."""
        grid = self.host_of[list(mesh.machines)].reshape(mesh.shape)
        return {d for d in range(grid.ndim) if (grid != grid.take([0], axis=d)).any()}


@dataclass(frozen=True)
class _Network:
    """What machines receive from some of the others: bytes/s of each, [m], and the seconds of a message.

    cards: which machines share a card, [m, card], 1 for those of each; None where none do.
    """

    bandwidth: Floats
    latency_s: float
    cards: Floats | None = None

    def slowest(self, machines: Sequence[int]) -> float:
        """Bytes/s of the slowest machine where these receive alike; where none share a card, of all machines."""
        if self.cards is None:
            return float(self.bandwidth.min())
        cards = self.cards[list(machines)]
        return float((self.bandwidth[list(machines)] / (cards @ cards.sum(axis=0))).min())

    @staticmethod
    def of_cards(cluster: Cluster) -> "_Network":
        """The network between machines without links of their own."""
        latency_s = max(cluster.latency_s if m.latency_s is None else m.latency_s for m in cluster.machines)
        cards = [min(cluster.bandwidth_in(m), cluster.bandwidth_out(m)) for m in range(len(cluster))]
        return _Network(np.array(cards), latency_s)

    @staticmethod
    def of_pairs(cluster: Cluster, pairs: Iterable[tuple[int, int]]) -> "_Network":
        """What (source, target) pairs carry, the mean over the pairs of a machine; one without pairs needs none."""
        known: dict[int, list[float]] = {}
        latencies = [0.0]
        for source, target in pairs:
            known.setdefault(target, []).append(cluster.bandwidth_between(source, target))
            latencies.append(cluster.latency_between(source, target))
        means = [sum(known[m]) / len(known[m]) if m in known else math.inf for m in range(len(cluster))]
        return _Network(np.array(means), max(latencies))


def _busiest_seconds(size: Floats, network: _Network) -> Floats:
    """Seconds until the busiest card has sent or received: of bytes, [q, from, to], [q]."""
    received_s, sent_s = size.sum(axis=1) / network.bandwidth, size.sum(axis=2) / network.bandwidth
    if network.cards is not None:
        received_s, sent_s = received_s @ network.cards, sent_s @ network.cards
    return np.asarray(np.maximum(received_s, sent_s).max(axis=1))


def _find_cards(cluster: Cluster) -> Floats | None:
    """Return which machines share a card, [m, card]; None where each has its own."""
    if not cluster.cards:
        return None
    numbers = [cluster.shared_card(m) or m for m in range(len(cluster))]
    return np.array([[float(one == card) for card in dict.fromkeys(numbers)] for one in numbers])


def _count_union(need: Regions, machines: Sequence[int]) -> Ints:
    """Points of the smallest box around what some machines need: [p]."""
    boxes, there = need.boxes[:, machines], need.there[:, machines, None]
    low = np.where(there, boxes[..., 0], np.iinfo(np.int64).max).min(axis=1)
    high = np.where(there, boxes[..., 1], 0).max(axis=1)
    return np.asarray(np.prod(np.maximum(0, high - low), axis=-1))
