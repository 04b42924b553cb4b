"""A run that is killed with all its processes in the midst of training: watching shows it up to its last second."""

import json
from pathlib import Path

import pytest
from command_line import Cutset
from killed import train_and_kill

PROCESSES = {"worker-0.0", "worker-1.0", "shard-0"}


@pytest.mark.run
def test_a_run_that_is_killed_is_shown_to_its_last_second(cutset: Cutset, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    options = ("--replicas", 2, "--epochs", 100, "--no-baseline", "--out", folder)
    train_and_kill("cutset.models:digits", *options, at_step=300, once=lambda: _find_roles(folder) >= PROCESSES)
    with (folder / "metrics.jsonl").open("rb") as file:
        lines = file.read().split(b"\n")
    events = [json.loads(line) for line in lines[:-1]]
    last = [event for event in events if event["event"] == "step"][-1]
    assert {"begin", "step", "roles"} <= {event["event"] for event in events}
    assert "end" not in {event["event"] for event in events}
    watched = cutset("watch", folder)
    assert watched.code == 0
    assert f"step {last['step']} of {last['steps']} (" in watched.out
    assert " left" not in watched.out
    assert "No process trains here any more; the last that was heard of it is of" in watched.out
    with (folder / "metrics.jsonl").open("ab") as file:
        file.write(lines[-2][: len(lines[-2]) // 2])
    written = cutset("watch", folder, "--html", tmp_path / "now.html")
    assert (written.code, written.err) == (0, "")
    page = (tmp_path / "now.html").read_text()
    assert f"step {last['step']} of {last['steps']} (" in page
    assert all(name in page for name in (*PROCESSES, "began: digits by downpour"))


def _find_roles(folder: Path) -> set[str]:
    """Return the processes that the last line about them names: one that starts late comes late."""
    with (folder / "metrics.jsonl").open("rb") as file:
        events = [json.loads(line) for line in file.read().split(b"\n")[:-1]]
    return set(next((event["roles"] for event in reversed(events) if event["event"] == "roles"), ()))
