"""METIS through pymetis, with what goes in sanitised and what comes out checked and repaired.

METIS fails silently in known ways: empty parts on small dense graphs, one part for all with a dominant vertex, overflow
of large weights. Its answer is a start, judged by the simulator; here it only has to be a partition without empty
parts.
"""

from collections.abc import Sequence

import networkx as nx
import numpy as np
import pymetis

from .errors import Infeasible

WEIGHT_MAX = 1_000_000  # ratio of weights beyond which METIS loses its way
TOTAL_MAX = 2**31 - 1
SEEDS = 3
SMALL = 50  # blocks a part below which recursive bisection is the safer method


def metis(graph: nx.Graph, parts: int, *, seed: int, shares: Sequence[float] | None = None) -> list[int]:
    """A part for each vertex 0..n-1, none empty. shares: each part's share of the FLOPs, equal by default.

    Node attribute `flops` and edge attribute `bytes` are the weights. Raises Infeasible with fewer vertices than parts.
    """
    count = graph.number_of_nodes()
    if count < parts:
        raise Infeasible(
            "E401", f"{parts} parts of a graph of {count} blocks", fix=f"--machines {max(1, count)} or fewer"
        )
    if parts == 1:
        return [0] * count
    adjacency, edge_weights = _adjacency(graph)
    weights = _integers([graph.nodes[v]["flops"] for v in range(count)])
    best: tuple[int, list[int]] | None = None
    for attempt in range(SEEDS):
        answer = pymetis.part_graph(
            parts,
            adjacency=adjacency,
            vweights=weights,
            eweights=edge_weights,
            tpwgts=[float(s) for s in shares] if shares is not None else None,
            recursive=parts <= 8 or count < SMALL * parts,
            options=pymetis.Options(seed=seed + attempt),
        )
        parts_of = repair(graph, [int(p) for p in answer.vertex_part], parts)
        cut = _cut_bytes(graph, parts_of)
        if best is None or cut < best[0]:
            best = (cut, parts_of)
    assert best is not None
    return best[1]


def _adjacency(graph: nx.Graph) -> tuple[pymetis.CSRAdjacency, list[int]]:
    """Symmetric, without loops or repeats (networkx sees to that), neighbours in order."""
    starts, targets, sizes = [0], list[int](), list[float]()
    for vertex in range(graph.number_of_nodes()):
        neighbours = sorted(n for n in graph[vertex] if n != vertex)
        targets += neighbours
        sizes += [graph[vertex][n]["bytes"] for n in neighbours]
        starts.append(len(targets))
    return pymetis.CSRAdjacency(starts, targets), _integers(sizes)


def _integers(values: Sequence[float]) -> list[int]:
    """Positive integer weights with a bounded ratio and a total that cannot overflow."""
    if not values:
        return []
    array = np.asarray(values, dtype=np.float64)
    top = float(array.max()) or 1.0
    limit = min(WEIGHT_MAX, max(1, TOTAL_MAX // len(values)))
    return [int(w) for w in np.maximum(1, np.round(array / top * limit))]


def repair(graph: nx.Graph, part_of: list[int], parts: int) -> list[int]:
    """Give every empty part the vertex of the heaviest part that is joined to it least."""
    out = list(part_of)
    for empty in range(parts):
        if empty in out:
            continue
        load = [0.0] * parts
        size = [0] * parts
        for vertex, part in enumerate(out):
            load[part] += graph.nodes[vertex]["flops"]
            size[part] += 1
        heaviest = max((p for p in range(parts) if size[p] > 1), key=lambda p: (load[p], size[p], -p))
        members = [v for v, part in enumerate(out) if part == heaviest]
        moved = min(members, key=lambda v: (_ties(graph, v, members), -graph.nodes[v]["flops"], v))
        out[moved] = empty
    return out


def _ties(graph: nx.Graph, vertex: int, members: list[int]) -> int:
    inside = set(members)
    return sum(data["bytes"] for n, data in graph[vertex].items() if n in inside)


def _cut_bytes(graph: nx.Graph, part_of: Sequence[int]) -> int:
    return sum(data["bytes"] for a, b, data in graph.edges(data=True) if part_of[a] != part_of[b])
