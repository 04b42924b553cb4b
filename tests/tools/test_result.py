"""The result of a run: rows, staleness, links and the verdict."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from recording import exchange

from cutset.ps.methods.downpour import Downpour
from cutset.ps.optimizers.standard import SGD
from cutset.ps.methods.registry import method
from cutset.tools.analysis import result
from cutset.tools.task.load_task import TaskSpec
from cutset.tools.task.plan_task import Wanted
from cutset.tools.job.prepare import Options, prepare

MODELS = Path(__file__).parent / "user_models"


@pytest.fixture(autouse=True)
def _paths_are_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", sys.path[:])


@pytest.fixture
def options(tmp_path: Path) -> Options:
    return Options(TaskSpec(f"{MODELS / 'good.py'}:task"), Downpour(), SGD(0.1), tmp_path / "run")


def test_each_direction_of_a_link_is_counted_once() -> None:
    def counts(out: int, back: int) -> dict[str, int]:
        return {"bytes_out": out, "messages_out": out // 10, "bytes_in": back, "messages_in": back // 10}

    workers = {
        "worker-0.0": {
            "links": {"worker-0.1": counts(10, 20), "shard-0": counts(30, 40), "launcher": counts(0, 0)},
            "steps": 5,
        },
        "worker-0.1": {"links": {"worker-0.0": counts(20, 10)}, "steps": 0},
    }
    found = {
        (link["source"], link["target"]): (link["bytes"], link["bytes_per_step"]) for link in result._links(workers)
    }
    assert found == {
        ("worker-0.0", "worker-0.1"): (10, 2.0),
        ("worker-0.1", "worker-0.0"): (20, None),
        ("worker-0.0", "shard-0"): (30, 6.0),
        ("shard-0", "worker-0.0"): (40, 8.0),
    }


def test_recorded_steps_are_measured_and_explained(options: Options) -> None:
    job = prepare(replace(options, wanted=Wanted(machines=2)))
    found = result._measured(job, exchange(6))
    assert found is not None
    assert found["typical"]["step"] == 6
    assert found["time"]["step_s"] == found["typical"]["step_s"] == 10.0
    assert found["why"][0].startswith("A step took 10 s, ")
    assert [m["name"] for m in found["time"]["machines"]] == [m.name for m in job.placement.machines]  # type: ignore[union-attr]
    assert result._measured(job, [[], []]) is None


def outcome(seconds: float, *points: tuple[float, float]) -> dict[str, Any]:
    curve = [{"seconds": s, "samples": 1, "test_accuracy": share} for s, share in points]
    return {"seconds": seconds, "curve": curve, "losses": [(1, 0.5)]}


def test_a_row_has_the_time_to_the_target(options: Options) -> None:
    job = prepare(replace(options, target=0.9, replicas=2, epochs=2))
    row = result._row(job, "one", outcome(4.0, (1.0, 0.8), (2.0, 0.95), (3.0, 0.85)), processes=3)
    assert (row["samples"], row["samples_per_s"]) == (192, 48.0)
    assert (row["test_accuracy"], row["time_to_target_s"], row["processes"]) == (0.85, 2.0, 3)
    assert result._row(job, "one", outcome(4.0, (1.0, 0.8)), processes=3)["time_to_target_s"] is None


def test_the_verdict_compares_at_the_same_samples(options: Options) -> None:
    job = prepare(options)
    rows = [result._row(job, "", outcome(s, (1.0, share)), processes=1) for s, share in ((2.0, 0.95), (4.0, 0.93))]
    assert result._verdict(job, rows[:1]) == "95.0% test accuracy after 96 samples in 2.0 s."
    said = "93.0% test accuracy, 2.0 points below one process at the same number of samples; "
    assert result._verdict(job, rows) == said + "0.50 times its samples a second."


def test_a_restart_is_told_in_words() -> None:
    restart = {"replica": 1, "step": 57, "code": "E602", "why": "worker-1.0 was killed", "seconds": 4.06}
    said = "Replica 1 was started again at step 57: worker-1.0 was killed"
    assert result._restart(restart) == f"{said}; 4.1 s later it trained again."
    assert result._restart({**restart, "seconds": None}) == f"{said}."


@pytest.mark.parametrize(
    ("work_ms", "named"),
    [
        (
            {"a": 10.0, "b": 11.0, "c": 31.5},
            ["c was the slowest: 31.5 ms of work a step", "3.0 times the others' median"],
        ),
        ({"a": 10.0, "b": 11.0, "c": 14.0}, []),
        ({"a": 1.0, "b": 3.0}, []),
        ({"a": 100.0, "b": None}, []),
        ({"a": 100.0}, []),
    ],
)
def test_a_worker_that_is_clearly_slower_is_named(work_ms: dict[str, float | None], named: list[str]) -> None:
    workers = {name: {"step_s": None if ms is None else ms / 1000} for name, ms in work_ms.items()}
    said = result._slowest(workers)
    assert len(said) == bool(named)
    assert all(words in said[0] for words in named)


def test_a_loss_that_does_not_fall_is_said() -> None:
    def losses(*values: float) -> list[tuple[int, float]]:
        return list(enumerate(values))

    rising = [1.0, 1.2, 1.1, *9 * [2.0], 1.5, 2.5, 2.2]
    assert result._rising(losses(*rising), 0.5) == [
        "The loss ended at 2.2, no lower than it began (1.1): try --lr 0.05."
    ]
    assert result._rising(losses(*reversed(rising)), 0.5) == []
    assert result._rising(losses(1.0, 2.0), 0.5) == [], "too few to tell"


@pytest.mark.parametrize(
    ("text", "effective"),
    [
        ("downpour", {"rate of workers' own steps": 0.1}),
        ("sync", {"pushes of an update": 2}),
        ("averaging", {"pushes of an update": 2, "rule of the shards": str(SGD(1.0))}),
        ("hogwild", {}),
    ],
)
def test_settings_say_what_a_method_makes_of_the_rule(options: Options, text: str, effective: dict[str, Any]) -> None:
    settings = result._settings(prepare(replace(options, method=method(text, {}), replicas=2)))
    assert settings["rule"] == str(SGD(0.1))
    names = ("rule of the shards", "pushes of an update", "rate of workers' own steps")
    assert {name: settings[name] for name in names if name in settings} == effective
