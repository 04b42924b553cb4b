"""Plans for the throughput objective: as good as the best of every placement of a small graph; limits are kept."""

import json
from dataclasses import replace

import places
import pytest
from layer_graphs import chain, is_contiguous, least_load, random_graph
from marking import with_slow

from cutset.errors import Infeasible
from cutset.tools.bench.device_placement.graphs.layer_graph import Layer, LayerGraph, compute_device_loads
from cutset.tools.bench.device_placement.graphs.read_dnn_partitioning import read_workload
from cutset.tools.bench.device_placement.max_load_placement import plan_throughput

SHARED = places.SHARED / "graphs" / "dnn-partitioning"


@pytest.mark.first_cases(3)
@pytest.mark.parametrize("seed", with_slow(range(4), range(4, 12)))
@pytest.mark.parametrize("training", [False, True])
def test_as_good_as_the_best_of_all(seed, training):
    graph = random_graph(seed, 7, accelerators=2, cpus=1, training=training)
    plan = plan_throughput(graph, rounds=2)
    assert plan.proven
    assert plan.contiguous is not None
    assert is_contiguous(graph, plan.contiguous.device_of)
    assert plan.contiguous.objective == pytest.approx(least_load(graph, contiguous=True))
    assert plan.best.objective == pytest.approx(least_load(graph, contiguous=False))
    assert list(plan.best.loads) == compute_device_loads(graph, plan.best.device_of)


def test_any_placement_may_beat_every_contiguous_one():
    # 3 + 1 on one device and 2 + 2 on the other: not in the order of the chain.
    plan = plan_throughput(chain(3.0, 2.0, 2.0, 1.0), rounds=1)
    assert plan.contiguous is not None
    assert plan.contiguous.objective == 5.0
    assert plan.best.objective == 4.0


@pytest.mark.slow
def test_the_same_seed_gives_the_same_plan():
    graph = random_graph(5, 60, accelerators=4, cpus=1)
    assert plan_throughput(graph, seed=3, rounds=3) == plan_throughput(graph, seed=3, rounds=3)


def test_parts_that_do_not_meet_are_spread():
    layers = tuple(Layer(str(i), 2.0, 20.0, 5.0) for i in range(6))
    graph = LayerGraph(layers, ((0, 1), (2, 3), (4, 5)), accelerators=3)
    assert plan_throughput(graph, rounds=1).best.loads == (4.0, 4.0, 4.0)


def test_memory_is_a_limit():
    layers = tuple(Layer(str(i), 1.0, 100.0, 10.0, size_bytes=3.0) for i in range(4))
    graph = LayerGraph(layers, ((0, 1), (1, 2), (2, 3)), accelerators=2, memory_bytes=6.0)
    assert plan_throughput(graph, rounds=1).best.loads == (12.0, 12.0)
    with pytest.raises(Infeasible) as caught:
        plan_throughput(replace(graph, memory_bytes=5.0))
    assert caught.value.code == "E411"
    # A CPU has no limit.
    assert plan_throughput(replace(graph, memory_bytes=5.0, cpus=1), rounds=1).best.objective == 200.0


def test_layers_for_a_cpu_go_there_or_are_refused():
    layers = (Layer("a", 1.0, 3.0), Layer("b", 0.1, 7.0, on_accelerator=False))
    graph = LayerGraph(layers, ((0, 1),), accelerators=1, cpus=1)
    assert plan_throughput(graph, rounds=1).best.device_of == (0, 1)
    with pytest.raises(Infeasible) as caught:
        plan_throughput(replace(graph, cpus=0))
    assert caught.value.code == "E410"


def test_more_devices_than_layers_stay_idle_and_keep_their_numbers():
    graph = LayerGraph((Layer("a", 5.0, 1.0), Layer("b", 3.0, 9.0)), ((0, 1),), accelerators=50, cpus=20)
    plan = plan_throughput(graph, rounds=1)
    assert len(plan.best.loads) == 70
    assert plan.best.objective == 3.0
    assert plan.best.device_of[0] >= 50


@pytest.mark.parametrize("graph", [chain(0.0, 0.0), chain(1.0, accelerators=1), chain(2.0, accelerators=4)])
def test_the_smallest_graphs(graph):
    assert plan_throughput(graph, rounds=1).best.objective == max(layer.time for layer in graph.layers)


@pytest.mark.run
def test_a_wide_graph_is_planned_without_all_its_downsets():
    layers = tuple(Layer(str(i), 1.0 + i % 3, output_time=0.1) for i in range(240))
    edges = tuple((i, i + 40) for i in range(200))
    plan = plan_throughput(LayerGraph(layers, edges, accelerators=6), rounds=2)
    assert not plan.proven
    assert plan.contiguous is not None
    assert 80.0 <= plan.best.objective <= plan.contiguous.objective < 110.0


def test_it_ends_early_when_told():
    plan = plan_throughput(random_graph(1, 80, accelerators=4), stop=lambda: True)
    assert plan.contiguous is not None
    assert plan.best.objective == plan.contiguous.objective


@pytest.mark.parametrize(
    ("name", "most"),
    [("bert24", 17.78991), ("gnmt", 32.91067), ("inceptionv3", 60.4), ("resnet50", 33.77467)],
)
def test_published_graphs_come_to_the_published_optimum(name, most):
    path = SHARED / f"{name}_inference.json"
    if not path.is_file():
        pytest.skip(f"no {path}: the benchmark's graphs are not part of the package")
    plan = plan_throughput(read_workload(path.read_text(), str(path)), rounds=1)
    assert plan.proven
    assert plan.contiguous is not None
    assert plan.contiguous.objective <= most
    assert plan.best.objective <= plan.contiguous.objective
    assert json.loads(path.read_text())["maxFPGAs"] + 1 == len(plan.best.loads)
