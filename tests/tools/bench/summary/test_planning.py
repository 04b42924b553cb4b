"""Plans, predictions and what planning takes become rows beside their peers."""

from types import SimpleNamespace
from typing import Any, cast

from cutset.tools.bench.device_placement.run_graphs import GraphResult
from cutset.tools.bench.planner.baselines import PlanComparison
from cutset.tools.bench.planner.planning_time import PlanningTime
from cutset.tools.bench.planner.unlike_machines import UnlikeComparison
from cutset.tools.bench.summary.planning import (
    GOALS,
    Limit,
    compare_planning,
    list_cluster,
    list_graphs,
    list_predictions,
    list_steps,
    list_unlike,
)


def make_plan(step_s: float, peers: dict[str, float]) -> PlanComparison:
    return PlanComparison("net", 4, 4, "mesh", step_s, 2.0, peers, "mesh", 1, 1.0, 1.0, None, 1.0)


def test_a_plan_stands_beside_the_best_of_the_others() -> None:
    rows = list(list_steps([make_plan(1.0, {"slices": 1.0, "tiles": 3.0}), make_plan(2.5, {"tiles": 3.0})]))
    assert [(row.peer, row.ratio, row.met) for row in rows] == [("slices", 1.0, True), ("one machine", 1.25, False)]


def test_a_plan_for_unlike_machines_stands_beside_the_best_by_hand_that_fits() -> None:
    def make(step_s: float | None, hand_step_s: float | None) -> UnlikeComparison:
        return UnlikeComparison("net", "half", 1, "mesh", 4, step_s, "tiles", hand_step_s, 3, 20, 1.0)

    rows = list(list_unlike([make(1.0, 2.0), make(3.0, 2.0), make(1.0, None), make(None, None)]))
    assert [(row.peer, row.ratio, row.met) for row in rows] == [
        ("tiles", 0.5, True),
        ("tiles", 1.5, False),
        ("", None, None),
    ]


def test_planning_stands_beside_an_export_by_rounds() -> None:
    planned = PlanningTime("transformer, 2 layers", 41, 8, 1.0, 6.0, 1, "mesh", 1.0)
    row = compare_planning([(planned, 2.0), (planned, 3.0)], Limit(most=GOALS[2], of_ratio=False))
    assert (row.name, row.values, row.ratio, row.met) == ("transformer, 2 layers, 8 machines", (6.0, 6.0), 2.5, True)


def make_pair(predicted_s: float, sent: int) -> Any:
    pair = SimpleNamespace(model="m:mlp", cluster="2 processes")
    rounds = [SimpleNamespace(predicted_s=predicted_s, cut=SimpleNamespace(median_s=1.0))]
    return SimpleNamespace(pair=pair, rounds=rounds, whole_bytes=(10, sent))


def test_a_prediction_is_met_within_its_bounds_and_bytes_exactly() -> None:
    rows = list(list_predictions(cast(Any, [make_pair(1.14, 10), make_pair(1.16, 11), make_pair(0.86, 10)])))
    assert [row.met for row in rows] == [True, True, False, False, True, True]


def test_micro_batches_stand_beside_lock_step_and_the_prediction() -> None:
    def make(name: str, measured_s: float, predicted_s: float) -> Any:
        variant = SimpleNamespace(name=name, simulation=SimpleNamespace(step_s=predicted_s))
        return SimpleNamespace(variant=variant, rounds=(measured_s,))

    one, lock, micro = make("one", 4.0, 4.0), make("lock-step", 3.0, 3.1), make("4 micro-batches", 1.0, 1.5)
    result = SimpleNamespace(rows=(one, lock, micro), lock_step=lock, micro=micro)
    rows = list(list_cluster(cast(Any, result)))
    assert [(row.peer, row.met) for row in rows] == [("lock-step", True), ("predicted", True), ("predicted", False)]


def test_every_published_objective_is_a_peer() -> None:
    def make(reference: dict[str, float]) -> GraphResult:
        return GraphResult("g", "metis", 2, 0, "edge cut", 9.0, None, False, None, reference, 1.0, {})

    rows = list(list_graphs([make({"METIS": 10.0, "best": 9.0}), make({})]))
    assert [(row.peer, row.ratio) for row in rows] == [("METIS", 0.9), ("best", 1.0), ("", None)]
