"""Local search: better or nothing, legal, within its budget, and never where it may not go."""

import pytest
import torch
from example_graphs import chain, mlp_block
from random_nets import random_graph
from torch import nn

from cutset.partition.capture.export import capture
from cutset.partition.cluster.machines import Cluster, Machine, uniform_cluster
from cutset.partition.dataflow.cut import Cut, check_cut, colocate_overwriters
from cutset.partition.dataflow.lowering import lower_cut
from cutset.partition.dataflow.simulator import simulate
from cutset.partition.ir.graph import Graph
from cutset.partition.planner import local_search
from cutset.partition.planner.local_search import improve_cut
from cutset.partition.planner.plan import PlanningProblem
from cutset.partition.planner.planner import find_plan
from cutset.tools.task.capture_task import capture_task
from cutset.tools.task.load_task import TaskSpec

QUICK = Cluster(uniform_cluster(3).machines, bandwidth=1e12, latency_s=0.0)


def dealt(graph: Graph, machines: int) -> Cut:
    """Whole operators in turn: a cut that leaves much to be wished for."""
    boxes = {op.name: [(op.nest.box, i % machines)] for i, op in enumerate(graph.ops)}
    return Cut(machines, colocate_overwriters(graph, boxes))


class Ranked:
    """Seconds of a step, and every cut that was asked about."""

    def __init__(self, graph: Graph, cluster: Cluster) -> None:
        self.graph, self.cluster = graph, cluster
        self.asked: list[Cut] = []

    def __call__(self, cut: Cut) -> tuple[float]:
        self.asked.append(cut)
        return (simulate(lower_cut(self.graph, cut), self.cluster).step_s,)


def used(cut: Cut) -> set[int]:
    return {machine for pieces in cut.boxes.values() for _, machine in pieces}


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.run
def test_what_is_found_is_legal_better_and_uses_every_machine(seed: int) -> None:
    graph = random_graph(seed)
    start, rank = dealt(graph, 3), Ranked(graph, uniform_cluster(3))
    better = improve_cut(PlanningProblem(graph, uniform_cluster(3)), start, rank)
    assert better is not None, "one machine would be fastest, so there is always something to gain"
    check_cut(graph, better)
    assert rank(better) < rank(start)
    for cut in rank.asked:
        check_cut(graph, cut)
        assert used(cut) == {0, 1, 2}


def test_where_nothing_is_better_there_is_no_answer() -> None:
    graph = chain(8, 8, 8)
    assert improve_cut(PlanningProblem(graph, uniform_cluster(2)), dealt(graph, 2), lambda cut: (0.0,)) is None


def test_large_layers_of_a_quick_network_are_all_divided() -> None:
    graph = chain(256, 256, 256, batch=64)
    better = improve_cut(PlanningProblem(graph, QUICK), dealt(graph, 3), Ranked(graph, QUICK))
    assert better is not None
    assert [len(better.boxes[name]) for name in ("linear", "linear_1")] == [3, 3]


def test_pinned_operators_stay() -> None:
    graph = mlp_block(64, 32, 256)
    pins = {"linear_1": 1, "linear_2": 2}
    start = dealt(graph, 3)
    start = Cut(3, {**start.boxes, **{name: [(start.boxes[name][0][0], m)] for name, m in pins.items()}})
    rank = Ranked(graph, QUICK)
    assert improve_cut(PlanningProblem(graph, QUICK, pins=pins), start, rank) is not None
    for cut in rank.asked:
        assert {name: cut.boxes[name][0][1] for name in pins} == pins
        assert all(len(cut.boxes[name]) == 1 for name in pins)


def test_where_all_is_pinned_nothing_is_tried() -> None:
    graph = chain(8, 8, 8)
    rank = Ranked(graph, QUICK)
    assert (
        improve_cut(PlanningProblem(graph, QUICK, pins={op.name: 0 for op in graph.ops}), dealt(graph, 3), rank) is None
    )
    assert len(rank.asked) == 1


def test_what_overwrites_a_buffer_stays_together() -> None:
    norm = nn.BatchNorm1d(6)
    net = nn.Sequential(nn.Linear(5, 6), norm, nn.Linear(6, 6), norm)
    graph = capture(net, lambda y: y.mean(), [torch.zeros(4, 5)])[0]
    rank = Ranked(graph, QUICK)
    improve_cut(PlanningProblem(graph, QUICK), dealt(graph, 3), rank)
    assert len(rank.asked) > 10
    for cut in rank.asked:
        check_cut(graph, cut)


def test_its_budget_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = mlp_block(64, 32, 256)
    for instructions, most in ((10_000, local_search.MAX_TRIALS), (len(graph.ops) * 5, 5), (0, 0)):
        monkeypatch.setattr(local_search, "MAX_INSTRUCTIONS", instructions)
        rank = Ranked(graph, QUICK)
        improve_cut(PlanningProblem(graph, QUICK), dealt(graph, 3), rank)
        assert len(rank.asked) <= 1 + most


def test_the_same_start_has_the_same_end() -> None:
    graph = random_graph(4)
    first, second = (
        improve_cut(PlanningProblem(graph, QUICK), dealt(graph, 3), Ranked(graph, QUICK)) for _ in range(2)
    )
    assert first == second


@pytest.mark.run
def test_unlike_machines_are_tried_in_both_orders() -> None:
    """A small net on five unlike machines: cut in the reverse order, the slowest machine has little to wait for."""
    graph = capture_task(TaskSpec("cutset.models:digits")).train
    machines = tuple(Machine(f"m {i}", speed * 1e9) for i, speed in enumerate((80, 50, 30, 20, 10)))
    result = find_plan(graph, Cluster(machines))
    start = next(plan for plan in result.plans if plan.name == "metis pairs/5")
    assert result.winner.simulation.step_s < 0.7 * start.simulation.step_s
