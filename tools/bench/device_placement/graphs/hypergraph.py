"""`Hypergraph`: weighted vertices and nets, as partitioners exchange them. A graph is one whose nets have two pins."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Hypergraph:
    """weights: per vertex one number per balance constraint; sizes: per vertex what moving its state costs.

    nets: the vertices that each net joins, without repetition; net_weights: what cutting it costs.
    """

    weights: tuple[tuple[int, ...], ...]
    sizes: tuple[int, ...]
    nets: tuple[tuple[int, ...], ...]
    net_weights: tuple[int, ...]

    @property
    def is_graph(self) -> bool:
        """Whether every net joins two vertices."""
        return all(len(net) == 2 for net in self.nets)


def compute_cut_weight(graph: Hypergraph, part_of: Sequence[int]) -> int:
    """Return the weight of the nets that have pins in several parts; for a graph, the edge cut."""
    pairs = zip(graph.nets, graph.net_weights, strict=True)
    return sum(weight for net, weight in pairs if len({part_of[pin] for pin in net}) > 1)


def compute_connectivity(graph: Hypergraph, part_of: Sequence[int]) -> int:
    """Sum each net's weight times the parts that it spans less one (km1): the bytes sent if a net is a tensor."""
    pairs = zip(graph.nets, graph.net_weights, strict=True)
    return sum(weight * (len({part_of[pin] for pin in net}) - 1) for net, weight in pairs if net)


def compute_imbalance(graph: Hypergraph, part_of: Sequence[int], parts: int) -> float:
    """Return the weight of the heaviest part over an even one, for the worst constraint; 1.0 is even."""
    worst = 1.0
    for constraint in zip(*graph.weights, strict=True):
        of_part: Counter[int] = Counter()
        for part, weight in zip(part_of, constraint, strict=True):
            of_part[part] += weight
        total = sum(constraint)
        worst = max(worst, max(of_part.values()) * parts / total) if total else worst
    return worst
