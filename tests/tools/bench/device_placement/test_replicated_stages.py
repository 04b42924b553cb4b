"""Pipelines of replicated stages: the slowest stage or transfer, as by trying every pipeline, and PipeDream's own."""

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import places
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from layer_graphs import chain, random_graph

from cutset.tools.bench.device_placement.graphs.layer_graph import Layer, LayerGraph
from cutset.tools.bench.device_placement.graphs.read_pipedream import read_profile
from cutset.tools.bench.device_placement.pipedream_stages import plan_pipeline
from cutset.tools.bench.device_placement.published_results import find_published
from cutset.tools.bench.device_placement.replicated_stages import compute_replicated_seconds, plan_replicated_pipeline

SHARED = places.SHARED / "graphs" / "pipedream"


def test_what_a_stage_takes() -> None:
    """By hand: two stages, the second of two replicas."""
    layers = tuple(
        Layer(str(i), time, output_time=moving, sync_time=syncing)
        for i, (time, moving, syncing) in enumerate([(3.0, 8.0, 100.0), (4.0, 0.0, 2.0)])
    )
    graph = LayerGraph(layers, ((0, 1),), 3)
    assert compute_replicated_seconds(graph, [0, 1], [1, 2]) == max(3.0, 8.0 / 2, (4 + 2 / 2) / 2)
    assert compute_replicated_seconds(graph, [0, 0], [3]) == pytest.approx((7 + 102 * 2 / 3) / 3)
    with pytest.raises(ValueError, match="earlier"):
        compute_replicated_seconds(graph, [1, 0], [1, 1])


def list_pipelines(graph: LayerGraph, machines: int) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Yield every pipeline: stages of layers in an order that edges allow, and replicas."""
    for stages in range(1, machines + 1):
        for stage_of in itertools.product(range(stages), repeat=len(graph.layers)):
            if set(stage_of) != set(range(stages)) or any(stage_of[a] > stage_of[b] for a, b in graph.edges):
                continue
            for replicas in itertools.product(range(1, machines + 1), repeat=stages):
                if sum(replicas) <= machines:
                    yield stage_of, replicas


@settings(max_examples=40)
@given(seed=st.integers(0, 10**6), machines=st.integers(1, 4))
def test_as_good_as_the_best_of_all(seed: int, machines: int) -> None:
    rng = np.random.default_rng(seed)
    graph = random_graph(seed, 5, accelerators=machines, cpus=0)
    layers = tuple(
        replace(x, colour=None, output_time=float(rng.integers(0, 8)), sync_time=float(rng.integers(0, 9)))
        for x in graph.layers
    )
    graph = replace(graph, layers=layers)
    least = min(compute_replicated_seconds(graph, *pipeline) for pipeline in list_pipelines(graph, machines))
    plan = plan_replicated_pipeline(graph)
    assert plan.proven
    assert plan.seconds == pytest.approx(least, rel=1e-8)
    assert compute_replicated_seconds(graph, plan.stage_of, plan.replicas) == plan.seconds
    assert sum(plan.replicas) <= machines
    assert set(plan.stage_of) == set(range(len(plan.replicas)))


def test_layers_without_parameters_are_replicated_and_those_with_many_are_not() -> None:
    layers = (Layer("conv", 9.0, output_time=0.1, sync_time=0.0), Layer("dense", 3.0, sync_time=100.0))
    plan = plan_replicated_pipeline(LayerGraph(layers, ((0, 1),), 4))
    assert (plan.stage_of, plan.replicas, plan.seconds) == ((0, 1), (3, 1), 3.0)


def test_no_time_at_all() -> None:
    assert plan_replicated_pipeline(chain(0.0, 0.0, accelerators=3)).seconds == 0.0


def test_a_wide_graph_is_planned_without_all_its_downsets() -> None:
    layers = tuple(Layer(str(i), 1.0 + i % 3, output_time=0.1, sync_time=50.0) for i in range(120))
    plan = plan_replicated_pipeline(LayerGraph(layers, tuple((i, i + 30) for i in range(90)), 4))
    assert not plan.proven
    assert 60.0 <= plan.seconds < 70.0


@pytest.mark.parametrize("name", ["alexnet", "gnmt", "resnet50"])
@pytest.mark.parametrize("machines", [4, 8, 16])
def test_pipedreams_own_optimizer_finds_nothing_better(name: str, machines: int) -> None:
    path = SHARED / f"{name}.graph.txt"
    if not path.exists():
        pytest.skip("the profile of PipeDream is not here")
    graph = read_profile(path.read_text(), str(path), accelerators=machines, bandwidth=1.25e9)
    plan = plan_replicated_pipeline(graph)
    published = find_published(path.name, machines)["replicated"]
    assert plan.seconds <= published * (1 + 1e-4), "it is published with six digits"
    assert plan.seconds <= plan_pipeline(graph).seconds
    assert math.isclose(compute_replicated_seconds(graph, plan.stage_of, plan.replicas), plan.seconds)
