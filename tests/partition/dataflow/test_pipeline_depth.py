"""Pipeline depth, on cuts whose machines wait for each other and on such where they do not."""

import torch
from cutting import finest_cut, pipeline, subject
from torch import nn

from cutset.partition.capture.export import capture
from cutset.partition.dataflow.cut import Cut
from cutset.partition.dataflow.lowering import lower_cut
from cutset.partition.dataflow.pipeline_depth import needs_backpressure, pipeline_depths


def test_a_pipeline_is_as_deep_as_it_has_machines() -> None:
    graph = subject("mlp").graph
    assert pipeline_depths(lower_cut(graph, pipeline(graph, 3))) == [3, 2, 1]


def test_machines_that_wait_for_each_other_are_one_stage() -> None:
    graph = subject("mlp").graph
    assert pipeline_depths(lower_cut(graph, finest_cut(graph, 3))) == [1, 1, 1]


def test_an_idle_machine_is_a_stage_of_its_own() -> None:
    graph = subject("mlp").graph
    straight = pipeline(graph, 2)
    assert pipeline_depths(lower_cut(graph, Cut(3, straight.boxes))) == [2, 1, 1]


def test_in_evaluation_all_before_the_end_of_a_pipeline_would_run_ahead() -> None:
    of = subject("mlp")
    spelled = lower_cut(of.evaluation, pipeline(of.evaluation, 3))
    assert needs_backpressure(spelled, training=False) == [0, 1]
    assert needs_backpressure(lower_cut(of.graph, pipeline(of.graph, 3)), training=True) == []


def test_in_training_those_would_to_whom_no_gradient_comes_back() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2)).requires_grad_(False)
    model[2].requires_grad_(True)
    graph, _ = capture(model, lambda y: y.square().mean(), (torch.zeros(6, 4),), ())
    first = [op.name for op in graph.ops[:2]]
    boxes = {op.name: [(op.nest.box, 0 if op.name in first else 1)] for op in graph.ops}
    assert needs_backpressure(lower_cut(graph, Cut(2, boxes)), training=True) == [0]
