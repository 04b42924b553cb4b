"""Which machines are near each other, and an order of machines that does not depend on the order in the file.

Where some pairs have faster links than others, as the processes or GPUs of one host, machines fall into groups: the
components that are left when the slower links are taken away (single-linkage clustering). Only links between pairs make
groups; cards of different speeds do not.
"""

import itertools
import re
from collections.abc import Callable, Sequence
from functools import lru_cache

import networkx as nx

from .machines import Cluster, HeldBytes, Machine

MIN_RATIO = 1.5  # of the bandwidths inside and between groups; below it all machines are equally near


@lru_cache(maxsize=64)
def find_hosts(cluster: Cluster) -> tuple[tuple[int, ...], ...]:
    """Return groups of machines with faster links inside than between, each in rising order; one if there are none.

    Of several levels, as hosts in racks, these are the groups of the outermost.
    """
    return _split(cluster, range(len(cluster))) if cluster.links else (tuple(range(len(cluster))),)


def order_machines(cluster: Cluster) -> list[int]:
    """Return the machines, near ones beside each other, the fastest groups first and in a group the fastest machines.

    Machines that are alike in everything stand in the order of their names, in which numbers are numbers.
    """
    return _order(cluster, range(len(cluster)))


def choose_machines(cluster: Cluster, count: int, keep: Sequence[int] = ()) -> list[int]:
    """Choose so many machines, in rising order: those to keep, then the fastest; of machines alike, near ones."""
    return _choose(cluster, count, keep, lambda machine: (-machine.flops_per_s, -machine.memory_bytes))


def choose_large_machines(cluster: Cluster, count: int, model_bytes: HeldBytes, keep: Sequence[int] = ()) -> list[int]:
    """Choose so many machines for a model that does not fit on the fastest: those to keep, then those that hold it.

    model_bytes: of the whole model on one machine, by the memory model. Of machines that hold it alone, the fastest
    come first; the largest of the others come after them.
    """

    def order(machine: Machine) -> tuple[float, ...]:
        holds = machine.needed_bytes(model_bytes) <= machine.memory_bytes
        speed, size = -machine.flops_per_s, -float(machine.memory_bytes)
        return (0.0, speed, size) if holds else (1.0, size, speed)

    return _choose(cluster, count, keep, order)


def have_room(cluster: Cluster, model_bytes: HeldBytes) -> bool:
    """Whether some machine holds a model of so many bytes alone, or all together have the memory for it."""
    room = sum(max(0, one.memory_bytes - one.process_bytes) for one in cluster.machines)
    needed = model_bytes.steady + min(one.memory_ratio for one in cluster.machines) * model_bytes.working
    alone = any(one.needed_bytes(model_bytes) <= one.memory_bytes for one in cluster.machines)
    return alone or (len(cluster) > 1 and room >= needed)


def _choose(
    cluster: Cluster, count: int, keep: Sequence[int], order: Callable[[Machine], tuple[float, ...]]
) -> list[int]:
    place = {number: i for i, number in enumerate(order_machines(cluster))}
    others = [n for n in range(len(cluster)) if n not in keep]
    others.sort(key=lambda n: (order(cluster.machines[n]), place[n]))
    return sorted([*keep, *others[: max(0, count - len(keep))]])


def _order(cluster: Cluster, numbers: Sequence[int]) -> list[int]:
    groups = _split(cluster, numbers) if cluster.links else ()
    if len(groups) < 2 or len(groups) == len(numbers):
        return sorted(numbers, key=lambda n: _sort_key(cluster, n))
    ordered = [_order(cluster, group) for group in groups]
    ordered.sort(
        key=lambda group: (
            -sum(cluster.machines[n].flops_per_s for n in group),
            [_sort_key(cluster, n) for n in group],
        )
    )
    return [*itertools.chain(*ordered)]


def _sort_key(cluster: Cluster, number: int) -> tuple[object, ...]:
    """Faster and larger machines first, then those with faster cards; then by name."""
    machine, cards = cluster.machines[number], (cluster.bandwidth_in(number), cluster.bandwidth_out(number))
    parts = [part for part in re.split(r"([0-9]+)", machine.name) if part]
    digits = [part.lstrip("0") for part in parts]
    name = [
        (False, len(number), number) if part[0] in "0123456789" else (True, 0, part)
        for part, number in zip(parts, digits, strict=True)
    ]
    speeds = (-machine.flops_per_s, -machine.memory_bytes, -machine.memory_bandwidth)
    latency_s = cluster.latency_s if machine.latency_s is None else machine.latency_s
    return (*speeds, -min(cards), -max(cards), latency_s, name, machine.name)


def _split(cluster: Cluster, numbers: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Split machines where their slowest links are taken away; one group where all are about equally fast."""
    pairs = {
        (a, b): min(_link_bandwidth(cluster, a, b), _link_bandwidth(cluster, b, a))
        for a, b in itertools.combinations(numbers, 2)
    }
    for slow, fast in itertools.pairwise(sorted(set(pairs.values()))):
        if fast < MIN_RATIO * slow:
            continue
        near: nx.Graph[int] = nx.Graph()
        near.add_nodes_from(numbers)
        near.add_edges_from(pair for pair, bandwidth in pairs.items() if bandwidth >= fast)
        groups = sorted(tuple(sorted(group)) for group in nx.connected_components(near))
        if len(groups) > 1:
            return tuple(groups)
    return (tuple(sorted(numbers)),)


def _link_bandwidth(cluster: Cluster, source: int, target: int) -> float:
    """Return what a pair's link carries, or where it has none its part of the cluster's cards, whatever its own are."""
    link = cluster.link(source, target)
    if link is not None:
        return link.bandwidth
    cards = (cluster.shared_card(machine) for machine in (source, target))
    return cluster.bandwidth / max(1 if card is None else len(card.machines) for card in cards)
