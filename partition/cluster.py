"""`Cluster`: the machines that a model is cut over - their speed and memory, and the network between them."""

from dataclasses import dataclass

from .errors import UsageError

MACHINES_MAX = 4096


@dataclass(frozen=True)
class Machine:
    """flops_per_s: sustained on large operators; memory_bytes: for weights, gradients and activations."""

    name: str
    flops_per_s: float = 50e9
    memory_bytes: int = 8 << 30


@dataclass(frozen=True)
class Cluster:
    """machines, and the link that each has to a switch: bandwidth each way (bytes/s), latency of a message (s).

    operator_s: what starting one operator costs, however small. The defaults are a desktop's core and gigabit Ethernet.
    """

    machines: tuple[Machine, ...]
    bandwidth: float = 110e6
    latency_s: float = 2e-4
    operator_s: float = 5e-6

    def __len__(self) -> int:
        return len(self.machines)

    def first(self, count: int) -> "Cluster":
        """The cluster of the first `count` machines."""
        return Cluster(self.machines[:count], self.bandwidth, self.latency_s, self.operator_s)


def alike(count: int) -> Cluster:
    """A cluster of `count` machines of the default kind."""
    if not 1 <= count <= MACHINES_MAX:
        raise UsageError("E201", f"{count} machines; a plan needs 1 to {MACHINES_MAX}", fix="--machines 2")
    return Cluster(tuple(Machine(f"machine {i}") for i in range(count)))
