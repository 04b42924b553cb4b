"""Groups of layers and nets: the loads are those of the definition, and merging loses nothing that it should not."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from layer_graphs import every_placement, is_contiguous, random_graph

from cutset.tools.bench.device_placement.graphs.layer_graph import Layer, LayerGraph, compute_device_loads
from cutset.tools.bench.device_placement.layer_groups import (
    group_layers,
    merge_cycles,
    merge_expensive_nets,
    merge_groups,
    merge_idle_groups,
)


@given(seed=st.integers(0, 10**6), training=st.booleans(), data=st.data())
def test_loads_are_those_of_the_definition(seed, training, data):
    graph = random_graph(seed, 8, accelerators=3, cpus=2, training=training)
    groups = group_layers(graph)
    device_of = data.draw(st.lists(st.integers(0, 4), min_size=groups.count, max_size=groups.count))
    of_layer = [device_of[group] for group in groups.group_of]
    assert groups.loads(device_of) == pytest.approx(compute_device_loads(graph, of_layer))


def test_layers_of_a_colour_are_one_group():
    layers = (Layer("a", 1.0, colour=5), Layer("b", 2.0), Layer("c", 4.0, colour=5, on_accelerator=False))
    groups = group_layers(LayerGraph(layers, ((0, 1), (1, 2)), 2))
    assert groups.group_of == (0, 1, 0)
    assert groups.time == (5.0, 2.0)
    assert groups.on_accelerator == (False, True)
    assert merge_cycles(groups).count == 1


def test_a_group_of_backward_layers_alone_stands_where_its_edges_turned_round_put_it():
    layers = (
        Layer("forward", 1.0, colour=1),
        Layer("backward", 1.0, colour=1, backward=True),
        Layer("alone", 1.0, colour=2, backward=True),
    )
    groups = group_layers(LayerGraph(layers, ((0, 1), (2, 1)), 2))
    assert groups.order == {(0, 1)}


def test_merging_adds_up_and_drops_nets_of_one_pin():
    layers = tuple(Layer(str(i), float(i), output_time=1.0, size_bytes=2.0) for i in range(4))
    groups = merge_groups(group_layers(LayerGraph(layers, ((0, 1), (1, 2), (2, 3)), 2)), [(0, 1), (1, 2)])
    assert groups.time == (3.0, 3.0)
    assert groups.size_bytes == (6.0, 2.0)
    assert groups.nets == (((0, 1), 1.0),)
    assert groups.group_of == (0, 0, 0, 1)


@given(seed=st.integers(0, 10**6), cpus=st.integers(0, 2))
def test_no_placement_below_the_bound_cuts_a_dear_net(seed, cpus):
    graph = random_graph(seed, 5, accelerators=2, cpus=cpus)
    groups = group_layers(graph)
    loads = {placement: max(compute_device_loads(graph, placement)) for placement in every_placement(graph)}
    bound = sorted(loads.values())[len(loads) // 4] if loads else 1.0
    joined = merge_expensive_nets(groups, bound).group_of
    for placement, load in loads.items():
        if load < bound:
            assert all(placement[a] == placement[b] for a in range(5) for b in range(5) if joined[a] == joined[b]), (
                placement
            )


@pytest.mark.run
@given(seed=st.integers(0, 10**6), training=st.booleans(), contiguous=st.booleans())
def test_placing_idle_groups_beside_a_neighbour_loses_nothing(seed, training, contiguous):
    graph = random_graph(seed, 6, accelerators=2, cpus=1, training=training)
    joined = merge_idle_groups(group_layers(graph)).group_of
    best = {True: math.inf, False: math.inf}
    for placement in every_placement(graph):
        if contiguous and not is_contiguous(graph, placement):
            continue
        together = all(placement[a] == placement[b] for a in range(6) for b in range(6) if joined[a] == joined[b])
        best[together] = min(best[together], max(compute_device_loads(graph, placement)))
    assert best[True] <= best[False] or math.isclose(best[True], best[False])


def test_an_idle_end_joins_and_a_busy_one_does_not():
    layers = (Layer("a", 1.0, output_time=1.0), Layer("idle", 0.0), Layer("busy", 1.0))
    assert merge_idle_groups(group_layers(LayerGraph(layers, ((0, 1), (0, 2)), 2))).group_of == (0, 0, 1)
