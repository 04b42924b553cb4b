"""METIS through pymetis, with what goes in sanitised and what comes out checked and repaired.

METIS fails silently in known ways: empty parts on small dense graphs, one part for all with a dominant vertex, overflow
of large weights. Its answer is a start, judged by the simulator; here it only has to be a partition without empty
parts.
"""

from collections.abc import Sequence
from typing import Any

import networkx as nx
import numpy as np
import pymetis

from .errors import Infeasible

WEIGHT_MAX = 1_000_000  # ratio of weights beyond which METIS loses its way
TOTAL_MAX = 2**31 - 1
SEEDS = 3

Joined = Sequence[dict[int, int]]  # per vertex: bytes by neighbour


def metis(graph: nx.Graph, parts: int, *, seed: int, shares: Sequence[float] | None = None) -> list[int]:
    """A part for each vertex 0..n-1, none empty. shares: each part's share of the FLOPs, equal by default.

    Node attribute `flops` and edge attribute `bytes` are the weights. Raises Infeasible with fewer vertices than parts.
    """
    count = graph.number_of_nodes()
    if count < parts:
        raise Infeasible(
            "E401", f"{parts} parts of a graph of {count} blocks", fix=f"--machines {max(1, count)} or fewer"
        )
    targets = list(shares) if shares is not None else [1.0] * parts
    flops, joined = _plain(graph)
    answers = [_divided(flops, joined, targets, seed=seed + attempt) for attempt in range(SEEDS if parts > 1 else 1)]
    return min(answers, key=lambda part_of: _cut_bytes(joined, part_of))


def _plain(graph: nx.Graph) -> tuple[list[float], Joined]:
    """FLOPs and neighbours by vertex, neighbours in order, without loops."""
    vertices = range(graph.number_of_nodes())
    neighbours: list[list[tuple[int, Any]]] = [sorted(graph.adj[v].items()) for v in vertices]
    joined = [{n: data["bytes"] for n, data in near if n != v} for v, near in zip(vertices, neighbours, strict=True)]
    return [graph.nodes[v]["flops"] for v in vertices], joined


def _divided(flops: Sequence[float], joined: Joined, shares: Sequence[float], *, seed: int) -> list[int]:
    """Recursive bisection, one call of METIS a bisection, so that no side has fewer vertices than parts.

    METIS' own recursion goes on with sides of no vertices, and prints what it thinks of that to standard output.
    """
    part_of = [0] * len(flops)
    pending = [(list(range(len(flops))), list(range(len(shares))))]
    while pending:
        vertices, parts = pending.pop()
        if len(parts) == 1:
            for vertex in vertices:
                part_of[vertex] = parts[0]
            continue
        halves = parts[: len(parts) // 2], parts[len(parts) // 2 :]
        inside = {vertex: i for i, vertex in enumerate(vertices)}
        near = [{inside[n]: size for n, size in joined[v].items() if n in inside} for v in vertices]
        work = [flops[v] for v in vertices]
        side_of = _bisected(work, near, [sum(shares[p] for p in half) for half in halves], seed=seed)
        side_of = _repaired(work, near, side_of, [len(half) for half in halves])
        for side, half in enumerate(halves):
            pending.append(([v for v, at in zip(vertices, side_of, strict=True) if at == side], half))
    return part_of


def _bisected(flops: Sequence[float], joined: Joined, shares: Sequence[float], *, seed: int) -> list[int]:
    starts = np.cumsum([0, *(len(near) for near in joined)]).tolist()
    adjacency = pymetis.CSRAdjacency(starts, [n for near in joined for n in near])
    answer = pymetis.part_graph(
        2,
        adjacency=adjacency,
        vweights=_integers(flops),
        eweights=_integers([size for near in joined for size in near.values()]),
        tpwgts=[share / sum(shares) for share in shares],
        recursive=True,
        options=pymetis.Options(seed=seed),
    )
    return [int(part) for part in answer.vertex_part]


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
    return _repaired(*_plain(graph), part_of, [1] * parts)


def _repaired(flops: Sequence[float], joined: Joined, part_of: Sequence[int], least: Sequence[int]) -> list[int]:
    """Until each part has at least so many vertices: move one from the heaviest part that can spare it."""
    out, parts = list(part_of), range(len(least))
    while True:
        size = [out.count(part) for part in parts]
        poor = next((part for part in parts if size[part] < least[part]), None)
        if poor is None:
            return out
        load = [0.0 for _ in parts]
        for vertex, part in enumerate(out):
            load[part] += flops[vertex]
        heaviest = max((p for p in parts if size[p] > least[p]), key=lambda p: (load[p], size[p], -p))
        members = {v for v, part in enumerate(out) if part == heaviest}
        ties = {v: sum(size for n, size in joined[v].items() if n in members) for v in members}
        out[min(members, key=lambda v: (ties[v], -flops[v], v))] = poor


def _cut_bytes(joined: Joined, part_of: Sequence[int]) -> int:
    """Twice the bytes between parts."""
    return sum(size for v, near in enumerate(joined) for n, size in near.items() if part_of[v] != part_of[n])
