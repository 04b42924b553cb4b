"""What candidates cost by shorter graphs, against their simulation on the whole graph."""

import math
from dataclasses import replace

import pytest
import torch
from example_graphs import Mlp
from torch import nn

from cutset.errors import Infeasible
from cutset.partition.capture.export import capture
from cutset.partition.cluster.machines import Cluster, Machine, uniform_cluster
from cutset.partition.dataflow.cut import Cut
from cutset.partition.dataflow.simulator import Simulation
from cutset.partition.ir.graph import Graph
from cutset.partition.planner import candidates, estimates, local_search
from cutset.partition.planner.candidates import candidate_names, count_stages
from cutset.partition.planner.estimates import CandidateEstimates, Estimate, find_nearest, shorten_problem
from cutset.partition.planner.plan import DEFERRED_SUFFIX, Figures, PlanningProblem, ScoredPlan
from cutset.partition.planner.plan_scorer import PlanScorer
from cutset.partition.planner.planner import find_plan

BLOCKS, WIDTH = 20, 32


@pytest.fixture(scope="module")
def deep() -> Graph:
    layers = [nn.Linear(WIDTH, WIDTH), *(Mlp(WIDTH, 64) for _ in range(BLOCKS)), nn.Linear(WIDTH, 8)]
    return capture(nn.Sequential(*layers), lambda y: y.square().mean(), [torch.zeros(64, WIDTH)])[0]


@pytest.fixture(autouse=True)
def _no_local_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """It starts from what was simulated whole, with estimates from fewer plans."""
    monkeypatch.setattr(local_search, "MAX_TRIALS", 0)


@pytest.mark.parametrize("micro_batches", [1, 4])
@pytest.mark.run
def test_an_estimate_is_about_what_the_whole_graph_costs(
    deep: Graph, micro_batches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(estimates, "MIN_WORK", 0)
    problem = PlanningProblem(deep, uniform_cluster(4), micro_batches=micro_batches)
    names = [name for name in candidate_names(problem) if name.startswith(("mesh", "slices", "stages x mesh"))]
    found = CandidateEstimates(problem, prefix="").estimate_all(names)
    assert len(found) >= 5
    for estimate in found:
        whole = find_plan_of(problem, estimate.name)
        assert estimate.figures.step_s == pytest.approx(whole.step_s, rel=0.05)
        assert "repeated blocks" in estimate.reject().reason


def find_plan_of(problem: PlanningProblem, name: str) -> Simulation:
    """The simulation of a candidate on the whole graph, which no estimate takes part in."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(estimates, "MIN_WORK", 10**9)
        result = find_plan(problem.graph, problem.cluster, candidates=name, micro_batches=problem.micro_batches)
    return next(plan for plan in result.plans if plan.name == name).simulation


@pytest.mark.parametrize("machines", [3, 4])
@pytest.mark.parametrize("gigabit", [1, 100])
@pytest.mark.run
def test_the_plan_is_as_good_as_without_estimates(
    deep: Graph, machines: int, gigabit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(uniform_cluster(machines).machines, bandwidth=gigabit * 110e6, latency_s=1e-5)
    whole = find_plan(deep, cluster)
    monkeypatch.setattr(estimates, "MIN_WORK", 0)
    result = find_plan(deep, cluster)
    assert result.winner.simulation.step_s <= 1.03 * whole.winner.simulation.step_s
    names, all_names = ({plan.name.removesuffix(DEFERRED_SUFFIX) for plan in found.plans} for found in (result, whole))
    assert names < all_names
    assert any("of its 20 repeated blocks" in one.reason for one in result.rejected)


@pytest.mark.run
def test_where_memory_is_scarce_a_plan_is_found_all_the_same(deep: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimates, "MIN_WORK", 0)
    least = max(find_plan(deep, uniform_cluster(4), objective="memory").winner.simulation.memory_bytes)
    tight = Cluster(tuple(Machine(f"m{i}", memory_bytes=int(1.02 * least)) for i in range(4)))
    assert find_plan(deep, tight).winner.fits


@pytest.fixture(scope="module")
def wide() -> Graph:
    layers = [nn.Linear(512, 512), *(Mlp(512, 1024) for _ in range(BLOCKS)), nn.Linear(512, 8)]
    return capture(nn.Sequential(*layers), lambda y: y.square().mean(), [torch.zeros(512, 512)])[0]


@pytest.mark.parametrize("estimated", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("room", "shape"), [(250, "2x4"), (150, "4x2")])
@pytest.mark.run
def test_where_no_mesh_of_all_machines_fits_stages_on_meshes_do(
    wide: Graph, room: int, shape: str, estimated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where stages of unlike size are too many to try: a pipeline of single machines would be far slower."""
    monkeypatch.setattr(estimates, "MIN_WORK", 0 if estimated else 10**9)
    monkeypatch.setattr(candidates, "MAX_DIVIDED_WORK", 0)
    cluster = replace(uniform_cluster(8), bandwidth=11e9, latency_s=1e-6)
    by_mesh = find_plan(wide, cluster, candidates="mesh 2x4").winner
    machines = tuple(replace(machine, memory_bytes=room * 1_000_000) for machine in cluster.machines)
    small = replace(cluster, machines=machines)
    assert max(by_mesh.simulation.memory_bytes) > room * 1_000_000
    staged = find_plan(wide, small, candidates=f"stages x mesh {shape}").winner.simulation.step_s
    pipeline = find_plan(wide, small, candidates="even stages").winner.simulation.step_s
    found = find_plan(wide, small).winner
    assert found.fits
    assert found.simulation.step_s <= staged < pipeline / 1.5
    names = [plan.name for plan in find_plan(wide, small, candidates="stages x mesh").plans]
    assert len(set(names)) == len(names) > 0


def test_what_a_process_takes_by_itself_is_the_same_with_a_shorter_model(
    deep: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(estimates, "MIN_WORK", 0)
    room, found = 1 << 22, list[list[tuple[str, bool, float]]]()
    for taken in (0, 1 << 28):
        machine = Machine("m", memory_bytes=taken + room, process_bytes=taken)
        problem = PlanningProblem(deep, Cluster((machine,) * 4))
        estimated = CandidateEstimates(problem, prefix="").estimate_all(["mesh 4", "slices"])
        found.append([(one.name, one.figures.fits, one.figures.step_s) for one in estimated])
    assert found[0] == found[1]
    assert all(fits for _, fits, _ in found[0])


@pytest.mark.parametrize("is_tight", [True, False])
def test_a_shorter_graph_stands_for_all_candidates_whether_its_own_memory_is_tight_or_not(
    deep: Graph, is_tight: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(estimates, "MIN_WORK", 0)
    monkeypatch.setattr(candidates, "is_memory_tight", lambda problem: (problem.graph is deep) == is_tight)
    problem = PlanningProblem(deep, uniform_cluster(4), micro_batches=4)
    found, names = CandidateEstimates(problem, prefix="mesh"), candidate_names(problem)
    named = [*(one.name for one in found.estimate_all(names)), *(one.name for one in found.rejected)]
    assert any("to fit" in name for name in names) == is_tight
    assert sorted(named) == sorted(name for name in names if name.startswith("mesh"))


def test_small_problems_and_pinned_ones_are_planned_whole(deep: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = PlanningProblem(deep, uniform_cluster(4))
    assert shorten_problem(problem, 1) is None
    monkeypatch.setattr(estimates, "MIN_WORK", 0)
    assert shorten_problem(problem, 1) is not None
    assert shorten_problem(PlanningProblem(deep, uniform_cluster(4), pins={deep.ops[0].name: 1}), 1) is None
    assert shorten_problem(problem, BLOCKS) is None


def test_stages_are_counted_by_the_name(deep: Graph) -> None:
    problem = PlanningProblem(deep, uniform_cluster(8), micro_batches=4)
    for name in candidate_names(problem):
        stages = count_stages(name, 8)
        if name.startswith("stages x meshes"):
            assert stages == 0
        elif name.startswith("stages x mesh"):
            shape = [int(size) for size in name.removeprefix("stages x mesh ").split("x")]
            assert stages == shape[0] > 1
        else:
            assert stages == (8 if name in ("stages", "even stages", "metis layers") else 1)


@pytest.mark.run
def test_where_nothing_fits_few_candidates_are_simulated_whole(deep: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimates, "MIN_WORK", 0)
    tiny = Cluster(tuple(Machine(f"m{i}", memory_bytes=1000) for i in range(4)))
    whole, score = list[str](), PlanScorer.score

    def count_whole(scorer: PlanScorer, name: str, cut: Cut, cluster: Cluster) -> ScoredPlan:
        plan = score(scorer, name, cut, cluster)
        if plan.graph is deep:
            whole.append(name)
        return plan

    monkeypatch.setattr(PlanScorer, "score", count_whole)
    with pytest.raises(Infeasible, match="no plan fits in memory"):
        find_plan(deep, tiny)
    estimated = [name for name in whole if count_stages(name, 4) == 1 and name != "one machine"]
    assert len(estimated) == estimates.NEAREST


@pytest.mark.parametrize(("room", "found"), [(100, ["near"]), (math.inf, ["near", "far"]), (90, [])])
def test_what_comes_nearest_is_simulated_whole_where_it_nearly_fits(room: float, found: list[str]) -> None:
    needed = {"far": 150.0, "near": 104.0, "farther": 151.0, "out of reach": 300.0}
    too_large = [Estimate(name, Figures(1.0, 1.0, size, False, False), 3, 20) for name, size in needed.items()]
    assert [one.name for one in find_nearest(too_large, room)] == found
    assert len({one.reject().reason for one in too_large}) == 1


@pytest.mark.run
def test_what_would_not_fit_is_not_simulated_whole_where_something_fits(
    wide: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(estimates, "MIN_WORK", 0)
    found = find_plan(wide, Cluster(tuple(Machine(f"m{i}", memory_bytes=150_000_000) for i in range(8))))
    assert found.winner.fits
    assert all(plan.fits for plan in found.plans if plan.name.startswith(("mesh", "slices")))
    assert {"mesh 8", "slices"} <= {one.name for one in found.rejected if "too little memory" in one.reason}
