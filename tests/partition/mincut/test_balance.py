"""What a part may have, and moves that make a partition so."""

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from weighted_graphs import weighted

from cutset.partition.mincut.balance import (
    TOLERANCE,
    excess,
    fill_parts,
    part_capacity,
    part_fractions,
    part_loads,
    rebalance,
)


def column(*weights: float) -> np.ndarray:
    return np.array(weights)[:, None]


@pytest.mark.parametrize(("blocks", "parts", "most"), [(6, 4, 2), (5, 4, 2), (8, 4, 2 * TOLERANCE), (1, 4, 1)])
def test_whole_vertices_set_what_a_part_may_have(blocks: int, parts: int, most: float) -> None:
    room = part_capacity(np.ones((blocks, 1)), np.full(parts, 1 / parts))
    assert room[:, 0] == pytest.approx(most)


def test_a_part_of_a_larger_share_may_have_more() -> None:
    room = part_capacity(np.ones((100, 1)), np.array([0.8, 0.2]))
    assert room[:, 0] == pytest.approx([80 * TOLERANCE, 20 * TOLERANCE])


def test_moves_go_where_they_cut_least() -> None:
    graph = weighted(nx.path_graph(8))
    room = part_capacity(np.ones((8, 1)), np.array([0.5, 0.5]))
    part_of = rebalance(graph, np.ones((8, 1)), np.array([0, 0, 0, 0, 0, 0, 1, 1]), room)
    assert part_of.tolist() == [0, 0, 0, 0, 1, 1, 1, 1]


def test_a_heavy_vertex_changes_places_with_light_ones() -> None:
    loads = column(4, 4, 4, 1, 1, 1, 1, 4, 4)
    room = part_capacity(loads, np.array([0.5, 0.5]))
    start = np.array([0, 0, 0, 0, 0, 0, 0, 1, 1])
    part_of = rebalance(weighted(nx.empty_graph(9)), loads, start, room)
    assert excess(loads, part_of, room) == 0 < excess(loads, start, room)


def test_what_must_stay_stays() -> None:
    graph = weighted(nx.path_graph(6))
    room = part_capacity(np.ones((6, 1)), np.array([0.5, 0.5]))
    part_of = rebalance(graph, np.ones((6, 1)), np.zeros(6, dtype=np.int64), room, still={4, 5})
    assert part_of[[4, 5]].tolist() == [0, 0]
    assert np.bincount(part_of).tolist() == [3, 3]
    stuck = rebalance(graph, np.ones((6, 1)), np.zeros(6, dtype=np.int64), room, still=range(6))
    assert stuck.tolist() == [0] * 6


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 30), st.integers(2, 5), st.integers(1, 3), st.integers(0, 2**32))
def test_evening_never_makes_the_fullest_part_fuller_or_empties_one(
    count: int, parts: int, constraints: int, seed: int
) -> None:
    random = np.random.default_rng(seed)
    graph = weighted(nx.gnp_random_graph(count, 0.3, seed=seed))
    loads = random.choice([0.0, 1.0, 2.0, 9.0], (count, constraints)) + 1e-3
    start = random.integers(0, parts, count)
    room = part_capacity(loads, np.full(parts, 1 / parts))
    part_of = rebalance(graph, loads, start, room)
    before, after = ((part_loads(loads, p, parts) / room).max() for p in (start, part_of))
    assert after <= max(before, 1)
    assert set(start) <= set(part_of)


def test_empty_parts_are_filled_by_what_is_missed_least() -> None:
    line = nx.path_graph(5)
    line.edges[3, 4]["bytes"] = 1
    part_of = fill_parts(weighted(line), np.ones((5, 1)), np.zeros(5, dtype=np.int64), [1, 1])
    assert part_of.tolist() == [0, 0, 0, 0, 1]


def test_parts_are_filled_to_what_they_need() -> None:
    part_of = fill_parts(weighted(nx.path_graph(9)), np.ones((9, 1)), np.zeros(9, dtype=np.int64), [2, 4, 3])
    assert np.bincount(part_of).tolist() == [2, 4, 3]


def test_shares_are_parts_of_one_and_never_nothing() -> None:
    assert part_fractions(4, None).tolist() == [0.25] * 4
    shares = part_fractions(3, [2.0, 2.0, 0.0])
    assert shares.sum() == pytest.approx(1)
    assert 0 < shares[2] < 1e-3
