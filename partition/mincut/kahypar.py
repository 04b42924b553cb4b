"""Mt-KaHyPar behind its guards: hypergraph partitioning, whose objective is the traffic itself (see nets.py).

It is the extra `kahypar`; where it is not installed the candidate is left out. (Gottesburen, Heuer, Maas, Sanders and
Schlag, "Scalable high-quality hypergraph partitioning", ACM TALG 2024; deterministic: Gottesburen and Hamann, 2022.)
It runs in the thread that calls it, so that the answer depends on nothing but the question.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from .csr_graph import Floats
from .balance import TOLERANCE, allowed, evened, excess, filled, require_vertices, shares_of
from ..ir.box import Ints
from .integers import TOTAL_MAX, integers
from .block_hypergraph import Nets

CYCLES = 3  # V-cycles that polish a given start


class KahyparMissing(Exception):  # noqa: N818 - named for what there is not
    """Mt-KaHyPar is not installed."""


def kahypar(
    graph: Nets,
    parts: int,
    *,
    seed: int,
    shares: Sequence[float] | None = None,
    fixed: Mapping[int, int] | None = None,
    start: Sequence[int] | None = None,
) -> list[int]:
    """A part for each vertex, none empty, that shares the FLOPs and sends few bytes.

    Vertices of one home (see Nets) get one part. shares: each part's share of the FLOPs, equal by default; fixed:
    vertices whose part is given; start: a partition to improve. Raises KahyparMissing, and Infeasible with fewer
    vertices than parts.
    """
    require_vertices(len(graph), parts)
    if parts == 1:
        return [0] * len(graph)
    fixed = fixed or {}
    home = graph.home.copy()
    home[list(fixed)] = list(fixed)
    merged, number = replace(graph, home=home).contracted()
    if len(merged) < parts:
        merged, number = graph, np.arange(len(graph), dtype=np.int64)
    pins = {int(number[vertex]): part for vertex, part in fixed.items()}
    begin = None if start is None else _merged_start(start, number, pins)
    best = _answer(merged, shares_of(parts, shares), seed, pins, begin)
    return [int(part) for part in best[number]]


def _merged_start(start: Sequence[int], number: Ints, pins: Mapping[int, int]) -> Ints:
    """The start of merged vertices: that of the last of each."""
    out = np.zeros(int(number.max()) + 1, dtype=np.int64)
    out[number] = np.asarray(start)
    out[list(pins)] = list(pins.values())
    return out


def _answer(graph: Nets, shares: Floats, seed: int, pins: Mapping[int, int], start: Ints | None) -> Ints:
    parts = len(shares)
    loads = graph.flops[:, None] if graph.flops.any() else np.ones((len(graph), 1))
    room = allowed(loads, shares)
    found = [_asked(graph, shares, seed, pins, start), *([] if start is None else [start])]
    answers = []
    for answer in found:
        full = filled(graph.stars, loads, answer, [1] * parts, still=pins)
        answers.append(evened(graph.stars, loads, full, room, still=pins))
    return min(answers, key=lambda part_of: (excess(loads, part_of, room), graph.sent_bytes(part_of)))


def _asked(graph: Nets, shares: Floats, seed: int, pins: Mapping[int, int], start: Ints | None) -> Ints:
    """Mt-KaHyPar's answer to weights that 32 bits hold."""
    module, made = _library()
    parts, count = len(shares), len(graph)
    weights = integers(graph.flops)
    limits = np.ceil(allowed(weights[:, None].astype(np.float64), shares)[:, 0])
    context = made.context_from_preset(module.PresetType.DETERMINISTIC_QUALITY)
    context.set_partitioning_parameters(parts, TOLERANCE - 1, module.Objective.KM1)
    context.set_individual_target_block_weights([int(limit) for limit in limits])
    context.logging = False
    module.set_seed(seed % 2**31)
    bounds = graph.starts.tolist()
    joined = [graph.pins[a:b].tolist() for a, b in itertools.pairwise(bounds)]
    bytes = integers(graph.bytes, total=TOTAL_MAX // parts).tolist()
    hypergraph = made.create_hypergraph(context, count, len(joined), joined, weights.tolist(), bytes)
    if pins:
        hypergraph.add_fixed_vertices([pins.get(vertex, -1) for vertex in range(count)], parts)
    if start is None:
        return np.array(hypergraph.partition(context).get_partition(), dtype=np.int64)
    partition = hypergraph.create_partitioned_hypergraph(context, parts, start.tolist())
    partition.improve_partition(context, CYCLES)
    return np.array(partition.get_partition(), dtype=np.int64)


@cache
def _library() -> tuple[Any, Any]:
    """The module, and what it was initialised to: that may be done once in a process."""
    try:
        import mtkahypar
    except ImportError as error:
        raise KahyparMissing("Mt-KaHyPar is not installed; pip install 'cutset[kahypar]'") from error
    return mtkahypar, mtkahypar.initialize(1, print_warnings=False)
