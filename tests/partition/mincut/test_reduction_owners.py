"""Where sums are completed: never dearer than at the first reader or the busiest machine, whatever the cut."""

import random

import pytest
from example_graphs import chain, mlp_block
from weighted_graphs import transformer

from cutset.partition.dataflow.cut import Cut, check_cut, find_partial_ops, fuse_boxes
from cutset.partition.dataflow.lowering import lower_cut
from cutset.partition.ir.graph import Graph
from cutset.partition.mincut.block_graph import boxes_by_operator
from cutset.partition.mincut.blocks import split_into_blocks
from cutset.partition.mincut.cut_axes import CutAxes
from cutset.partition.mincut.reduction_owners import reduction_owners


@pytest.fixture(scope="module", params=["chain", "residual", "transformer"])
def graph(request: pytest.FixtureRequest) -> Graph:
    return {
        "chain": lambda: chain(8, 9, 10),
        "residual": lambda: mlp_block(8, 4, 16),
        "transformer": lambda: transformer(1, width=8, heads=2, tokens=4, batch=2),
    }[request.param]()


@pytest.mark.first_cases(5)
@pytest.mark.parametrize("machines", [2, 3, 5])
def test_no_cut_sends_more_for_it(graph: Graph, machines: int) -> None:
    found = split_into_blocks(graph, CutAxes("all", frozenset(range(len(graph.axes))), 2, reductions=True))
    draw = random.Random(machines)
    for _ in range(3):
        machine_of = [draw.randrange(machines) for _ in found]
        boxes = fuse_boxes(machines, boxes_by_operator(found, machine_of))
        summed = {op.name for op in find_partial_ops(graph, boxes)}
        given = {name: pieces for name, pieces in reduction_owners(found, machine_of).items() if name in summed}
        assert given.keys() == summed
        cut = Cut(machines, boxes, given)
        check_cut(graph, cut)
        assert lower_cut(graph, cut).bytes_forward <= lower_cut(graph, Cut(machines, boxes)).bytes_forward


def test_tiles_of_a_weight_spread_their_sums() -> None:
    graph = chain(16, 16, 16)
    found = split_into_blocks(
        graph, CutAxes("all", frozenset(range(len(graph.axes))) - set(graph.batch_axes), 2, reductions=True)
    )
    machine_of = [(i % 4) for i in range(len(found))]
    assert [block.op for block in found].count("linear") == 4
    pieces = reduction_owners(found, machine_of)["linear"]
    assert {machine for _, machine in pieces} <= set(range(4))
    assert len({machine for _, machine in pieces}) == 2  # two regions, two machines


def test_uncut_sums_need_no_owner() -> None:
    found = split_into_blocks(chain(8, 8), CutAxes("layers", frozenset(), 1))
    assert reduction_owners(found, [0] * len(found)) == {}
