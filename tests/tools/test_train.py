"""A run of real processes leaves a trace of its steps, and nothing that only its workers needed."""

import json
import sys
from pathlib import Path

import pytest
from listening import Listening
from places import USER_MODELS

from cutset.errors import UsageError
from cutset.ps.methods.sync import Sync
from cutset.runtime.channel.message import Message
from cutset.runtime.launcher.launcher import Launcher
from cutset.tools.config.run_config import RunConfig
from cutset.tools.job.prepare import prepare
from cutset.tools.run_folder import CHECKPOINT, CONFIG, INITIAL, LOGS, METRICS, PLACEMENT, TRACE, WEIGHTS, buffer_path
from cutset.tools.train import run, train
from cutset.tools.training.supervisor import TrainingSupervisor

TASK = f"{USER_MODELS / 'good.py'}:task"


def test_a_cut_run_is_traced_and_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", sys.path[:])
    result = train(TASK, machines=2, replicas=2, method=Sync(), baseline=False, epochs=2, out=tmp_path)
    events = json.loads((tmp_path / TRACE).read_text())["traceEvents"]
    steps = {(e["pid"], e["name"]) for e in events if e.get("cat") == "step"}
    typical = result["measured"]["step"]
    assert len(steps) == 2 * typical["of"], "both machines of replica 0 recorded each step"
    assert (1, f"step {typical['step']}") in steps
    longest = max(e["dur"] for e in events if e["name"] == f"step {typical['step']}")
    assert typical["step_s"] >= longest * 1e-6 - 1e-6
    assert {span["kind"] for span in typical["timeline"]} >= {"forward", "backward"}
    assert result["measured"]["findings"][0].startswith("A step took ")
    json.dumps(result)


@pytest.mark.slow
def test_an_uncut_run_leaves_none_and_takes_an_older_one_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", sys.path[:])
    task = TASK.replace(":task", ":gated")
    train(task, baseline=False, out=tmp_path)
    (tmp_path / TRACE).write_text("{}")
    result = train(task, baseline=False, out=tmp_path, overwrite=True)
    assert result["measured"] is None
    assert not (tmp_path / TRACE).exists()


def options(out: Path) -> RunConfig:
    """Of a model with running statistics."""
    return RunConfig(TASK.replace(":task", ":mixed"), out=out, machines=2, shards=1, baseline=False)


@pytest.mark.slow
def test_buffers_are_not_left_in_the_run_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", sys.path[:])
    kept = []

    def take_note(self: TrainingSupervisor, message: Message, launcher: Launcher) -> None:
        if message.kind == "trained":
            kept.extend(tmp_path.glob("buffers-*"))
        handle(self, message, launcher)

    handle = TrainingSupervisor.handle
    monkeypatch.setattr(TrainingSupervisor, "handle", take_note)
    run(prepare(options(tmp_path)))
    assert set(kept) <= {buffer_path(tmp_path, 0, machine) for machine in (0, 1)}
    assert kept, "the workers have kept theirs meanwhile"
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {CHECKPOINT, CONFIG, INITIAL, LOGS, METRICS, PLACEMENT, TRACE, WEIGHTS}


@pytest.mark.slow
def test_a_run_that_ends_badly_leaves_no_buffers_either(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", sys.path[:])

    def fail(step: int, loss: float) -> None:
        buffer_path(tmp_path, 0, 1).touch()  # as a worker would after a while
        raise UsageError("E999", "stopped half way")

    with pytest.raises(UsageError, match="stopped half way"):
        run(prepare(options(tmp_path)), Listening(fail))
    assert list(tmp_path.glob("buffers-*")) == []
