"""Loads by the benchmark's definition, counted by hand; cycles named."""

import itertools

from cutset.tools.bench.device_placement.graphs.layer_graph import Layer, LayerGraph, compute_device_loads, find_cycle


def test_an_output_costs_its_producer_once_and_every_foreign_user_once():
    layers = tuple(Layer(str(i), time=1.0, cpu_time=10.0, output_time=float(2 + i)) for i in range(5))
    graph = LayerGraph(layers, ((0, 1), (0, 2), (0, 3), (0, 4)), accelerators=3)
    # 0 and 1 on one device, 2 and 3 on another, 4 on the last: out of 0 once, into each of the others once.
    assert compute_device_loads(graph, [0, 0, 1, 1, 2]) == [1 + 1 + 2.0, 1 + 1 + 2.0, 1 + 2.0]


def test_a_cpu_pays_for_nothing_but_its_layers_and_its_partner_pays():
    layers = (Layer("a", 1.0, 10.0, 0.5), Layer("b", 1.0, 20.0, 0.25), Layer("c", 1.0, 30.0))
    graph = LayerGraph(layers, ((0, 1), (1, 2)), accelerators=1, cpus=2)
    assert compute_device_loads(graph, [0, 1, 0]) == [1 + 0.5 + 1 + 0.25, 20.0, 0.0]
    assert compute_device_loads(graph, [1, 2, 2]) == [0.0, 10.0, 50.0]


def test_a_second_edge_between_two_layers_costs_nothing():
    layers = (Layer("a", 1.0, output_time=0.5), Layer("b", 1.0))
    assert compute_device_loads(LayerGraph(layers, ((0, 1), (0, 1)), 2), [0, 1]) == [1.5, 1.5]


def test_a_cycle_is_named_in_the_order_of_its_edges():
    edges = [(0, 1), (1, 2), (2, 3), (3, 1), (3, 4)]
    cycle = find_cycle(5, edges)
    assert cycle[0] == cycle[-1]
    assert set(cycle) == {1, 2, 3}
    assert all(pair in edges for pair in itertools.pairwise(cycle))


def test_a_layer_that_uses_itself_is_a_cycle():
    assert find_cycle(2, [(0, 1), (1, 1)]) == [1, 1]


def test_no_cycle_in_parts_that_do_not_meet():
    assert find_cycle(4, [(0, 1), (3, 2)]) == []
    assert find_cycle(0, []) == []
