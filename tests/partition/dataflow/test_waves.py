"""Waves are groups of products by depth, and a machine sends at the end of each."""

from dataclasses import replace

from example_graphs import chain

from cutset.partition.dataflow.cut import Cut
from cutset.partition.dataflow.lowering import lower_cut
from cutset.partition.dataflow.waves import find_depths, find_waves

GRAPH = chain(4, 4, 4, 4, 4)


def test_the_depth_of_an_operator_is_the_products_before_it_and_its_own() -> None:
    assert list(find_depths(GRAPH).values()) == [1, 2, 3, 4, 4]  # four products and the loss


def test_waves_are_counted_from_the_end() -> None:
    assert list(find_waves(GRAPH, 1).values()) == [1, 2, 3, 4, 4]
    assert list(find_waves(GRAPH, 3).values()) == [1, 1, 1, 2, 2]
    assert set(find_waves(GRAPH, 0).values()) == {0}


def test_a_segment_ends_with_its_wave() -> None:
    whole = Cut(2, {op.name: [(op.nest.box, int(i == 3))] for i, op in enumerate(GRAPH.ops)})
    stages = [i.stage for i in lower_cut(GRAPH, whole).instructions]
    assert stages == [0, 0, 0, 1, 2]
    waved = lower_cut(GRAPH, replace(whole, wave=1))
    assert [i.stage for i in waved.instructions] == [0, 1, 2, 3, 4]
    assert waved.bytes_forward == lower_cut(GRAPH, whole).bytes_forward
