"""The result of a run: rows, staleness, links and the verdict."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from places import USER_MODELS
from recording import exchange

from cutset.partition.cluster.machines import SharedCores, uniform_cluster
from cutset.ps.methods.registry import parse_method
from cutset.ps.optimizers.standard import SGD
from cutset.tools.analysis import result
from cutset.tools.analysis.results_table import describe_setup
from cutset.tools.config.run_config import RunConfig
from cutset.tools.job.prepare import prepare

MODELS = USER_MODELS


@pytest.fixture(autouse=True)
def _paths_are_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", sys.path[:])


@pytest.fixture
def options(tmp_path: Path) -> RunConfig:
    return RunConfig(f"{MODELS / 'good.py'}:task", optimizer=SGD(0.1), out=tmp_path / "run", shards=1)


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
        (link["source"], link["target"]): (link["bytes"], link["bytes_per_step"])
        for link in result._count_links(workers)
    }
    assert found == {
        ("worker-0.0", "worker-0.1"): (10, 2.0),
        ("worker-0.1", "worker-0.0"): (20, None),
        ("worker-0.0", "shard-0"): (30, 6.0),
        ("shard-0", "worker-0.0"): (40, 8.0),
    }


def test_recorded_steps_are_measured_and_explained(options: RunConfig) -> None:
    job = prepare(replace(options, machines=2))
    found = result._measure(job, exchange(6))
    assert found is not None
    assert found["step"]["step"] == 6
    assert found["time"]["step_s"] == found["step"]["step_s"] == 10.0
    assert found["findings"][0].startswith("A step took 10 s, ")
    assert [m["name"] for m in found["time"]["machines"]] == [m.name for m in job.placement.machines]  # type: ignore[union-attr]
    assert result._measure(job, [[], []]) is None


def test_a_step_is_compared_with_the_machines_that_were_measured_for_its_plan(options: RunConfig) -> None:
    """Not with what is kept of this machine, which may know nothing of the net."""
    measured = uniform_cluster(2)
    job = prepare(replace(options, machines=2), find_machines=lambda *asked: measured)
    assert result._load_cluster(job) is measured


def test_a_plan_for_processes_is_not_of_the_one_process_beside_them(
    options: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which has all cores; so the plan's gain over "one" is not the run's."""
    monkeypatch.setattr("cutset.tools.job.job.read_cores", lambda: 4)
    job = prepare(replace(options, machines=2), find_machines=lambda *asked: uniform_cluster(2))
    alone, cut = {"processes": 1, "threads": 4}, {"processes": 4, "threads": 2}
    said = "The plan's one machine has 2 threads; the one process that was trained here had 4 threads."
    assert said in describe_setup(job, [alone, cut])
    assert said not in describe_setup(replace(job, cluster=None), [alone, cut])
    assert said not in describe_setup(job, [cut])
    shared = (SharedCores((0, 1), 2, whole_speedup=1.5),)
    assert said not in describe_setup(replace(job, cluster=replace(uniform_cluster(2), shared=shared)), [alone, cut])
    assert said not in describe_setup(job, [{**alone, "threads": 2}, cut])


def outcome(seconds: float, *points: tuple[float, float], samples: int = 96) -> dict[str, Any]:
    scores = {"test_loss": 0.25, "metrics": {}}
    curve = [{"seconds": s, "samples": 1, "test_accuracy": share, **scores} for s, share in points]
    return {"seconds": seconds, "samples": samples, "curve": curve, "losses": [(1, 0.5)]}


def test_a_row_has_the_time_to_the_target(options: RunConfig) -> None:
    job = prepare(replace(options, target=0.9, replicas=2, epochs=2))
    row = result._make_row(job, "one", outcome(4.0, (1.0, 0.8), (2.0, 0.95), (3.0, 0.85)), processes=3)
    assert (row["samples"], row["samples_per_s"]) == (96, 24.0)
    assert (row["test_accuracy"], row["time_to_target_s"], row["processes"]) == (0.85, 2.0, 3)
    assert result._make_row(job, "one", outcome(4.0, (1.0, 0.8)), processes=3)["time_to_target_s"] is None


def test_the_verdict_compares_at_the_same_samples(options: RunConfig) -> None:
    job = prepare(options)
    rows = [result._make_row(job, "", outcome(s, (1.0, share)), processes=1) for s, share in ((2.0, 0.95), (4.0, 0.93))]
    assert result._describe_verdict(rows[:1]) == "95.0% test accuracy, test loss 0.25 after 96 samples in 2.0 s."
    said = "93.0% test accuracy, 2.0 points below one process at the same number of samples; "
    assert result._describe_verdict(rows) == said + "throughput is 0.50x of one process."
    assert "95.0% test accuracy, the same as one process at" in result._describe_verdict([rows[0], rows[0]])
    rows[0]["samples"] = 64  # it has ended early
    assert "one process after 64 samples" in result._describe_verdict(rows)


def test_a_run_that_lost_accuracy_with_stale_pushes_says_what_may_help(options: RunConfig) -> None:
    job = prepare(options)
    rows = [result._make_row(job, "", outcome(2.0, (1.0, share)), processes=1) for share in (0.95, 0.8)]
    assert result._describe_stale_pushes(rows) == [], "no push was stale"
    rows[1]["staleness_mean"] = 0.99
    (note,) = result._describe_stale_pushes(rows)
    assert note.startswith("Gradients were 1.0 updates old on average when they were applied (staleness), ")
    assert result._describe_stale_pushes(rows[1:]) == [], "of one row nobody knows"
    rows[1]["test_accuracy"] = 0.94
    assert result._describe_stale_pushes(rows) == []
    rows[1]["test_accuracy"] = None
    assert result._describe_stale_pushes(rows) == []


def test_without_an_accuracy_the_loss_and_the_metrics_are_compared(options: RunConfig) -> None:
    job, rows = prepare(options), []
    for seconds, loss in ((2.0, 1.5), (4.0, 1.25)):
        scores = {"test_accuracy": None, "test_loss": loss, "metrics": {"perplexity": 4.48}}
        point = {"seconds": 1.0, "samples": 1, **scores}
        found = {"seconds": seconds, "samples": 96, "curve": [point], "losses": [(1, 0.5)]}
        rows.append(result._make_row(job, "", found, processes=1))
    assert result._describe_verdict(rows) == (
        "Test loss 1.25, perplexity 4.48; one process at the same number of samples: test loss 1.5, perplexity 4.48; "
        "throughput is 0.50x of one process."
    )
    assert result._describe_verdict(rows[:1]) == "Test loss 1.5, perplexity 4.48 after 96 samples in 2.0 s."


@pytest.mark.parametrize(
    ("work_ms", "named"),
    [
        (
            {"a": 10.0, "b": 11.0, "c": 31.5},
            ["c was the slowest: 31.5 ms of work per step", "3.0 times the others' median"],
        ),
        ({"a": 10.0, "b": 11.0, "c": 14.0}, []),
        ({"a": 1.0, "b": 3.0}, []),
        ({"a": 100.0, "b": None}, []),
        ({"a": 100.0}, []),
    ],
)
def test_a_worker_that_is_clearly_slower_is_named(work_ms: dict[str, float | None], named: list[str]) -> None:
    workers = {name: {"step_s": None if ms is None else ms / 1000} for name, ms in work_ms.items()}
    said = result._describe_slowest(workers)
    assert len(said) == bool(named)
    assert all(words in said[0] for words in named)


def test_a_loss_that_does_not_fall_is_noted() -> None:
    def losses(*values: float) -> list[tuple[int, float]]:
        return list(enumerate(values))

    rising = [1.0, 1.2, 1.1, *9 * [2.0], 1.5, 2.5, 2.2]
    assert result._describe_rising_loss(losses(*rising), 0.5) == [
        "The loss ended at 2.2, no lower than it began (1.1): try --lr 0.05."
    ]
    assert result._describe_rising_loss(losses(*reversed(rising)), 0.5) == []
    assert result._describe_rising_loss(losses(1.0, 2.0), 0.5) == [], "too few to tell"


@pytest.mark.parametrize(
    ("text", "effective"),
    [
        ("downpour", {"rate of the workers' local steps": 0.1}),
        ("sync", {"pushes per update": 2}),
        ("averaging", {"pushes per update": 2, "optimizer of the shards": str(SGD(1.0))}),
        ("hogwild", {}),
    ],
)
def test_settings_have_what_a_method_makes_of_the_optimizer(
    options: RunConfig, text: str, effective: dict[str, Any]
) -> None:
    settings = result._list_settings(prepare(replace(options, method=parse_method(text), replicas=2)))
    assert settings["optimizer"] == str(SGD(0.1))
    names = ("optimizer of the shards", "pushes per update", "rate of the workers' local steps")
    assert {name: settings[name] for name in names if name in settings} == effective
