"""Repeated layers are drawn once, with their number; nothing that differs is folded, and no byte is lost."""

import xml.etree.ElementTree as ElementTree
from collections.abc import Callable

import msgspec
import pytest

from cutset.partition.placement.placement_file import Loop, OpPlacement, Placement, Traffic
from cutset.tools.figures.cut_map import has_repeats, render_cut_map
from cutset.tools.figures.cut_map_edges import collect_crossings
from cutset.tools.figures.cut_map_folding import count_folded, fold_repeats
from cutset.tools.figures.cut_map_fusing import MapNode, fuse_light_operators
from cutset.tools.units import format_bytes


def fold(placement: Placement) -> list[MapNode]:
    return fold_repeats(fuse_light_operators(placement), collect_crossings(placement))


def sum_shown(placement: Placement, *, folded: bool, narrow: bool) -> int:
    """Add up the bytes at all boxes of the map."""
    root = ElementTree.fromstring(render_cut_map(placement, fold=folded, narrow=narrow))
    return sum(int(one.get("data-bytes", 0)) for one in root.iter())


def test_layers_alike_are_one(transformer: Callable[[int, int], Placement]) -> None:
    placement = transformer(48, 4)
    nodes = fold(placement)
    assert len(nodes) < 30 < len(fuse_light_operators(placement))
    names = [op.name for node in nodes for op in node.list_all()]
    assert sorted(names) == sorted(op.name for op in placement.ops), "each operator is in one box"
    assert count_folded(nodes) == len(names) - sum(len(node.ops) for node in nodes)
    for position, node in enumerate(nodes):
        assert all(source < position for source in node.inputs)
        for ops in node.copies:
            assert [op.op for op in ops] == [op.op for op in node.ops]
            assert ops[0].name.split(".")[-1] == node.ops[0].name.split(".")[-1]


def test_few_boxes_stay_as_they_are(mlp: Placement, tiles: Placement, branches: Placement) -> None:
    for placement in (mlp, tiles, branches):
        assert fold(placement) == fuse_light_operators(placement)
        assert not has_repeats(placement)


@pytest.mark.parametrize("folded", [False, True])
@pytest.mark.parametrize("narrow", [False, True])
def test_all_bytes_are_at_some_box(
    transformer: Callable[[int, int], Placement], tiles: Placement, folded: bool, narrow: bool
) -> None:
    for placement in (tiles, transformer(6, 4), transformer(48, 9)):
        assert sum_shown(placement, folded=folded, narrow=narrow) == placement.predicted.bytes_forward


def test_the_bytes_of_layers_that_are_folded_are_added(transformer: Callable[[int, int], Placement]) -> None:
    placement = transformer(48, 4)
    sent = next(node for node in fold(placement) if node.ops[0].name.endswith(".norm2") and node.copies)
    names = {ops[-1].name for ops in (sent.ops, *sent.copies)}
    total = sum(item.bytes for item in placement.predicted.traffic if item.tensor in names)
    texts = [one.text for one in ElementTree.fromstring(render_cut_map(placement, fold=True)).iter()]
    assert format_bytes(total) in texts
    assert f"norm × {len(names)}" in texts


def test_a_layer_that_sends_more_is_drawn_itself(transformer: Callable[[int, int], Placement]) -> None:
    placement = transformer(24, 4)
    more = [*placement.predicted.traffic, Traffic("layers.12.up", 0, 1, 1)]
    predicted = msgspec.structs.replace(placement.predicted, traffic=more)
    nodes = fold(msgspec.structs.replace(placement, predicted=predicted))
    assert any(node.ops[0].name == "layers.12.up" and not node.copies for node in nodes)
    assert has_repeats(placement), "those before and after it are folded"


@pytest.mark.run
def test_steps_in_one_module_are_not_layers(transformer: Callable[[int, int], Placement]) -> None:
    placement = transformer(24, 4)
    ops = [msgspec.structs.replace(op, module="lstm") for op in placement.ops]
    assert not has_repeats(msgspec.structs.replace(placement, ops=ops))


def test_what_neither_reads_nor_is_read_comes_last(tiles: Placement) -> None:
    """Such as the counts of batches of normalisations, of which a net may have many."""
    count = OpPlacement("count", "aten.add.Tensor", "norm.0", [], 0.0, [Loop("one", 1, "parallel")], tiles.ops[0].boxes)
    counts = [msgspec.structs.replace(count, name=f"count{i}", module=f"norm.{i}") for i in range(30)]
    placement = msgspec.structs.replace(tiles, ops=[*counts, *tiles.ops])
    nodes = fuse_light_operators(placement)
    assert [node.ops[0].name for node in nodes[-30:]] == [one.name for one in counts]
    assert [node.ops for node in nodes[:-30]] == [node.ops for node in fuse_light_operators(tiles)]
    assert [node.inputs for node in nodes[:-30]] == [node.inputs for node in fuse_light_operators(tiles)]
    (folded,) = (node for node in fold(placement) if node.copies)
    assert len(folded.copies) == 29
