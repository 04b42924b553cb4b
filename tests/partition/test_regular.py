"""Slices and tiles, as one would draw them."""

from example_graphs import chain, conv_line

from cutset.partition.cluster.machines import Cluster, Machine, alike
from cutset.partition.layouts.layout_search import grid
from cutset.partition.layouts.regular import slices, tiles


def test_slices_cut_every_layer_along_its_units() -> None:
    boxes = slices(chain(16, 12, 8), grid(alike(4), range(4), (4,)))
    assert boxes is not None
    assert [box[1] for box, _ in boxes["linear"]] == [(0, 3), (3, 6), (6, 9), (9, 12)]
    assert [machine for _, machine in boxes["linear_1"]] == [0, 1, 2, 3]


def test_slices_follow_the_speed_of_unlike_machines() -> None:
    cluster = Cluster((Machine("fast", 3e9), Machine("slow", 1e9)))
    boxes = slices(chain(16, 12, 8), grid(cluster, range(2), (2,)))
    assert boxes is not None
    assert [box[1] for box, _ in boxes["linear"]] == [(0, 9), (9, 12)]


def test_an_image_of_one_dimension_is_tiled_along_it() -> None:
    boxes = tiles(conv_line(16), grid(alike(4), range(4), (4,)))
    assert boxes is not None
    assert [box[0] for box, _ in boxes["conv1d"]] == [(0, 4), (4, 8), (8, 12), (12, 16)]


def test_without_an_image_there_are_no_tiles() -> None:
    assert tiles(chain(16, 12, 8), grid(alike(4), range(4), (2, 2))) is None
