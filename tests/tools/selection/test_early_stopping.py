"""Whole runs that keep their best weights and end early: by what a metric says, or as the user requests."""

import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from listening import Listening
from marking import with_slow
from places import USER_MODELS

from cutset.runtime.channel.message import Message
from cutset.tools.config.run_config import RunConfig
from cutset.tools.evaluation.evaluate import evaluate
from cutset.tools.job.prepare import prepare
from cutset.tools.run_folder import BEST, BEST_WEIGHTS
from cutset.tools.task.load_task import TaskSpec
from cutset.tools.task.plan_request import PlanRequest
from cutset.tools.train import run
from cutset.tools.training.supervisor import TrainingSupervisor

TASK = f"{USER_MODELS / 'scripted.py'}:task"
EPOCHS, STEPS = 20, 6  # of a replica in an epoch


def options(out: Path, method: str = "sync", **more: Any) -> RunConfig:
    return RunConfig(
        TASK,
        **{"method": method, "lr": 0.05, "replicas": 2, "epochs": EPOCHS, "baseline": False, "out": out, **more},
    )


@pytest.mark.run
@pytest.mark.parametrize(("method", "machines"), with_slow([("sync", 2)], [("downpour", 1), ("averaging:every=3", 1)]))
def test_training_ends_when_a_score_is_better_no_more(tmp_path: Path, method: str, machines: int) -> None:
    listening = Listening()
    result = run(
        prepare(options(tmp_path / "run", method, monitor="scripted", patience=2, machines=machines)), listening
    )
    curve = result["rows"][-1]["curve"]
    said = [point["metrics"]["scripted"] for point in curve]
    assert said[:5] == [2.0, 1.0, 0.0, 1.0, 2.0]
    assert said == [report.metrics["scripted"] for report in listening.evaluations]
    assert result["best"] == {"score": "scripted", "value": 0.0, "samples": curve[2]["samples"]}
    assert result["rows"][-1]["samples"] == curve[-1]["samples"] < 96 * EPOCHS
    if method != "downpour":  # which computes what was leased before
        assert len(curve) == 6
        assert curve[-1]["samples"] == (5 * STEPS + 1) * 16, "all replicas take one more step"
    assert not (tmp_path / "run" / BEST).exists()
    scores = evaluate(TaskSpec(TASK), tmp_path / "run" / BEST_WEIGHTS, request=PlanRequest())
    assert scores["loss"] == pytest.approx(curve[2]["test_loss"], rel=1e-12), "they are those that were evaluated"
    assert any("scripted was not better in 2 evaluations" in note for note in result["notes"])
    assert listening.checkpoints[-1].step == curve[-1]["samples"] // 16


@pytest.mark.slow
def test_the_one_process_ends_by_the_same_rule(tmp_path: Path) -> None:
    result = run(prepare(options(tmp_path / "run", "downpour", patience=2, monitor="scripted", baseline=True)))
    alone, together = result["rows"]
    assert alone["samples"] == 5 * 2 * STEPS * 8
    assert f"one process after {alone['samples']} samples" in result["verdict"]
    assert 6 <= len(together["curve"]) < EPOCHS


@pytest.mark.slow
@pytest.mark.parametrize("method", ["sync", "downpour"])
def test_a_run_that_was_ended_early_goes_on(tmp_path: Path, method: str) -> None:
    """The user ends it; where replicas take turns, after the next evaluation. Resumed, it makes all steps."""
    first = options(tmp_path / "run", method, monitor="min:scripted")
    listening = Listening(stop=lambda: bool(listening.evaluations))
    result = run(prepare(first), listening)
    samples = result["rows"][-1]["samples"]
    assert samples < 96 * 12
    assert any(note.startswith("It ended early, after") for note in result["notes"])
    again = run(prepare(replace(first, resume=tmp_path / "run", epochs=12)))
    assert again["rows"][-1]["samples"] == 96 * 12 - samples


@pytest.mark.slow
def test_the_best_of_the_part_before_stays_where_a_run_goes_on(tmp_path: Path) -> None:
    """The metric counts anew: 2, 1, 0, then 2, 1, none of which is better."""
    first = options(tmp_path / "run", monitor="scripted", epochs=3)
    best = run(prepare(first))["best"]
    before = (tmp_path / "run" / BEST_WEIGHTS).read_bytes()
    again = run(prepare(replace(first, resume=tmp_path / "run", epochs=5)))
    assert best["value"] == 0.0
    assert again["best"] is None
    assert (tmp_path / "run" / BEST_WEIGHTS).read_bytes() == before


@pytest.mark.slow
def test_the_best_of_the_part_before_comes_along_to_another_folder(tmp_path: Path) -> None:
    """Whatever was kept in that folder before, of a run that is overwritten."""
    first = options(tmp_path / "first", monitor="scripted", epochs=3)
    run(prepare(first))
    other = options(tmp_path / "other", "downpour", monitor="scripted", epochs=1)
    run(prepare(other))
    again = replace(first, resume=tmp_path / "first", epochs=5, out=tmp_path / "other")
    assert run(prepare(again, fresh=True))["best"] is None, "none is better than 0"
    carried = tmp_path / "other" / BEST_WEIGHTS
    assert carried.read_bytes() == (tmp_path / "first" / BEST_WEIGHTS).read_bytes()


@pytest.mark.slow
def test_replicas_with_a_backup_end_early_though_they_leave_steps_out(tmp_path: Path) -> None:
    late = options(tmp_path / "run", "sync:backups=1", monitor="scripted", patience=2, replicas=3)
    result = run(prepare(late), Listening())
    assert result["best"]["value"] == 0.0
    assert any("scripted was not better in 2 evaluations" in note for note in result["notes"])


@pytest.mark.slow
def test_a_lost_replica_that_writes_the_best_weights_holds_nobody_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is lost after it was told that they are the best: the next ones are written all the same."""
    killed = list[str]()
    handle = TrainingSupervisor.handle

    def lose(supervisor: TrainingSupervisor, message: Message, launcher: Any) -> None:
        handle(supervisor, message, launcher)
        if message.kind == "evaluated" and not killed and len(supervisor.record.curve) == 2:
            killed.append(message.sender)
            os.kill(launcher.pids[message.sender], signal.SIGKILL)

    monkeypatch.setattr(TrainingSupervisor, "handle", lose)
    result = run(prepare(options(tmp_path / "run", monitor="scripted", patience=2, checkpoint_every=3)))
    assert killed
    assert [one["role"] for one in result["restarts"]] == ["replica 0"]
    assert result["best"]["value"] == 0.0
