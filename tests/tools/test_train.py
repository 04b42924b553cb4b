"""A run of real processes leaves a trace of its steps."""

import json
import sys
from pathlib import Path

import pytest

from cutset.tools.train import TRACE, train

TASK = f"{Path(__file__).parent / 'user_models' / 'good.py'}:task"


def test_a_cut_run_is_traced_and_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", sys.path[:])
    result = train(TASK, machines=2, replicas=2, baseline=False, epochs=2, out=tmp_path)
    events = json.loads((tmp_path / TRACE).read_text())["traceEvents"]
    steps = {(e["pid"], e["name"]) for e in events if e.get("cat") == "step"}
    typical = result["measured"]["typical"]
    assert len(steps) == 2 * typical["of"], "both machines of replica 0 recorded each step"
    assert (1, f"step {typical['step']}") in steps
    longest = max(e["dur"] for e in events if e["name"] == f"step {typical['step']}")
    assert typical["step_s"] >= longest * 1e-6 - 1e-6
    assert {span["kind"] for span in typical["timeline"]} >= {"forward", "backward"}
    assert result["measured"]["why"][0].startswith("A step took ")
    json.dumps(result)


def test_an_uncut_run_leaves_none_and_takes_an_older_one_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", sys.path[:])
    (tmp_path / TRACE).write_text("{}")
    task = TASK.replace(":task", ":gated")
    result = train(task, baseline=False, out=tmp_path)
    assert result["measured"] is None
    assert not (tmp_path / TRACE).exists()
