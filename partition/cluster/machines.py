"""`Cluster`: the machines that a model is cut over - their speed and memory, and the network between them.

Every time that a step is made of is a constant here, so that `cutset probe` can measure it and a file can state it
(cluster_file.py); cost.py and simulator.py say how they add up.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from ...errors import UsageError

MACHINES_MAX = 4096


@dataclass(frozen=True)
class Rate:
    """What one class of operators runs at: FLOP/s, forward and backward, as the operator table counts FLOPs.

    start_s: what a box costs, however small, forward; gradient_s: what each gradient that it gives costs, backward.
    """

    flops_per_s: float
    back_flops_per_s: float
    start_s: float
    gradient_s: float


@dataclass(frozen=True)
class Machine:
    """One machine, or the cores that one worker has of it. The defaults are a desktop's core.

    flops_per_s: sustained on large matrix products; memory_bytes: for weights, gradients and activations. rates: of
    the classes of operators that run otherwise (cost.py says which classes there are). memory_bandwidth: bytes/s that
    an operator reads and writes which hardly computes.

    operator_s, gradient_s: start costs of the classes without a rate, as in `Rate`. segment_s, segment_back_s: what
    starting a segment costs, forward and backward. message_s: what the worker itself spends on a message, at either
    end, before and after the network has it. step_s: what else a step costs. cold: how much longer starting operators
    takes where a step waits for other machines, as a share: something else has had the core meanwhile.

    bandwidth_out, bandwidth_in, latency_s: of its network card; None as the cluster's.
    """

    name: str
    flops_per_s: float = 50e9
    memory_bytes: int = 8 << 30
    rates: Mapping[str, Rate] = field(default_factory=dict, hash=False)
    memory_bandwidth: float = 10e9
    operator_s: float = 5e-6
    gradient_s: float = 5e-6
    segment_s: float = 0.0
    segment_back_s: float = 0.0
    message_s: float = 0.0
    step_s: float = 0.0
    cold: float = 0.0
    bandwidth_out: float | None = None
    bandwidth_in: float | None = None
    latency_s: float | None = None

    def rate(self, kind: str) -> Rate:
        """The rate of a class of operators; where none is known, that of large matrix products."""
        return self.rates.get(kind) or self._rate

    @cached_property
    def _rate(self) -> Rate:
        return Rate(self.flops_per_s, self.flops_per_s, self.operator_s, self.gradient_s)


@dataclass(frozen=True)
class Link:
    """What goes from one machine to another when it does not go through their network cards.

    source, target: numbers of the machines; bandwidth in bytes/s, one way.
    """

    source: int
    target: int
    bandwidth: float
    latency_s: float


@dataclass(frozen=True)
class Cluster:
    """machines, and the link that each has to a switch: bandwidth each way (bytes/s), latency of a message (s).

    links: pairs of machines that differ from that, each way apart. The defaults are gigabit Ethernet.
    """

    machines: tuple[Machine, ...]
    bandwidth: float = 110e6
    latency_s: float = 2e-4
    links: tuple[Link, ...] = ()

    def __len__(self) -> int:
        return len(self.machines)

    def first(self, count: int) -> "Cluster":
        """The cluster of the first `count` machines."""
        links = tuple(link for link in self.links if max(link.source, link.target) < count)
        return replace(self, machines=self.machines[:count], links=links)

    def bandwidth_out(self, machine: int) -> float:
        """Bytes/s that a machine's card sends, to all others together."""
        own = self.machines[machine].bandwidth_out
        return self.bandwidth if own is None else own

    def bandwidth_in(self, machine: int) -> float:
        """Bytes/s that a machine's card receives, from all others together."""
        own = self.machines[machine].bandwidth_in
        return self.bandwidth if own is None else own

    def bandwidth_of(self, source: int, target: int) -> float:
        """Bytes/s from one machine to another while nothing else travels."""
        link = self.link(source, target)
        return min(self.bandwidth_out(source), self.bandwidth_in(target)) if link is None else link.bandwidth

    def latency_of(self, source: int, target: int) -> float:
        """Seconds that an empty message takes: half of each card's latency, which is that between two such cards."""
        link = self.link(source, target)
        return (self._latency(source) + self._latency(target)) / 2 if link is None else link.latency_s

    def link(self, source: int, target: int) -> Link | None:
        """The link of its own that a pair of machines has, this way."""
        return self._links.get((source, target))

    def _latency(self, machine: int) -> float:
        own = self.machines[machine].latency_s
        return self.latency_s if own is None else own

    @cached_property
    def _links(self) -> dict[tuple[int, int], Link]:
        return {(link.source, link.target): link for link in self.links}


def alike(count: int) -> Cluster:
    """A cluster of `count` machines of the default kind."""
    if not 1 <= count <= MACHINES_MAX:
        raise UsageError("E201", f"{count} machines; a plan needs 1 to {MACHINES_MAX}", fix="--machines 2")
    return Cluster(tuple(Machine(f"machine {i}") for i in range(count)))
