"""Which machines are near each other, and an order of machines that does not depend on the order in the file.

Where some pairs have faster links than others, as the processes or cards of one host, machines fall into groups: the
components that are left when the slower links are taken away (single-linkage clustering). Only links between pairs make
groups; cards of different speeds do not.
"""

import itertools
import re
from collections.abc import Sequence

import networkx as nx

from .machines import Cluster, Machine

MIN_RATIO = 1.5  # of the bandwidths inside and between groups; below it all machines are equally near


def find_hosts(cluster: Cluster) -> list[list[int]]:
    """Return groups of machines with faster links inside than between, each in rising order; one if there are none.

    Of several levels, as hosts in racks, these are the groups of the outermost.
    """
    return _split(cluster, range(len(cluster))) if cluster.links else [list(range(len(cluster)))]


def order_machines(cluster: Cluster) -> list[int]:
    """Return the machines, near ones beside each other, the fastest groups first and in a group the fastest machines.

    Machines that are alike in everything stand in the order of their names, in which numbers are numbers.
    """
    return _order(cluster, range(len(cluster)))


def _order(cluster: Cluster, numbers: Sequence[int]) -> list[int]:
    groups = _split(cluster, numbers) if cluster.links else []
    if len(groups) < 2 or len(groups) == len(numbers):
        return sorted(numbers, key=lambda n: _sort_key(cluster.machines[n]))
    ordered = [_order(cluster, group) for group in groups]
    ordered.sort(
        key=lambda group: (
            -sum(cluster.machines[n].flops_per_s for n in group),
            [_sort_key(cluster.machines[n]) for n in group],
        )
    )
    return [*itertools.chain(*ordered)]


def _sort_key(machine: Machine) -> tuple[object, ...]:
    """Faster and larger machines first; then by name."""
    cards = (machine.bandwidth_in or 0.0, machine.bandwidth_out or 0.0)
    name = [(not part.isdigit(), int(part) if part.isdigit() else part) for part in re.split(r"(\d+)", machine.name)]
    return (-machine.flops_per_s, -machine.memory_bytes, -machine.memory_bandwidth, -min(cards), -max(cards), name)


def _split(cluster: Cluster, numbers: Sequence[int]) -> list[list[int]]:
    """Split machines where their slowest links are taken away; one group where all are about equally fast."""
    pairs = {
        (a, b): min(cluster.bandwidth_between(a, b), cluster.bandwidth_between(b, a))
        for a, b in itertools.combinations(numbers, 2)
    }
    for slow, fast in itertools.pairwise(sorted(set(pairs.values()))):
        if fast < MIN_RATIO * slow:
            continue
        near: nx.Graph[int] = nx.Graph()
        near.add_nodes_from(numbers)
        near.add_edges_from(pair for pair, bandwidth in pairs.items() if bandwidth >= fast)
        groups = sorted(sorted(group) for group in nx.connected_components(near))
        if len(groups) > 1:
            return groups
    return [sorted(numbers)]
