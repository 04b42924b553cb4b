"""`LayerGroups`: layers that must share a device, and the nets between them: what placing layers on devices is about.

A net is a layer's output: its pins are the groups of the producer and of the consumers. A set of groups on one
accelerator has the load: its times, plus the cost of every net with pins inside and outside. That says the same as
counting outputs once and foreign inputs once (`device_loads`), and says it without directions.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import networkx as nx

from .graphs.layer_graph import LayerGraph


@dataclass(frozen=True)
class LayerGroups:
    """Per group: times, bytes, whether an accelerator can run it. nets: (pins, cost), of two pins or more.

    order: (before, after) pairs that contiguous placements obey. group_of: per layer its group.
    """

    time: tuple[float, ...]
    cpu_time: tuple[float, ...]
    size_bytes: tuple[float, ...]
    on_accelerator: tuple[bool, ...]
    nets: tuple[tuple[tuple[int, ...], float], ...]
    order: frozenset[tuple[int, int]]
    group_of: tuple[int, ...]
    accelerators: int
    cpus: int
    memory_bytes: float

    @property
    def count(self) -> int:
        """The number of groups."""
        return len(self.time)

    def loads(self, device_of: Sequence[int]) -> list[float]:
        """Return the load of every device, accelerators first, with group g on device_of[g]."""
        loads = [0.0] * (self.accelerators + self.cpus)
        for group, device in enumerate(device_of):
            loads[device] += self.time[group] if device < self.accelerators else self.cpu_time[group]
        for pins, cost in self.nets:
            devices = {device_of[pin] for pin in pins}
            for device in devices if len(devices) > 1 else ():
                loads[device] += cost if device < self.accelerators else 0.0
        return loads

    def fits(self, device_of: Sequence[int]) -> bool:
        """Whether every accelerator can run and hold what is on it."""
        held = [0.0] * self.accelerators
        for group, device in enumerate(device_of):
            if device >= self.accelerators:
                continue
            if not self.on_accelerator[group]:
                return False
            held[device] += self.size_bytes[group]
        return max(held, default=0.0) <= self.memory_bytes


def group_layers(graph: LayerGraph) -> LayerGroups:
    """Make one group of each colour, and one of each layer without a colour.

    The order is that of the forward edges; a group of backward layers alone stands where its edges, turned round, put
    it (the benchmark's own rule for such groups).
    """
    numbers: dict[tuple[str, int], int] = {}
    group_of = []
    for i, layer in enumerate(graph.layers):
        key = ("layer", i) if layer.colour is None else ("colour", layer.colour)
        group_of.append(numbers.setdefault(key, len(numbers)))
    forward = {group for group, layer in zip(group_of, graph.layers, strict=True) if not layer.backward}
    order = set()
    for source, target in graph.edges:
        before, after = group_of[source], group_of[target]
        turned = graph.layers[source].backward and graph.layers[target].backward
        if before == after or (turned and before in forward and after in forward):
            continue
        if turned:
            order.add((after, before))
        elif not graph.layers[target].backward:
            order.add((before, after))
    nets = [
        ({group_of[i], *(group_of[user] for user in users)}, graph.layers[i].output_time)
        for i, users in enumerate(graph.consumers())
    ]
    single = LayerGroups(
        time=tuple(layer.time for layer in graph.layers),
        cpu_time=tuple(layer.cpu_time for layer in graph.layers),
        size_bytes=tuple(layer.size_bytes for layer in graph.layers),
        on_accelerator=tuple(layer.on_accelerator for layer in graph.layers),
        nets=(),
        order=frozenset(),
        group_of=tuple(range(len(graph.layers))),
        accelerators=graph.accelerators,
        cpus=graph.cpus,
        memory_bytes=graph.memory_bytes,
    )
    groups = _sum_groups(single, group_of)
    return _replace_nets(groups, nets, order)


def merge_groups(groups: LayerGroups, together: Iterable[Sequence[int]]) -> LayerGroups:
    """Merge the groups of each sequence, so that they share a device."""
    near: nx.Graph[int] = nx.Graph()
    near.add_nodes_from(range(groups.count))
    for several in together:
        near.add_edges_from((several[0], other) for other in several[1:])
    into = [0] * groups.count
    for number, component in enumerate(sorted(nx.connected_components(near), key=min)):
        for group in component:
            into[group] = number
    if len(set(into)) == groups.count:
        return groups
    order = {(into[a], into[b]) for a, b in groups.order if into[a] != into[b]}
    return _replace_nets(
        _sum_groups(groups, into), [({into[pin] for pin in pins}, c) for pins, c in groups.nets], order
    )


def merge_cycles(groups: LayerGroups) -> LayerGroups:
    """Merge the groups of each cycle of the order, so that they share a device."""
    order: nx.DiGraph[int] = nx.DiGraph(groups.order)
    return merge_groups(groups, [sorted(c) for c in nx.strongly_connected_components(order) if len(c) > 1])


def merge_expensive_nets(groups: LayerGroups, bound: float) -> LayerGroups:
    """Merge the pins of the nets that no placement of a load below `bound` cuts.

    A cut net costs one of its pins' accelerators its cost beside the pin's time; with two CPUs or more it may also lie
    between CPUs, unless a pin is too slow there.
    """
    dear = []
    for pins, cost in groups.nets:
        on_cpus = groups.cpus > 1 and all(groups.cpu_time[pin] < bound for pin in pins)
        if cost + min(groups.time[pin] for pin in pins) >= bound and not on_cpus:
            dear.append(pins)
    return merge_groups(groups, dear)


def merge_idle_groups(groups: LayerGroups) -> LayerGroups:
    """Merge groups of no time with a neighbour, as far as no optimum is lost by that.

    So they may where the neighbour is the only one before them, or the only one behind them, and is a pin of all their
    nets. Groups of bytes stay alone where memory is short.
    """
    while True:
        pairs = _find_idle_pairs(groups)
        if not pairs:
            return groups
        groups = merge_groups(groups, pairs)


def _find_idle_pairs(groups: LayerGroups) -> list[tuple[int, int]]:
    """Return idle groups with the neighbour that they may be merged with, every group in one pair at most."""
    roomy = sum(groups.size_bytes) <= groups.memory_bytes
    before: list[set[int]] = [set() for _ in range(groups.count)]
    behind: list[set[int]] = [set() for _ in range(groups.count)]
    for a, b in groups.order:
        before[b].add(a)
        behind[a].add(b)
    shared: list[set[int] | None] = [None] * groups.count  # pins that all nets of a group have; None where it has none
    for pins, _ in groups.nets:
        for pin in pins:
            known = shared[pin]
            shared[pin] = set(pins) if known is None else known & set(pins)
    pairs = []
    taken: set[int] = set()
    for group in range(groups.count):
        if groups.time[group] or groups.cpu_time[group] or (groups.size_bytes[group] and not roomy):
            continue
        inside = shared[group]
        for others in (before[group], behind[group]):
            other = min(others) if len(others) == 1 else group
            allowed = groups.on_accelerator[group] or not groups.on_accelerator[other]
            if not taken & {group, other} and other != group and allowed and (inside is None or other in inside):
                pairs.append((group, other))
                taken |= {group, other}
    return pairs


def _sum_groups(groups: LayerGroups, into: Sequence[int]) -> LayerGroups:
    """Sum times and bytes over groups with the same number in `into`; leave nets and order empty."""
    count = max(into) + 1
    time, cpu_time, size = [0.0] * count, [0.0] * count, [0.0] * count
    on_accelerator = [True] * count
    for group, number in enumerate(into):
        time[number] += groups.time[group]
        cpu_time[number] += groups.cpu_time[group]
        size[number] += groups.size_bytes[group]
        on_accelerator[number] &= groups.on_accelerator[group]
    return LayerGroups(
        time=tuple(time),
        cpu_time=tuple(cpu_time),
        size_bytes=tuple(size),
        on_accelerator=tuple(on_accelerator),
        nets=(),
        order=frozenset(),
        group_of=tuple(into[group] for group in groups.group_of),
        accelerators=groups.accelerators,
        cpus=groups.cpus,
        memory_bytes=groups.memory_bytes,
    )


def _replace_nets(
    groups: LayerGroups, nets: Sequence[tuple[set[int], float]], order: Iterable[tuple[int, int]]
) -> LayerGroups:
    """Return the groups with these nets; nets of one pin or no cost are dropped, nets of the same pins are added up."""
    costs: dict[tuple[int, ...], float] = {}
    for pins, cost in nets:
        key = tuple(sorted(pins))
        if len(key) > 1 and cost > 0:
            costs[key] = costs.get(key, 0.0) + cost
    return replace(groups, nets=tuple(costs.items()), order=frozenset(order))
