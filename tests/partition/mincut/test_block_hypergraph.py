"""BlockHypergraph of blocks: their connectivity is exactly the bytes that the runtime would send forward."""

import random
from collections.abc import Callable

import numpy as np
import pytest
from example_graphs import chain, conv_line, mlp_block
from weighted_graphs import transformer

from cutset.errors import Infeasible
from cutset.partition.dataflow.cut import Cut, fuse_boxes
from cutset.partition.dataflow.lowering import lower_cut
from cutset.partition.ir.graph import Graph
from cutset.partition.mincut.block_graph import boxes_by_operator, build_block_graph
from cutset.partition.mincut.block_hypergraph import build_block_hypergraph, build_hypergraph
from cutset.partition.mincut.blocks import split_into_blocks
from cutset.partition.mincut.cut_axes import CutAxes, paired_axes, spatial_axes, unit_axes

AXES: dict[str, Callable[[Graph], CutAxes]] = {
    "units": lambda graph: CutAxes("units", unit_axes(graph), 3),
    "pairs": lambda graph: CutAxes("pairs", paired_axes(graph), 4, reductions=True),
    "space": lambda graph: CutAxes("space", spatial_axes(graph), 4),
    "batch": lambda graph: CutAxes("batch", frozenset(graph.batch_axes), 2),
}


@pytest.fixture(scope="module", params=["chain", "convolutions", "residual", "transformer"])
def graph(request: pytest.FixtureRequest) -> Graph:
    return {
        "chain": lambda: chain(8, 9, 10),
        "convolutions": lambda: conv_line(13, batch=2),
        "residual": lambda: mlp_block(8, 4, 16),
        "transformer": lambda: transformer(1, width=16, heads=4, tokens=6, batch=2),
    }[request.param]()


@pytest.mark.parametrize("axes", AXES)
def test_connectivity_is_the_bytes_sent_forward(graph: Graph, axes: str) -> None:
    found = split_into_blocks(graph, AXES[axes](graph))
    joined = build_block_hypergraph(found)
    draw = random.Random(0)
    for machines in (2, 3, 5):
        machine_of = [draw.randrange(machines) for _ in found]
        sent = lower_cut(graph, Cut(machines, fuse_boxes(machines, boxes_by_operator(found, machine_of)))).bytes_forward
        assert joined.sent_bytes(machine_of) == sent


def test_the_first_vertex_counts_as_a_pin() -> None:
    joined = build_hypergraph(np.ones(2), np.array([0, 0, 1]), np.array([0, 1, 1]), np.array([3.0, 5.0]))
    assert joined.sent_bytes([0, 1]) == 3


def test_one_machine_sends_nothing() -> None:
    found = split_into_blocks(chain(8, 6, 5), CutAxes("layers", frozenset(), 1))
    assert build_block_hypergraph(found).sent_bytes([0] * len(found)) == 0


def test_merging_keeps_what_is_sent_between_those_that_stay_together(graph: Graph) -> None:
    found = split_into_blocks(graph, AXES["pairs"](graph))
    joined = build_block_hypergraph(found)
    merged, number = joined.contract()
    part = np.random.default_rng(0).integers(0, 3, len(merged))
    assert merged.sent_bytes(part) == joined.sent_bytes(part[number])
    assert merged.flops.sum() == joined.flops.sum() == pytest.approx(sum(op.flops for op in graph.ops))
    assert (joined.anchor == build_block_graph(found).anchor).all()


def test_nets_of_equal_pins_are_one_and_of_one_pin_none() -> None:
    given = [(0, 1), (0, 2), (1, 2), (1, 1), (1, 2), (2, 0), (2, 0), (3, 0), (3, 2)]
    net, pin = (np.array(column) for column in zip(*given, strict=True))
    joined = build_hypergraph(np.ones(3), net, pin, np.array([1.0, 10.0, 100.0, 1000.0]))
    assert [joined.pins[a:b].tolist() for a, b in zip(joined.starts, joined.starts[1:], strict=False)] == [
        [1, 2],
        [0, 2],
    ]
    assert joined.bytes.tolist() == [11, 1000]


def test_no_nets_is_a_hypergraph_too() -> None:
    none = np.zeros(0, dtype=np.int64)
    joined = build_hypergraph(np.ones(3), none, none, none.astype(float))
    assert joined.sent_bytes([0, 1, 2]) == 0
    assert len(joined.contract()[0]) == 3


def test_millions_of_blocks_are_refused_at_once() -> None:
    graph = chain(64, 512, 512, batch=64)
    found = split_into_blocks(graph, CutAxes("all", frozenset(range(len(graph.axes))), 512, reductions=True))
    assert len(found) > 10**6
    for build in (build_block_graph, build_block_hypergraph):
        with pytest.raises(Infeasible, match="blocks; a partitioner gets 2e") as error:
            build(found)
        assert "fewer parts" in error.value.fix
