"""Regular cuts: contiguous stages, the dynamic program against brute force; slices and tiles."""

import itertools

import pytest
from example_graphs import chain, conv_line

from cutset.partition.cluster.machines import Cluster, Machine, uniform_cluster
from cutset.partition.dataflow.cut import Cut
from cutset.partition.dataflow.lowering import lower_cut
from cutset.partition.layouts.layout_search import mesh_of_machines
from cutset.partition.layouts.standard_cuts import contiguous_stages, divide_batch, slice_layers, tile_images


@pytest.mark.parametrize("machines", [2, 3])
def test_stages_are_the_best_of_all_contiguous_splits(machines: int) -> None:
    graph = chain(8, 32, 4, 16, 16, 8)
    cluster = Cluster(tuple(Machine(f"m{i}", 1e3) for i in range(machines)), bandwidth=1e2, latency_s=0.0)
    found = contiguous_stages(graph, cluster, [m.flops_per_s for m in cluster.machines])
    count = len(graph.ops)
    every = [
        [sum(i >= edge for edge in edges) for i in range(count)]
        for edges in itertools.combinations(range(1, count), machines - 1)
    ]
    assert found in every
    assert largest_stage(graph, cluster, found) == pytest.approx(min(largest_stage(graph, cluster, e) for e in every))


def largest_stage(graph, cluster, machine_of) -> float:  # type: ignore[no-untyped-def]
    boxes = {op.name: [(op.nest.box, m)] for op, m in zip(graph.ops, machine_of, strict=True)}
    spelled = lower_cut(graph, Cut(len(cluster), boxes))
    loads = []
    for machine in range(len(cluster)):
        flops = sum(op.flops for op, m in zip(graph.ops, machine_of, strict=True) if m == machine)
        entering = sum(e.bytes for e in spelled.edges if e.target == machine)
        loads.append(3 * flops / cluster.machines[machine].flops_per_s + 2 * entering / cluster.bandwidth)
    return max(loads)


# Slices and tiles ---------------------------------------------------------------------------------------------------


def test_slices_cut_every_layer_along_its_units() -> None:
    boxes = slice_layers(chain(16, 12, 8), mesh_of_machines(uniform_cluster(4), range(4), (4,)))
    assert boxes is not None
    assert [box[1] for box, _ in boxes["linear"]] == [(0, 3), (3, 6), (6, 9), (9, 12)]
    assert [machine for _, machine in boxes["linear_1"]] == [0, 1, 2, 3]


def test_slices_sum_over_units_where_an_operator_makes_none() -> None:
    """Whole, the operator would have all units sent to one machine."""
    graph = chain(16, 12, 8)
    boxes = slice_layers(graph, mesh_of_machines(uniform_cluster(4), range(4), (4,)))
    assert boxes is not None
    (loss,) = (op for op in graph.ops if all(loop.kind == "reduction" for loop in op.nest.loops))
    (units,) = (i for i, loop in enumerate(loss.nest.loops) if loop.size == 8)
    assert [box[units] for box, _ in boxes[loss.name]] == [(0, 2), (2, 4), (4, 6), (6, 8)]


def test_slices_follow_the_speed_of_unlike_machines() -> None:
    cluster = Cluster((Machine("fast", 3e9), Machine("slow", 1e9)))
    boxes = slice_layers(chain(16, 12, 8), mesh_of_machines(cluster, range(2), (2,)))
    assert boxes is not None
    assert [box[1] for box, _ in boxes["linear"]] == [(0, 9), (9, 12)]


def test_an_image_of_one_dimension_is_tiled_along_it() -> None:
    boxes = tile_images(conv_line(16), mesh_of_machines(uniform_cluster(4), range(4), (4,)))
    assert boxes is not None
    assert [box[0] for box, _ in boxes["conv1d"]] == [(0, 4), (4, 8), (8, 12), (12, 16)]


def test_without_an_image_there_are_no_tiles() -> None:
    assert tile_images(chain(16, 12, 8), mesh_of_machines(uniform_cluster(4), range(4), (2, 2))) is None


def test_a_batch_is_divided_where_there_is_one() -> None:
    """Of machines of two speeds; a batch of fewer samples than machines is not."""
    speeds = (3e9, 1e9)
    cluster = Cluster(tuple(Machine(f"m{i}", speed) for i, speed in enumerate(speeds)))
    graph = chain(16, 12, 8, batch=8)
    boxes = divide_batch(graph, mesh_of_machines(cluster, range(2), (2,)))
    assert boxes is not None
    for op in graph.ops:
        at = next(i for i, loop in enumerate(op.nest.loops) if loop.axis in graph.batch_axes)
        assert [(box[at], machine) for box, machine in boxes[op.name]] == [((0, 6), 0), ((6, 8), 1)]
    assert divide_batch(chain(16, 12, 8, batch=1), mesh_of_machines(cluster, range(2), (2,))) is None
