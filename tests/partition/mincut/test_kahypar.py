"""Partitions of Mt-KaHyPar: balanced, as pinned, the same every time, and never worse than where they start."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from example_graphs import chain
from hypothesis import given, settings
from hypothesis import strategies as st
from weighted_graphs import transformer

from cutset.errors import Infeasible
from cutset.partition.mincut.block_graph import build_block_graph
from cutset.partition.mincut.block_hypergraph import BlockHypergraph, build_block_hypergraph, build_hypergraph
from cutset.partition.mincut.blocks import split_into_blocks
from cutset.partition.mincut.cut_axes import CutAxes, paired_axes, unit_axes
from cutset.partition.mincut.kahypar import partition_kahypar
from cutset.partition.mincut.metis import partition_metis


def line(count: int, flops: float = 1.0, size: float = 10.0) -> BlockHypergraph:
    """BlockHypergraph of three neighbours each."""
    net = np.repeat(np.arange(max(0, count - 2)), 3)
    pin = net + np.tile(np.arange(3), max(0, count - 2))
    return build_hypergraph(np.full(count, flops), net, pin, np.full(max(0, count - 2), size))


@pytest.mark.parametrize("parts", [1, 2, 3, 8])
def test_a_line_is_cut_in_pieces(parts: int) -> None:
    part_of = np.array(partition_kahypar(line(64), parts, seed=0))
    assert np.bincount(part_of, minlength=parts).max() <= 1.05 * 64 / parts + 1
    assert line(64).sent_bytes(part_of) <= 2 * 10 * (parts - 1) * 1.5


def test_what_parts_may_hold_adds_up_in_32_bits_with_many_vertices() -> None:
    part_of = np.array(partition_kahypar(line(20_000), 4, seed=0))
    assert np.bincount(part_of, minlength=4).max() <= 1.05 * 5_000
    assert line(20_000).sent_bytes(part_of) == 2 * 10 * 3


def test_shares_are_followed() -> None:
    part_of = partition_kahypar(line(100), 2, seed=0, shares=[0.8, 0.2])
    assert 76 <= part_of.count(0) <= 84


def test_fixed_vertices_stay() -> None:
    fixed = {0: 1, 1: 1, 63: 0, 30: 2}
    part_of = partition_kahypar(line(64), 3, seed=0, fixed=fixed)
    assert {vertex: part_of[vertex] for vertex in fixed} == fixed
    assert set(part_of) == {0, 1, 2}


def test_a_fixed_vertex_leaves_its_home() -> None:
    given_nets = line(20)
    anchor = np.arange(20)
    anchor[5] = anchor[6] = 4
    bound = BlockHypergraph(given_nets.flops, given_nets.starts, given_nets.pins, given_nets.bytes, anchor)
    free = partition_kahypar(bound, 2, seed=0)
    assert free[4] == free[5] == free[6]
    fixed = partition_kahypar(bound, 2, seed=0, fixed={4: 0, 5: 1})
    assert (fixed[4], fixed[5], fixed[6]) == (0, 1, 0)


def test_a_start_is_improved() -> None:
    joined = line(60)
    start = [v % 2 for v in range(60)]
    better = partition_kahypar(joined, 2, seed=0, start=start)
    assert joined.sent_bytes(better) < joined.sent_bytes(start) / 4
    best = [v // 30 for v in range(60)]
    assert joined.sent_bytes(partition_kahypar(joined, 2, seed=0, start=best)) <= joined.sent_bytes(best)


@pytest.mark.parametrize("kind", ["slices", "pairs"])
def test_it_sends_no_more_than_metis(kind: str) -> None:
    graph = chain(96, 128, 128, 128, batch=8) if kind == "slices" else transformer(1, width=32, heads=8, tokens=32)
    cut = CutAxes(kind, unit_axes(graph) if kind == "slices" else paired_axes(graph), 8, reductions=kind == "pairs")
    found = split_into_blocks(graph, cut)
    joined = build_block_hypergraph(found)
    by_metis = partition_metis(build_block_graph(found), 4, seed=0)
    assert joined.sent_bytes(partition_kahypar(joined, 4, seed=0)) <= joined.sent_bytes(by_metis)
    assert joined.sent_bytes(partition_kahypar(joined, 4, seed=0, start=by_metis)) <= joined.sent_bytes(by_metis)


@st.composite
def questions(draw: st.DrawFn) -> tuple[BlockHypergraph, int, dict[int, int], list[float] | None]:
    """Tiny, disconnected, dense and dominated hypergraphs, with weights near 2^62."""
    count = draw(st.integers(1, 30))
    parts = draw(st.integers(1, min(count, 6)))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    pins = draw(st.integers(0, 4 * count))
    flops = random.choice([0.0, 1.0, 3e5, 2.0**62], count)
    anchor = np.where(random.random(count) < draw(st.sampled_from([0.0, 0.3])), 0, np.arange(count))
    size = random.choice([0.0, 1.0, 2.0**62], count)
    joined = build_hypergraph(flops, random.integers(0, count, pins), random.integers(0, count, pins), size, anchor)
    fixed = {int(v): int(random.integers(parts)) for v in random.choice(count, count // 4, replace=False)}
    shares = (random.random(parts) + 0.1).tolist() if draw(st.booleans()) else None
    return joined, parts, fixed if draw(st.booleans()) else {}, shares


@settings(max_examples=40, deadline=None)
@given(questions())
def test_whatever_goes_in_no_part_is_empty_and_what_is_fixed_stays(problem: tuple) -> None:
    joined, parts, fixed, shares = problem
    part_of = partition_kahypar(joined, parts, seed=0, shares=shares, fixed=fixed)
    assert all(part_of[vertex] == part for vertex, part in fixed.items())
    assert set(part_of) <= set(range(parts))
    if not fixed:
        assert set(part_of) == set(range(parts))


@pytest.mark.run
def test_other_processes_find_the_same_and_print_nothing_else() -> None:
    code = (
        "import json, numpy as np\n"
        "from cutset.partition.mincut.kahypar import partition_kahypar\n"
        "from cutset.partition.mincut.block_hypergraph import build_hypergraph\n"
        "random = np.random.default_rng(3)\n"
        "flops, pins = random.random(80), random.integers(0, 80, 360)\n"
        "joined = build_hypergraph(flops, np.repeat(np.arange(90), 4), pins, random.random(90))\n"
        "print(json.dumps(partition_kahypar(joined, 5, seed=7)))\n"
    )
    random = np.random.default_rng(3)
    flops, pins = random.random(80), random.integers(0, 80, 360)
    joined = build_hypergraph(flops, np.repeat(np.arange(90), 4), pins, random.random(90))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert json.loads(done.stdout) == partition_kahypar(joined, 5, seed=7)
    assert done.stderr == ""


def test_it_leaves_the_process_its_cores() -> None:
    before = os.sched_getaffinity(0)
    partition_kahypar(line(16), 2, seed=0)
    assert os.sched_getaffinity(0) == before


def test_fewer_vertices_than_parts_is_said() -> None:
    with pytest.raises(Infeasible, match="4 parts of a graph of 3 blocks"):
        partition_kahypar(line(3), 4, seed=0)
