"""What `--checkpoint-every` may say, and what becomes of it in a job."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cutset.errors import UsageError
from cutset.ps.methods.downpour import Downpour
from cutset.ps.optimizers.standard import SGD
from cutset.ps.methods.registry import method
from cutset.ps.methods.sync import Sync
from cutset.tools.job.interval import Interval, interval
from cutset.tools.task.load_task import TaskSpec
from cutset.tools.job.prepare import Options, prepare

GOOD = Path(__file__).parent / "user_models" / "good.py"


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (0, Interval()),
        ("0", Interval()),
        (50, Interval(50)),
        ("50", Interval(50)),
        ("30s", Interval(1, 30.0)),
        ("0.5 s", Interval(1, 0.5)),
        ("5min", Interval(1, 300.0)),
        ("1.5h", Interval(1, 5400.0)),
    ],
)
def test_a_number_is_of_steps_and_a_time_has_a_unit(given: int | str, found: Interval) -> None:
    assert interval(given, Sync()) == found


@pytest.mark.parametrize(
    "given", ["0s", "0.0min", "-1s", "5x", "5m", "5 Min", "s", "", "-1", -1, "1.5", 1.5, "1e3s", "nans", True, "9" * 16]
)
def test_what_is_neither_is_refused(given: Any) -> None:
    with pytest.raises(UsageError, match=f"E293: --checkpoint-every {given}; ") as caught:
        interval(given, Sync())
    assert caught.value.fix


@pytest.mark.parametrize("given", [4, "4s"])
def test_methods_that_push_nothing_have_none(given: int | str) -> None:
    with pytest.raises(UsageError, match="E288"):
        interval(given, method("allreduce", {}))


@pytest.mark.parametrize(
    ("text", "steps", "versions"), [("sync", 1, 1), ("downpour:push=4", 4, 2), ("averaging:every=3", 3, 1)]
)
def test_those_by_time_are_made_where_replicas_have_just_pushed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, steps: int, versions: int
) -> None:
    monkeypatch.setattr(sys, "path", sys.path[:])
    options = Options(TaskSpec(f"{GOOD}:task"), Downpour(), SGD(0.1), tmp_path, replicas=2, checkpoint_every="2min")
    job = prepare(replace(options, method=method(text, {})))
    assert (job.course.checkpoint_every, job.course.checkpoint_s) == (steps, 120.0)
    assert job.checkpoint_versions == versions
