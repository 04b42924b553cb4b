"""Machines so slow that several of them pay."""

from cutset.partition.cluster.machines import Cluster, Machine


def slow_machines(*speeds: float, bandwidth: float = 1e7) -> Cluster:
    """Of these speeds, with a quick switch between them."""
    machines = tuple(Machine(f"m{i}", speed, operator_s=1e-5) for i, speed in enumerate(speeds))
    return Cluster(machines, bandwidth, latency_s=1e-5)
