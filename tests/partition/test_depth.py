"""Pipeline depth, on cuts whose machines wait for each other and on such where they do not."""

from cutting import finest_cut, pipeline, subject

from cutset.partition.cut import Cut
from cutset.partition.depth import pipeline_depths
from cutset.partition.exchange import flow


def test_a_pipeline_is_as_deep_as_it_has_machines() -> None:
    graph = subject("mlp").graph
    assert pipeline_depths(flow(graph, pipeline(graph, 3))) == [3, 2, 1]


def test_machines_that_wait_for_each_other_are_one_stage() -> None:
    graph = subject("mlp").graph
    assert pipeline_depths(flow(graph, finest_cut(graph, 3))) == [1, 1, 1]


def test_an_idle_machine_is_a_stage_of_its_own() -> None:
    graph = subject("mlp").graph
    straight = pipeline(graph, 2)
    assert pipeline_depths(flow(graph, Cut(3, straight.boxes))) == [2, 1, 1]
