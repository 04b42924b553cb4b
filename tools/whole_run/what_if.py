"""What if: the same plan on other machines or another network, beside the plan as it is."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from ...errors import Infeasible, UsageError
from ...partition.cluster.hierarchy import order_machines
from ...partition.cluster.machines import Cluster
from ...partition.cluster.quantities import Bandwidth


@dataclass(frozen=True)
class ClusterChange:
    """A change of a cluster, in words."""

    words: str
    cluster: Cluster


@dataclass(frozen=True)
class ChangeEffect:
    """What a change gives: samples/s, and beside that of the plan as it is. failure: why there is no plan, if so."""

    words: str
    samples_per_s: float
    ratio: float
    failure: str = ""


def list_changes(cluster: Cluster, *, faster_network: str | None, add_machine: bool) -> Iterator[ClusterChange]:
    """Yield the changes that are asked for. UsageError where the network's speed cannot be read."""
    if faster_network is not None:
        bandwidth = read_bandwidth(faster_network)
        unused = any(one.copies_per_s is not None and len(one.machines) == len(cluster) for one in cluster.shared)
        faster = speed_up_network(cluster, bandwidth)
        note = " (which is no faster than the present one)" if faster == cluster else ""
        note = " (which these processes of one machine do not use)" if unused else note
        written = Bandwidth.format(bandwidth)
        speed = written if isinstance(written, str) else faster_network.strip()
        yield ClusterChange(f"a network of {speed}{note}", faster)
    if add_machine:
        best = cluster.machines[order_machines(cluster)[0]]
        more = replace(best, name=f"one more {best.name}", address="")
        yield ClusterChange(f"one more machine like {best.name}", replace(cluster, machines=(*cluster.machines, more)))


def read_bandwidth(text: str) -> float:
    """Return bytes/s of a text such as "10 Gbit/s" or "10gbit". UsageError where it is none."""
    for way in (text, f"{text}/s"):
        try:
            return float(Bandwidth.parse(way))
        except ValueError as error:
            reason = error
    raise UsageError("E247", f"--faster-network {text} {reason}", fix="--faster-network '10 Gbit/s'")


def speed_up_network(cluster: Cluster, bandwidth: float) -> Cluster:
    """Return the cluster whose cards and links carry so much at least."""
    machines = tuple(
        replace(
            machine,
            bandwidth_out=None if machine.bandwidth_out is None else max(machine.bandwidth_out, bandwidth),
            bandwidth_in=None if machine.bandwidth_in is None else max(machine.bandwidth_in, bandwidth),
        )
        for machine in cluster.machines
    )
    links = tuple(replace(link, bandwidth=max(link.bandwidth, bandwidth)) for link in cluster.links)
    return replace(cluster, machines=machines, links=links, bandwidth=max(cluster.bandwidth, bandwidth))


def try_changes(
    changes: Sequence[ClusterChange], measure: Callable[[Cluster], float], samples_per_s: float
) -> Iterator[ChangeEffect]:
    """Yield what each change gives. measure: plans for a cluster and returns samples/s; samples_per_s: as it is."""
    for change in changes:
        try:
            found = measure(change.cluster)
        except Infeasible as error:
            yield ChangeEffect(change.words, 0.0, 0.0, error.facts)
        else:
            yield ChangeEffect(change.words, found, found / samples_per_s)
