"""Even parts of a graph or hypergraph with little cut: METIS from several seeds, then annealing on the nets themselves.

METIS knows edges only, so a net becomes a clique of its pins, each edge with a share of the net's weight, and a wide
one a ring (Alpert and Kahng, 1995). What counts afterwards is the connectivity of the nets (km1): a net over m parts
costs (m - 1) x its weight, which for a graph is the edge cut.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ....errors import Infeasible
from ....partition.mincut.csr_graph import CsrGraph, build_csr_graph
from ....partition.mincut.metis import partition_metis
from .graphs.hypergraph import Hypergraph, compute_connectivity, compute_cut_weight, compute_imbalance

STARTS = 4
WIDE = 12  # pins above which a net becomes a ring
STEPS_A_VERTEX, MAX_STEPS = 120, 4_000_000
BATCH = 1 << 15
HOT, COLD = 0.6, 0.05  # temperatures in mean weights of a net


@dataclass(frozen=True)
class HypergraphPartition:
    """Parts of a hypergraph. part_of: by vertex; cut: the weight of cut nets; imbalance: heaviest over even part."""

    part_of: tuple[int, ...]
    cut: int
    connectivity: int
    imbalance: float


def partition_hypergraph(
    graph: Hypergraph, parts: int, *, seed: int = 0, tolerance: float = 1.03, stop: Callable[[], bool] = lambda: False
) -> HypergraphPartition:
    """Return the best parts of several starts. tolerance: the allowed weight of a part over an even one.

    Only the first balance constraint is kept to. Raises Infeasible (E401) with fewer vertices than parts.
    """
    count = len(graph.weights)
    if parts > count:
        raise Infeasible("E401", f"{parts} parts of {count} vertices", fix=f"--machines {max(1, count)} or fewer")
    edges = _expand_nets(graph)
    answers = [partition_metis(edges, parts, seed=seed + 10 * start) for start in range(STARTS if parts > 1 else 1)]
    best = min(answers, key=lambda part_of: (compute_connectivity(graph, part_of), part_of))
    if parts > 1 and graph.nets:
        best = _PartRefinement(graph, best, parts, tolerance).anneal(seed, stop)
    return HypergraphPartition(
        tuple(best),
        compute_cut_weight(graph, best),
        compute_connectivity(graph, best),
        compute_imbalance(graph, best, parts),
    )


def _expand_nets(graph: Hypergraph) -> CsrGraph:
    """Return every net as edges between its pins."""
    a: list[int] = []
    b: list[int] = []
    weight: list[float] = []
    for pins, net_weight in zip(graph.nets, graph.net_weights, strict=True):
        wide = len(pins) > WIDE
        pairs = [
            (pin, other)
            for i, pin in enumerate(pins)
            for other in ((*pins[i + 1 :], pins[0])[:1] if wide else pins[i + 1 :])
        ]
        for pin, other in pairs:
            a.append(pin)
            b.append(other)
            weight.append(net_weight / (2 if wide else len(pins) - 1))
    loads = np.array([max(weights[0], 0) for weights in graph.weights], dtype=np.float64)
    return build_csr_graph(loads, np.array(a, dtype=np.int64), np.array(b, dtype=np.int64), np.array(weight))


class _PartRefinement:
    """Parts that are being refined, and the pins of every net by part."""

    def __init__(self, graph: Hypergraph, part_of: list[int], parts: int, tolerance: float) -> None:
        self.graph = graph
        self.part_of = list(part_of)
        self.weight = [weights[0] for weights in graph.weights]
        self.held = [0] * parts
        self.members = [0] * parts
        for vertex, part in enumerate(part_of):
            self.held[part] += self.weight[vertex]
            self.members[part] += 1
        # No tighter than what METIS came to: its parts cannot always be evener.
        self.limit = max(tolerance * sum(self.held) / parts, *self.held)
        self.nets_of: list[list[tuple[list[int], int]]] = [[] for _ in graph.weights]
        self.near: list[list[int]] = [[] for _ in graph.weights]
        for pins, weight in zip(graph.nets, graph.net_weights, strict=True):
            at = [0] * parts
            for pin in pins:
                at[part_of[pin]] += 1
                self.nets_of[pin].append((at, weight))
                self.near[pin].extend(pins[:32])

    def anneal(self, seed: int, stop: Callable[[], bool]) -> list[int]:
        """Anneal, and return the parts of the smallest connectivity found."""
        rng = np.random.default_rng(seed)
        joined = [vertex for vertex, near in enumerate(self.near) if len(near) > 1]
        cost = best_cost = compute_connectivity(self.graph, self.part_of)
        best = list(self.part_of)
        mean = sum(self.graph.net_weights) / len(self.graph.net_weights)
        batches = max(1, min(MAX_STEPS, STEPS_A_VERTEX * len(joined)) // BATCH) if joined else 0
        for temperature in np.geomspace(HOT, COLD, batches).tolist():
            if stop():
                break
            cost += self._batch(rng, joined, temperature * mean)
            if cost < best_cost:
                best_cost, best = cost, list(self.part_of)
        return best

    def _batch(self, rng: np.random.Generator, joined: list[int], temperature: float) -> int:
        """Propose BATCH moves of a vertex to a neighbour's part; return the change of the connectivity."""
        part_of, held, members, near = self.part_of, self.held, self.members, self.near
        change = 0
        chosen = rng.integers(0, len(joined), BATCH).tolist()
        places = rng.random(BATCH).tolist()
        rises = (-np.log(1.0 - rng.random(BATCH)) * temperature).tolist()
        for number, place, rise in zip(chosen, places, rises, strict=True):
            vertex = joined[number]
            here = part_of[vertex]
            there = part_of[near[vertex][int(place * len(near[vertex]))]]
            if there == here or members[here] == 1 or held[there] + self.weight[vertex] > self.limit:
                continue
            more = 0
            for at, weight in self.nets_of[vertex]:
                if at[here] == 1:
                    more -= weight
                if not at[there]:
                    more += weight
            if more > rise:
                continue
            change += more
            part_of[vertex] = there
            held[here] -= self.weight[vertex]
            held[there] += self.weight[vertex]
            members[here] -= 1
            members[there] += 1
            for at, _ in self.nets_of[vertex]:
                at[here] -= 1
                at[there] += 1
        return change
