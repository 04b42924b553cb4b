"""Pipelines: the slowest stage or transfer, as by trying every assignment of stages."""

import itertools
import math
from dataclasses import replace

import numpy as np
import places
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from layer_graphs import chain, random_graph

from cutset.tools.bench.device_placement.graphs.layer_graph import Layer, LayerGraph
from cutset.tools.bench.device_placement.graphs.read_pipedream import read_profile
from cutset.tools.bench.device_placement.pipedream_stages import compute_pipeline_seconds, plan_pipeline

SHARED = places.SHARED / "graphs" / "pipedream"


def test_computing_and_moving_overlap():
    graph = chain(3.0, 1.0, 4.0, output_time=2.5)
    assert compute_pipeline_seconds(graph, [0, 0, 1]) == 4.0
    assert (
        compute_pipeline_seconds(
            replace(graph, layers=tuple(replace(x, output_time=9.0) for x in graph.layers)), [0, 0, 1]
        )
        == 9
    )


def test_what_a_later_stage_uses_is_moved_past_those_between():
    layers = tuple(Layer(str(i), 1.0, output_time=2.0) for i in range(3))
    graph = LayerGraph(layers, ((0, 1), (1, 2), (0, 2)), 3)
    assert compute_pipeline_seconds(graph, [0, 1, 2]) == 4.0
    with pytest.raises(ValueError, match="earlier"):
        compute_pipeline_seconds(graph, [1, 0, 2])


@settings(max_examples=40)
@given(seed=st.integers(0, 10**6), machines=st.integers(1, 3))
def test_as_good_as_the_best_of_all(seed, machines):
    rng = np.random.default_rng(seed)
    graph = random_graph(seed, 6, accelerators=machines, cpus=0)
    layers = tuple(replace(x, colour=None, output_time=float(rng.integers(0, 8))) for x in graph.layers)
    graph = replace(graph, layers=layers)
    least = math.inf
    for stage_of in itertools.product(range(machines), repeat=6):
        if all(stage_of[a] <= stage_of[b] for a, b in graph.edges):
            least = min(least, compute_pipeline_seconds(graph, stage_of))
    plan = plan_pipeline(graph)
    assert plan.proven
    assert plan.seconds == pytest.approx(least)
    assert compute_pipeline_seconds(graph, plan.stage_of) == plan.seconds
    assert set(plan.stage_of) == set(range(max(plan.stage_of) + 1))


def test_fewer_machines_are_used_where_moving_is_dear():
    assert plan_pipeline(chain(1.0, 1.0, 1.0, output_time=100.0, accelerators=3)).stage_of == (0, 0, 0)


def test_more_machines_than_layers():
    assert plan_pipeline(chain(1.0, 2.0, accelerators=9)).seconds == 2.0


@pytest.mark.run
def test_a_wide_graph_is_planned_without_all_its_downsets():
    layers = tuple(Layer(str(i), 1.0 + i % 3, output_time=0.1) for i in range(120))
    plan = plan_pipeline(LayerGraph(layers, tuple((i, i + 30) for i in range(90)), 4))
    assert not plan.proven
    assert 60.0 <= plan.seconds < 70.0


@pytest.mark.parametrize(
    ("name", "machines", "published"),
    [
        ("alexnet", 1, 0.0853), ("alexnet", 2, 0.0532), ("alexnet", 4, 0.0532),
        ("resnet50", 1, 0.4434), ("resnet50", 2, 0.2851), ("resnet50", 4, 0.2581),
        ("gnmt", 1, 0.0894), ("gnmt", 2, 0.0459), ("gnmt", 4, 0.0259),
    ],
)  # fmt: skip
def test_no_slower_than_the_published_optimizer(name, machines, published):
    path = SHARED / f"{name}.graph.txt"
    if not path.is_file():
        pytest.skip(f"no {path}: PipeDream's profiles are not part of the package")
    graph = read_profile(path.read_text(), str(path), accelerators=machines, bandwidth=1.25e9)
    assert plan_pipeline(graph).seconds <= published + 5e-5
