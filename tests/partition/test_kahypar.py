"""Mt-KaHyPar behind its guards. What needs the package is skipped where the extra `kahypar` is not installed."""

import builtins
import importlib.util
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

from cutset.partition.mincut import kahypar as kahypar_module
from cutset.partition.mincut.cut_axes import CutAxes, paired_axes, unit_axes
from cutset.partition.mincut.block_graph import block_graph
from cutset.errors import Infeasible
from cutset.partition.mincut.kahypar import KahyparMissing, kahypar
from cutset.partition.mincut.metis import metis
from cutset.partition.mincut.block_hypergraph import Nets, net_graph, nets
from cutset.partition.mincut.blocks import blocks

installed = importlib.util.find_spec("mtkahypar") is not None
needs_kahypar = pytest.mark.skipif(not installed, reason="the extra `kahypar` is not installed")


def line(count: int, flops: float = 1.0, size: float = 10.0) -> Nets:
    """Nets of three neighbours each."""
    net = np.repeat(np.arange(max(0, count - 2)), 3)
    pin = net + np.tile(np.arange(3), max(0, count - 2))
    return nets(np.full(count, flops), net, pin, np.full(max(0, count - 2), size))


@needs_kahypar
@pytest.mark.parametrize("parts", [1, 2, 3, 8])
def test_a_line_is_cut_in_pieces(parts: int) -> None:
    part_of = np.array(kahypar(line(64), parts, seed=0))
    assert np.bincount(part_of, minlength=parts).max() <= 1.05 * 64 / parts + 1
    assert line(64).sent_bytes(part_of) <= 2 * 10 * (parts - 1) * 1.5


@needs_kahypar
def test_shares_are_followed() -> None:
    part_of = kahypar(line(100), 2, seed=0, shares=[0.8, 0.2])
    assert 76 <= part_of.count(0) <= 84


@needs_kahypar
def test_fixed_vertices_stay() -> None:
    fixed = {0: 1, 1: 1, 63: 0, 30: 2}
    part_of = kahypar(line(64), 3, seed=0, fixed=fixed)
    assert {vertex: part_of[vertex] for vertex in fixed} == fixed
    assert set(part_of) == {0, 1, 2}


@needs_kahypar
def test_a_fixed_vertex_leaves_its_home() -> None:
    given_nets = line(20)
    home = np.arange(20)
    home[5] = home[6] = 4
    bound = Nets(given_nets.flops, given_nets.starts, given_nets.pins, given_nets.bytes, home)
    free = kahypar(bound, 2, seed=0)
    assert free[4] == free[5] == free[6]
    fixed = kahypar(bound, 2, seed=0, fixed={4: 0, 5: 1})
    assert (fixed[4], fixed[5], fixed[6]) == (0, 1, 0)


@needs_kahypar
def test_a_start_is_improved() -> None:
    joined = line(60)
    start = [v % 2 for v in range(60)]
    better = kahypar(joined, 2, seed=0, start=start)
    assert joined.sent_bytes(better) < joined.sent_bytes(start) / 4
    best = [v // 30 for v in range(60)]
    assert joined.sent_bytes(kahypar(joined, 2, seed=0, start=best)) <= joined.sent_bytes(best)


@needs_kahypar
@pytest.mark.parametrize("kind", ["slices", "pairs"])
def test_it_sends_no_more_than_metis(kind: str) -> None:
    graph = chain(96, 128, 128, 128, batch=8) if kind == "slices" else transformer(1, width=32, heads=8, tokens=32)
    cut = CutAxes(kind, unit_axes(graph) if kind == "slices" else paired_axes(graph), 8, reductions=kind == "pairs")
    found = blocks(graph, cut)
    joined = net_graph(found)
    by_metis = metis(block_graph(found), 4, seed=0)
    assert joined.sent_bytes(kahypar(joined, 4, seed=0)) <= joined.sent_bytes(by_metis)
    assert joined.sent_bytes(kahypar(joined, 4, seed=0, start=by_metis)) <= joined.sent_bytes(by_metis)


@st.composite
def questions(draw: st.DrawFn) -> tuple[Nets, int, dict[int, int], list[float] | None]:
    """Tiny, disconnected, dense and dominated hypergraphs, with weights near 2^62."""
    count = draw(st.integers(1, 30))
    parts = draw(st.integers(1, min(count, 6)))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    pins = draw(st.integers(0, 4 * count))
    flops = random.choice([0.0, 1.0, 3e5, 2.0**62], count)
    home = np.where(random.random(count) < draw(st.sampled_from([0.0, 0.3])), 0, np.arange(count))
    size = random.choice([0.0, 1.0, 2.0**62], count)
    joined = nets(flops, random.integers(0, count, pins), random.integers(0, count, pins), size, home)
    fixed = {int(v): int(random.integers(parts)) for v in random.choice(count, count // 4, replace=False)}
    shares = (random.random(parts) + 0.1).tolist() if draw(st.booleans()) else None
    return joined, parts, fixed if draw(st.booleans()) else {}, shares


@needs_kahypar
@settings(max_examples=40, deadline=None)
@given(questions())
def test_whatever_goes_in_no_part_is_empty_and_what_is_fixed_stays(question: tuple) -> None:
    joined, parts, fixed, shares = question
    part_of = kahypar(joined, parts, seed=0, shares=shares, fixed=fixed)
    assert all(part_of[vertex] == part for vertex, part in fixed.items())
    assert set(part_of) <= set(range(parts))
    if not fixed:
        assert set(part_of) == set(range(parts))


@needs_kahypar
def test_other_processes_find_the_same_and_print_nothing_else() -> None:
    code = (
        "import json, numpy as np\n"
        "from cutset.partition.mincut.kahypar import kahypar\n"
        "from cutset.partition.mincut.block_hypergraph import nets\n"
        "random = np.random.default_rng(3)\n"
        "flops, pins = random.random(80), random.integers(0, 80, 360)\n"
        "joined = nets(flops, np.repeat(np.arange(90), 4), pins, random.random(90))\n"
        "print(json.dumps(kahypar(joined, 5, seed=7)))\n"
    )
    random = np.random.default_rng(3)
    flops, pins = random.random(80), random.integers(0, 80, 360)
    joined = nets(flops, np.repeat(np.arange(90), 4), pins, random.random(90))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert json.loads(done.stdout) == kahypar(joined, 5, seed=7)
    assert done.stderr == ""


@needs_kahypar
def test_it_leaves_the_process_its_cores() -> None:
    before = os.sched_getaffinity(0)
    kahypar(line(16), 2, seed=0)
    assert os.sched_getaffinity(0) == before


def test_fewer_vertices_than_parts_is_said() -> None:
    with pytest.raises(Infeasible, match="4 parts of a graph of 3 blocks"):
        kahypar(line(3), 4, seed=0)


def test_a_missing_package_is_said_with_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: object) -> object:
        if name == "mtkahypar":
            raise ImportError(name)
        return real(name, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(kahypar_module, "_library", kahypar_module._library.__wrapped__)
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(KahyparMissing, match=r"pip install 'cutset\[kahypar\]'"):
        kahypar(line(8), 2, seed=0)
