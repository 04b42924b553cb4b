"""metrics.jsonl: a line for each event, at once, and about one a second of steps."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from cutset.errors import Diverged
from cutset.tools.run_folder import METRICS
from cutset.tools.run_listener import CheckpointReport, EvaluationReport, LossReport, RolesReport, StepReport
from cutset.tools.tracking.metrics_file import MetricsFile


def read(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / METRICS).read_text().splitlines()]


def test_steps_are_written_about_once_a_second_and_the_last_before_an_evaluation(tmp_path: Path) -> None:
    seconds = [0.0]
    file = MetricsFile(tmp_path, clock=lambda: seconds[0], now=lambda: 7.0)
    for step in range(1, 25):
        seconds[0] = step / 10
        file.on_step(StepReport("sync", step, 24, 1 / step, 8 * step, step / 10))
    file.on_evaluate(EvaluationReport("sync", 192, 2.4, 0.5, None, {"perplexity": 1.6}))
    *steps, evaluation = read(tmp_path)
    assert [one["step"] for one in steps] == [1, 11, 21, 24]
    assert {round(one["samples_per_s"]) for one in steps} == {80}
    assert evaluation == {
        "event": "evaluation",
        "time": 7.0,
        "run": "sync",
        "samples": 192,
        "seconds": 2.4,
        "test_loss": 0.5,
        "test_accuracy": None,
        "metrics": {"perplexity": 1.6},
    }


def test_all_events_are_there_and_numbers_are_json(tmp_path: Path) -> None:
    file = MetricsFile(tmp_path)
    file.on_step(StepReport("ssp", 1, 2, math.nan))
    file.on_checkpoint(CheckpointReport(tmp_path / "checkpoint", 2))
    file.on_machine_lost(LossReport("replica 1", "killed"))
    file.on_notice("replica 1 restarts")
    assert [one["event"] for one in read(tmp_path)] == ["step", "checkpoint", "lost", "notice"]
    assert read(tmp_path)[0]["loss"] is None
    MetricsFile(tmp_path).on_notice("resumed")
    assert len(read(tmp_path)) == 5, "a run that goes on adds to it"


def test_roles_and_the_ends_of_a_run_are_written(tmp_path: Path) -> None:
    file = MetricsFile(tmp_path)
    with file.recording(method="sync", replicas=2):
        file.on_roles(RolesReport("sync", {"shard-0": {"updates": 3}}, leases=8))
        file.on_roles(RolesReport("sync", {}))
    with pytest.raises(Diverged), file.recording(method="sync"):
        raise Diverged("E703", "not finite", fix="a smaller --lr")
    begin, roles, others, end, _, failed = read(tmp_path)
    assert (begin["method"], begin["replicas"], end["why"]) == ("sync", 2, None)
    assert (roles["roles"], roles["leases"], "leases" in others) == ({"shard-0": {"updates": 3}}, 8, False)
    assert "not finite" in failed["why"]


def test_a_metric_may_have_any_name(tmp_path: Path) -> None:
    metrics = dict.fromkeys(["run", "time", "event", "samples", "test_loss"], 0.75)
    MetricsFile(tmp_path, now=lambda: 7.0).on_evaluate(EvaluationReport("sync", 192, 2.4, 0.5, None, metrics))
    (event,) = read(tmp_path)
    assert (event["run"], event["time"], event["test_loss"], event["metrics"]) == ("sync", 7.0, 0.5, metrics)


def test_what_is_no_json_is_one_notice_and_training_goes_on(tmp_path: Path) -> None:
    notices = list[str]()
    file = MetricsFile(tmp_path, notices.append)
    file.on_roles(RolesReport("sync", {"a": {"b": {1, 2}}}))
    file.on_notice("one")
    assert (len(notices), len(read(tmp_path))) == (1, 1)


def test_a_line_that_was_cut_short_spoils_no_other(tmp_path: Path) -> None:
    MetricsFile(tmp_path).on_notice("before")
    with (tmp_path / METRICS).open("a") as file:
        file.write('{"event": "ro')
    file_of_next = MetricsFile(tmp_path)
    file_of_next.on_notice("after")
    file_of_next.on_notice("later")
    before, cut_short, after, later = (tmp_path / METRICS).read_text().splitlines()
    assert cut_short == '{"event": "ro'
    assert [json.loads(line)["words"] for line in (before, after, later)] == ["before", "after", "later"]


def test_a_file_that_cannot_be_written_is_one_notice(tmp_path: Path) -> None:
    notices = list[str]()
    file = MetricsFile(tmp_path / "gone", notices.append)
    file.on_notice("one")
    file.on_notice("two")
    assert len(notices) == 1
    assert "No such file" in notices[0]
