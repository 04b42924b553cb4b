"""Even parts of a graph or hypergraph with little cut: METIS and Mt-KaHyPar from several starts, and then annealing.

METIS knows edges only, so a net becomes a clique of its pins, each edge with a share of the net's weight, and a wide
one a ring (Alpert and Kahng, 1995). What counts afterwards is the connectivity of the nets (km1): a net over m parts
costs (m - 1) x its weight, which for a graph is the edge cut. Mt-KaHyPar improves what METIS has found by V-cycles, and
finds parts by itself: which of the two comes to less differs by graph and number of parts.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ....errors import Infeasible
from ....partition.mincut.block_hypergraph import build_hypergraph
from ....partition.mincut.csr_graph import CsrGraph, Floats, build_csr_graph
from ....partition.mincut.kahypar import cut_hypergraph
from ....partition.mincut.metis import partition_metis
from .graphs.hypergraph import Hypergraph, compute_connectivity, compute_cut_weight, compute_imbalance

METIS_STARTS, KAHYPAR_STARTS = 4, 5
AGAIN = 4  # times that V-cycles begin with the best parts, each in another order
WIDE = 12  # pins above which a net becomes a ring
STEPS_A_VERTEX, MAX_STEPS = 120, 4_000_000
BATCH = 1 << 15
HOT, COLD = 0.2, 0.05  # temperatures in mean weights of a net


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
    starts = [partition_metis(edges, parts, seed=seed + 10 * i) for i in range(METIS_STARTS if parts > 1 else 1)]
    best = starts[0]
    if parts > 1 and graph.nets:
        weights = np.array([weights[0] for weights in graph.weights], dtype=np.float64)
        limit = _find_limit(weights, starts, parts, tolerance)
        best = _VCycles(graph, weights, parts, limit, seed).improve(starts, stop)
        best = _PartRefinement(graph, best, parts, limit).anneal(seed, stop)
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


def _find_limit(weights: Floats, starts: Sequence[Sequence[int]], parts: int, tolerance: float) -> float:
    """Return what a part may weigh: no less than what METIS came to, since parts cannot always be evener."""
    heaviest = min(float(np.bincount(start, weights, minlength=parts).max()) for start in starts)
    return max(tolerance * float(weights.sum()) / parts, heaviest)


class _VCycles:
    """Mt-KaHyPar from several starts. It is deterministic, so another start is another order of the vertices.

    weights: [n]. limit: of the weight of a part.
    """

    def __init__(self, graph: Hypergraph, weights: Floats, parts: int, limit: float, seed: int) -> None:
        self._graph, self._weights, self._parts, self._limit = graph, weights, parts, limit
        self._net = np.repeat(np.arange(len(graph.nets)), [len(net) for net in graph.nets])
        self._pin = np.array([pin for net in graph.nets for pin in net], dtype=np.int64)
        self._net_weights = np.array(graph.net_weights, dtype=np.float64)
        self._orders = np.random.default_rng(seed)

    def improve(self, starts: Sequence[Sequence[int]], stop: Callable[[], bool]) -> list[int]:
        """Return the best parts that come of none of these or of one, and are within the limit.

        First those without a start: where there is little time, they are no worse than Mt-KaHyPar by itself.
        """
        found = [list(start) for start in starts]
        for start in [*[None] * KAHYPAR_STARTS, *found]:
            if not stop():
                found.append(self._cycle(start))
        best = self._choose(found)
        for _ in range(AGAIN):
            if not stop():
                best = self._choose([best, self._cycle(best)])
        return best

    def _choose(self, found: Sequence[list[int]]) -> list[int]:
        """Return those of the smallest connectivity that are within the limit."""
        valid = [part_of for part_of in found if self._is_valid(part_of)]
        return min(valid, key=lambda part_of: (compute_connectivity(self._graph, part_of), part_of))

    def _cycle(self, start: Sequence[int] | None) -> list[int]:
        """Return the parts to which V-cycles come, from a start or from what is found without, in a new order."""
        place = self._orders.permutation(len(self._weights))
        weights = np.empty_like(self._weights)
        weights[place] = self._weights
        graph = build_hypergraph(weights, self._net, place[self._pin], self._net_weights)
        if start is None:
            begin = cut_hypergraph(graph, self._capacity)
        else:
            begin = np.empty(len(place), dtype=np.int64)
            begin[place] = start
        return [int(part) for part in cut_hypergraph(graph, self._capacity, start=begin)[place]]

    def _capacity(self, loads: Floats) -> Floats:
        """Return the limit of each part, of weights that are scaled; where nothing weighs anything there is none."""
        total = float(self._weights.sum())
        return np.full(self._parts, (self._limit / total if total else 1.0) * float(loads.sum()))

    def _is_valid(self, part_of: list[int]) -> bool:
        held = np.bincount(part_of, self._weights, minlength=self._parts)
        return len(set(part_of)) == self._parts and float(held.max()) <= self._limit


class _PartRefinement:
    """Parts that are being refined, and the pins of every net by part."""

    def __init__(self, graph: Hypergraph, part_of: list[int], parts: int, limit: float) -> None:
        self.graph, self.limit = graph, limit
        self.part_of = list(part_of)
        self.weight = [weights[0] for weights in graph.weights]
        self.held = [0] * parts
        self.members = [0] * parts
        for vertex, part in enumerate(part_of):
            self.held[part] += self.weight[vertex]
            self.members[part] += 1
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
