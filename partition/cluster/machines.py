"""`Cluster`: the machines that a model is cut over, their speed and memory, and the network between them.

Every time that a step consists of is a constant here, so that `cutset probe` can measure it and a file can state it
(cluster_file.py). cost_model.py and simulator.py say how they add up.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import permutations
from typing import NamedTuple

from ...errors import UsageError

MAX_MACHINES = 4096


@dataclass(frozen=True)
class Rate:
    """The speed of one class of operators: FLOP/s, forward and backward, as the operator table counts FLOPs.

    start_s: overhead of a box, forward. gradient_s: overhead of each gradient that it computes, backward.
    """

    flops_per_s: float
    backward_flops_per_s: float
    start_s: float
    gradient_s: float


class HeldBytes(NamedTuple):
    """The memory of a part of a model. steady: state, batches, and what is received, sent or read by later segments.

    working: activations and gradients, which come and go within a step.
    """

    steady: int
    working: int


class ProcessMemory(NamedTuple):
    """The memory of processes that work on one model: what they hold beside it, and `Machine.memory_ratio`."""

    process_bytes: int
    ratio: float


@dataclass(frozen=True)
class Machine:
    """One machine, or the cores that one worker has of it. The defaults are a desktop's core.

    flops_per_s: sustained on large matrix products. memory_bytes: for weights, gradients and activations. rates: of
    the classes of operators that run at another speed (operators/sharding/cost_class.py lists the classes).
    memory_bandwidth: bytes/s that operators with little compute read and write.

    operator_s, gradient_s: overheads of the classes without a rate, as in `Rate`. segment_s, segment_back_s: overhead
    of a segment, forward and backward. message_s: time that a worker spends on a message, at either end. step_s: other
    overhead of a step. cold: by which fraction starting the operators next to a wait takes longer in a step that waits
    for other machines, since other work has had the core meanwhile.

    ratios: of operators that were measured, by signature, of their halves, and of classes: how many times as long
    forward and backward take as all this says (cost_model.py).

    process_bytes: memory that a worker's process takes beside its part of a model: Python, torch, what they keep.
    memory_ratio: how many times as much as the memory model says activations and gradients of the model in question
    take there, since malloc keeps holes. unrolled_memory: both in the form in which recurrent operators are unrolled,
    None where that is not known.

    bandwidth_out, bandwidth_in, latency_s: of its network card; None for the cluster's.

    address: where ssh finds it, as in "user@lab3"; "" for a machine that is only planned for. python: the interpreter
    there that has cutset; "" for one at the same path as here.
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
    process_bytes: int = 0
    memory_ratio: float = 1.0
    unrolled_memory: ProcessMemory | None = None
    ratios: Mapping[str, tuple[float, float]] = field(default_factory=dict, hash=False)
    bandwidth_out: float | None = None
    bandwidth_in: float | None = None
    latency_s: float | None = None
    address: str = ""
    python: str = ""

    def rate(self, kind: str) -> Rate:
        """The rate of a class of operators; where none is known, that of large matrix products."""
        return self.rates.get(kind) or self._rate

    def needed_bytes(self, held: HeldBytes) -> int:
        """The memory that a process takes with a part of the model for which the memory model says so much."""
        return self.process_bytes + held.steady + round(self.memory_ratio * held.working)

    def for_unrolled_form(self) -> "Machine":
        """The same machine, with what is known of the model's unrolled form."""
        known = self.unrolled_memory
        return replace(self, process_bytes=known.process_bytes, memory_ratio=known.ratio) if known is not None else self

    @cached_property
    def _rate(self) -> Rate:
        return Rate(self.flops_per_s, self.flops_per_s, self.operator_s, self.gradient_s)


@dataclass(frozen=True)
class NetworkLink:
    """A link from one machine to another that bypasses their network cards.

    source, target: numbers of the machines. bandwidth: bytes/s, one way.
    """

    source: int
    target: int
    bandwidth: float
    latency_s: float


@dataclass(frozen=True)
class SharedCores:
    """Machines that are processes of one host and share its cores.

    machines: their numbers. cores: how many of them have a core, or cores, of their own while they compute at once.
    contention: how many times as long a machine computes while all cores are busy as while the others are idle: caches,
    memory and, of two threads of a core, the core itself are shared, too; measured of a task, also that machines wait
    for the slower one after each operator, now this one, now the other. copies_per_s: bytes/s at which a machine
    copies what it sends to another of these into memory that both share; None where it travels by a network.
    whole_speedup: how many times as fast a single process computes that has all the cores; None where nobody knows.
    network_per_s: bytes/s of what travels by a network that a core can handle at one end, where it does nothing else:
    it encrypts and sends, or receives and decrypts, while the message is on its way; None where nobody knows, and it
    takes no time.
    """

    machines: tuple[int, ...]
    cores: int
    contention: float = 1.0
    copies_per_s: float | None = None
    whole_speedup: float | None = None
    network_per_s: float | None = None

    def slowdown(self, busy: int, handling: float = 0.0) -> float:
        """How many times as long each of so many machines computes that compute at once.

        handling: cores that are busy with what travels by a network at that moment: idle ones first, and no more than
        half of all, since nobody has precedence.
        """
        cores = min(self.cores, len(self.machines))
        left = max(cores / 2, cores - handling)
        if len(self.machines) == 1:
            return 1.0 / (left * (self.whole_speedup or 1.0))
        crowded = (min(busy, self.cores) - 1) / (self.cores - 1) if self.cores > 1 else 1.0
        return max(1.0, busy / left) * (1.0 + crowded * (self.contention - 1.0) if busy > 1 else 1.0)


@dataclass(frozen=True)
class SharedCard:
    """Machines of one host, which have links among them, and share its network card for what goes elsewhere.

    name: of the host. machines: their numbers.
    """

    name: str
    machines: tuple[int, ...]


@dataclass(frozen=True)
class Cluster:
    """Machines, each with a link to a switch: bandwidth each way (bytes/s) and latency of a message (s).

    links: the pairs of machines that have a link of their own, in this direction. shared: machines that share cores,
    each at most once. cards: those that share a network card, each at most once. The defaults are gigabit Ethernet.
    """

    machines: tuple[Machine, ...]
    bandwidth: float = 110e6
    latency_s: float = 2e-4
    links: tuple[NetworkLink, ...] = ()
    shared: tuple[SharedCores, ...] = ()
    cards: tuple[SharedCard, ...] = ()

    def __len__(self) -> int:
        return len(self.machines)

    def select(self, numbers: Sequence[int]) -> "Cluster":
        """The cluster of some of the machines, in the order given, with the links among them.

        Cores of machines that are left out stay theirs.
        """
        position = {number: i for i, number in enumerate(numbers)}
        links = tuple(
            replace(link, source=position[link.source], target=position[link.target])
            for link in self.links
            if link.source in position and link.target in position
        )
        shared = list[SharedCores]()
        for cores in self.shared:
            kept = tuple(position[machine] for machine in cores.machines if machine in position)
            speedup = cores.whole_speedup if len(kept) == len(cores.machines) else None
            if len(kept) > 1 or (kept and cores.network_per_s is not None):
                shared.append(replace(cores, machines=kept, whole_speedup=speedup))
        kept_cards = [(card, sorted(position[m] for m in card.machines if m in position)) for card in self.cards]
        return replace(
            self,
            machines=tuple(self.machines[n] for n in numbers),
            links=links,
            shared=tuple(shared),
            cards=tuple(replace(card, machines=tuple(kept)) for card, kept in kept_cards if len(kept) > 1),
        )

    def alone(self, machine: int) -> "Cluster":
        """The cluster of a single machine while nothing else runs.

        It has the cores and the memory of those that share its cores, where it is known how fast it is with these.
        """
        single = self.select([machine])
        for cores in self.shared:
            if machine in cores.machines and cores.whole_speedup is not None:
                memory = sum(self.machines[number].memory_bytes for number in cores.machines)
                own = replace(self.machines[machine], memory_bytes=memory)
                return replace(single, machines=(own,), shared=(replace(cores, machines=(0,)),))
        return single

    def for_unrolled_form(self) -> "Cluster":
        """The same machines, with what is known of the model's unrolled form."""
        return replace(self, machines=tuple(machine.for_unrolled_form() for machine in self.machines))

    def bandwidth_out(self, machine: int) -> float:
        """Bytes/s that the card of a machine sends, to all others together."""
        own = self.machines[machine].bandwidth_out
        return self.bandwidth if own is None else own

    def bandwidth_in(self, machine: int) -> float:
        """Bytes/s that the card of a machine receives, from all others together."""
        own = self.machines[machine].bandwidth_in
        return self.bandwidth if own is None else own

    def bandwidth_between(self, source: int, target: int) -> float:
        """Bytes/s from one machine to another while nothing else travels."""
        link = self.link(source, target)
        return min(self.bandwidth_out(source), self.bandwidth_in(target)) if link is None else link.bandwidth

    def latency_between(self, source: int, target: int) -> float:
        """Seconds that an empty message takes: the mean of both cards' latencies."""
        link = self.link(source, target)
        return (self._latency(source) + self._latency(target)) / 2 if link is None else link.latency_s

    def copies_between(self, source: int, target: int) -> float | None:
        """Bytes/s at which a machine copies what it sends to another one; None where it travels."""
        return self._copies.get((source, target))

    def copying_s(self, source: int, target: int, size: int) -> float:
        """Seconds in which a machine copies bytes that it sends to another one; none where they travel."""
        copies_per_s = self.copies_between(source, target)
        return size / copies_per_s if copies_per_s is not None else 0.0

    def handling_s(self, machine: int, size: int) -> float:
        """Seconds of a core in which bytes that travel by a network are handled at one of their ends, a machine."""
        return self._handling.get(machine, 0.0) * size

    def on_network(self, bandwidth: float, latency_s: float, handled_per_s: float | None = None) -> "Cluster":
        """Return the same machines on a network by which all travels that they send each other, each with its cores.

        handled_per_s: `SharedCores.network_per_s`.
        """
        shared = tuple(
            replace(cores, copies_per_s=None, whole_speedup=None, network_per_s=handled_per_s) for cores in self.shared
        )
        return replace(self, bandwidth=bandwidth, latency_s=latency_s, links=(), shared=shared, cards=())

    def link(self, source: int, target: int) -> NetworkLink | None:
        """The link that a pair of machines has of its own, in this direction."""
        return self._links.get((source, target))

    def shared_card(self, machine: int) -> SharedCard | None:
        """The card that a machine shares with others; None where it has one of its own."""
        return self._cards.get(machine)

    def is_inside(self, link: NetworkLink) -> bool:
        """Whether a link is between machines that share a card."""
        card = self.shared_card(link.source)
        return card is not None and self.shared_card(link.target) is card

    def _latency(self, machine: int) -> float:
        own = self.machines[machine].latency_s
        return self.latency_s if own is None else own

    @cached_property
    def _handling(self) -> dict[int, float]:
        known = [(cores.machines, cores.network_per_s) for cores in self.shared]
        return {machine: 1 / rate for machines, rate in known if rate is not None for machine in machines}

    @cached_property
    def _copies(self) -> dict[tuple[int, int], float | None]:
        return {pair: shared.copies_per_s for shared in self.shared for pair in permutations(shared.machines, 2)}

    @cached_property
    def _cards(self) -> dict[int, SharedCard]:
        return {machine: card for card in self.cards for machine in card.machines}

    @cached_property
    def _links(self) -> dict[tuple[int, int], NetworkLink]:
        return {(link.source, link.target): link for link in self.links}


def uniform_cluster(count: int) -> Cluster:
    """A cluster of `count` machines of the default kind."""
    if not 1 <= count <= MAX_MACHINES:
        raise UsageError("E201", f"{count} machines; a plan needs 1 to {MAX_MACHINES}", fix="--machines 2")
    return Cluster(tuple(Machine(f"machine {i}") for i in range(count)))
