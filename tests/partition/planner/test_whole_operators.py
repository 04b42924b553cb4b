"""Where operators that cannot be cut are placed: the experts of a mixture on different machines."""

import functools
import itertools
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from cutting import Subject, assert_same, run_cut, run_plain
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from zoo import Case

from cutset.models.task import Data
from cutset.partition.capture.export import capture
from cutset.partition.cluster.cost_model import CostModel
from cutset.partition.cluster.machines import Cluster, uniform_cluster
from cutset.partition.dataflow.cut import Cut, fuse_boxes
from cutset.partition.dataflow.dataflow import Dataflow
from cutset.partition.dataflow.lowering import lower_cut
from cutset.partition.dataflow.simulator import simulate
from cutset.partition.ir.graph import Graph
from cutset.partition.operators.island import ISLAND
from cutset.partition.operators.routed_rows import COMBINE, DISPATCH, ROUTED
from cutset.partition.placement.verdict import write_verdict
from cutset.partition.planner.candidates import propose_candidates
from cutset.partition.planner.plan import Candidate, PlanningProblem, PlanningResult
from cutset.partition.planner.planner import find_plan
from cutset.partition.planner.whole_operators import _share_out, spread_whole_operators
from cutset.tools.bench.planner.hand_plans import _divide_batch

pytestmark = pytest.mark.xdist_group("whole operators")  # what is captured and planned once is shared

TOKENS, WIDTH, HIDDEN = 512, 128, 512


class Mixture(nn.Module):
    """Experts of which each token goes to some at most, and a layer before and after."""

    def __init__(self, hidden: Sequence[int], chosen: int = 2) -> None:
        super().__init__()
        self.chosen = min(chosen, len(hidden))
        self.first, self.last, self.gate = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 10), nn.Linear(WIDTH, len(hidden))
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(WIDTH, h), nn.GELU(), nn.Linear(h, WIDTH)) for h in hidden)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        weight, chosen = self.gate(x).softmax(-1).topk(self.chosen, -1)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            token, place = torch.where(chosen == number)
            out.index_add_(0, token, expert(x[token]) * weight[token, place, None])
        return self.last(out)


def mixed_samples() -> Data:
    return Data((torch.randn(64, WIDTH),), (torch.randint(10, (64,)),))


@functools.cache
def mixture(hidden: tuple[int, ...], chosen: int) -> Graph:
    batch = (torch.zeros(TOKENS, WIDTH),), (torch.zeros(TOKENS, dtype=torch.long),)
    return capture(Mixture(hidden, chosen), F.cross_entropy, *batch)[0]


@pytest.fixture
def eight() -> Graph:
    return mixture((HIDDEN,) * 8, 2)


def network(gbits: float, machines: int = 4) -> Cluster:
    return replace(uniform_cluster(machines), bandwidth=gbits * 125e6)


@functools.cache
def plan_eight(gbits: float) -> PlanningResult:
    return find_plan(mixture((HIDDEN,) * 8, 2), network(gbits))


def spread(graph: Graph, cluster: Cluster, pins: dict[str, int] | None = None) -> dict[str, int]:
    return spread_whole_operators(graph, cluster, CostModel(graph.tensors), pins or {})


def test_neighbours_are_together_and_rows_are_routed_where_they_are(eight: Graph) -> None:
    placed = spread(eight, network(1))
    experts = [op.name for op in eight.ops if op.target == ISLAND]
    assert [placed[name] for name in experts] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert len(placed) == len(experts)


@pytest.mark.run
def test_of_more_rows_than_all_the_whole_tensor_travels_and_a_sum_returns() -> None:
    graph = mixture((HIDDEN,) * 8, 3)  # four experts of a machine take 1.5 times as many rows as there are
    placed = spread(graph, network(1, machines=2))
    experts = [op.name for op in graph.ops if op.target == ISLAND]
    assert [placed[name] for name in experts] == [0, 0, 0, 0, 1, 1, 1, 1]
    for target in ROUTED:
        assert [placed[op.name] for op in graph.ops if op.target == target] == [0, 0, 0, 0, 1, 1, 1, 1]
    sums = [op for op in graph.ops if op.target == "aten.add.Tensor" and op.name in placed]
    assert sorted(placed[op.name] for op in sums) == [0, 0, 0, 1, 1, 1]


def test_a_pinned_expert_stays_where_it_is(eight: Graph) -> None:
    pinned = next(op.name for op in eight.ops if op.target == ISLAND)
    placed = spread(eight, network(1), {pinned: 3})
    assert pinned not in placed
    assert len([op for op in eight.ops if op.target == ISLAND and op.name in placed]) == 7


def test_all_rows_travel_where_that_is_asked_for(eight: Graph) -> None:
    placed = spread_whole_operators(eight, network(1), CostModel(eight.tensors), {}, all_rows=True)
    for target in (ISLAND, *ROUTED):
        assert [placed[op.name] for op in eight.ops if op.target == target] == [0, 0, 1, 1, 2, 2, 3, 3]


@pytest.mark.run
def test_where_packing_costs_more_than_the_network_whole_tensors_travel() -> None:
    slow, fast = (plan_eight(gbits).winner for gbits in (1, 1000))
    assert slow.dataflow.depends_on_data
    assert not fast.dataflow.depends_on_data


def test_rows_that_stay_on_a_machine_are_passed_on(eight: Graph) -> None:
    """The tokens of a machine for its own experts; on one machine all."""
    for machines in (1, 2, 4):
        dataflow = expert_parallel(eight, machines)
        routed = [i for i in dataflow.instructions if i.op in {op.name for op in eight.ops if op.target in ROUTED}]
        experts = {op.name: op for op in eight.ops if op.target == ISLAND}
        beside = {op.outputs[0]: op for op in eight.ops if op.target == DISPATCH}
        assert len(routed) == 2 * len(experts) * machines
        assert len(dataflow.passing) == 2 * len(experts)
        for expert in experts.values():
            (place,) = [i.machine for i in dataflow.instructions if i.op == expert.name]
            dispatches = {beside[name].name for name in expert.inputs if name in beside}
            assert {i.machine for i in routed if i.op in dispatches and i.index in dataflow.passing} == {place}


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("gbits", [1, 10])
@pytest.mark.run
def test_a_plan_is_as_fast_as_one_whose_experts_are_placed_by_hand(eight: Graph, gbits: float) -> None:
    experts = [op.name for op in eight.ops if op.target == ISLAND]
    by_hand = [f"{name}={number // 2}" for number, name in enumerate(experts)]
    found = plan_eight(gbits).winner.simulation.step_s
    assert found <= find_plan(eight, network(gbits), pins=by_hand).winner.simulation.step_s
    assert found <= simulate(expert_parallel(eight, 4), network(gbits)).step_s


def expert_parallel(graph: Graph, machines: int) -> Dataflow:
    """Experts side by side, all else divided by the batch, as GShard does it (Lepikhin et al., 2021, section 3.2)."""
    experts = [op for op in graph.ops if op.target == ISLAND]
    boxes = _divide_batch(graph, [1.0] * machines)
    boxes |= {op.name: [(op.nest.box, i * machines // len(experts))] for i, op in enumerate(experts)}
    return lower_cut(graph, Cut(machines, fuse_boxes(machines, boxes)))


@pytest.mark.first_cases(2)
@pytest.mark.parametrize(("machines", "chosen"), [(4, 2), (2, 1), (8, 2)])
@pytest.mark.run
def test_only_the_tokens_of_an_expert_travel_to_it_and_back(machines: int, chosen: int) -> None:
    graph = mixture((HIDDEN,) * 8, chosen)
    dataflow, ops = expert_parallel(graph, machines), {op.name: op for op in graph.ops}
    routed = {op.outputs[0] for op in ops.values() if op.target == DISPATCH}
    routed |= {op.inputs[0] for op in ops.values() if op.target == COMBINE}
    pieces = [copy for edge in dataflow.edges for _, copy in edge.pairs if dataflow.pieces[copy].tensor in routed]
    sent = sum(map(dataflow.sent_bytes, pieces))
    tokens = 2 * chosen * TOKENS * WIDTH * 4 * (machines - 1) / machines
    assert sent == pytest.approx(tokens, rel=0.03)  # of three made-up batches, and a bit for each row


@pytest.mark.parametrize("experts", [4, pytest.param(8, marks=pytest.mark.slow)])
def test_a_step_of_such_a_plan_is_that_of_plain_torch(experts: int) -> None:
    case = Case(lambda: Mixture([32] * experts), mixed_samples)
    subject = Subject(case, torch.float64)
    problem = PlanningProblem(subject.graph, network(10, machines=3))
    found = [one for one in propose_candidates(problem) if "whole apart" in one.name]
    assert any(one.name.endswith("all rows") for one in found)
    for candidate in found:
        assert isinstance(candidate, Candidate)
        assert_same(run_cut(subject, candidate.cut), run_plain(subject), rtol=1e-9)


def test_there_is_no_such_candidate_where_one_operator_alone_is_whole() -> None:
    assert spread(mixture((HIDDEN,), 1), network(1)) == {}


@given(
    st.lists(st.floats(0.01, 100), min_size=1, max_size=6),
    st.lists(st.sampled_from([1.0, 2.0]), min_size=2, max_size=3),
)
def test_no_machine_has_much_more_than_in_the_best_of_all_ways(seconds: list[float], speeds: list[float]) -> None:
    def busiest(chosen: Sequence[int]) -> float:
        return max(
            sum(one for one, machine in zip(seconds, chosen, strict=True) if machine == m) / speed
            for m, speed in enumerate(speeds)
        )

    best = min(busiest(chosen) for chosen in itertools.product(range(len(speeds)), repeat=len(seconds)))
    # Graham's bound for like machines is 4/3; for machines of two speeds Gonzalez, Ibarra and Sahni (1977) give 2.
    assert busiest(_share_out(seconds, speeds)) <= 1.05 * 2 * best * (1 + 1e-9)


@pytest.mark.run
def test_the_verdict_says_so() -> None:
    slow, fast = (write_verdict(plan_eight(gbits)) for gbits in (1, 1000))
    assert "forward (the data chooses which rows)" in slow
    assert "the data chooses" not in fast
    assert all(verdict.endswith("= expert parallel.") for verdict in (slow, fast))
