"""Replicas join and leave while training, and others take what a lost one had: all batches are used."""

import signal
import sys
from pathlib import Path

import pytest
from disturbed import Signal, disturbed
from elastic import check_joining_and_leaving, options

from cutset.ps.methods.downpour import Downpour
from cutset.tools.task.plan_task import Wanted


def test_replicas_join_and_leave_while_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With SSP too: tests/slow/test_elastic.py."""
    monkeypatch.setattr(sys, "path", sys.path[:])
    check_joining_and_leaving(tmp_path, Downpour(warm_start=20))


def test_others_take_what_a_killed_replica_had(tmp_path: Path) -> None:
    """It is killed when a quarter is done; all is done, though some of it perhaps twice, and the report says so."""
    spec = "cutset.models:digits"
    job = options(tmp_path / "run", spec, Downpour(), wanted=Wanted(2), replicas=2, epochs=20)
    outcome = disturbed(job, [Signal("worker-1.1", signal.SIGKILL, 300)])
    assert outcome.error is None
    assert len(outcome.happened) == 1
    shares, (restart,) = outcome.result["shares"], outcome.result["restarts"]
    assert restart["replica"] == 1
    assert sum(shares["taken"].values()) == shares["batches"]
    assert shares["taken"]["0"] > shares["batches"] // 2
    assert shares["repeated"].keys() <= {"1"}
    said = [f"{n} batches at most were computed again after replica 1 was lost." for n in shares["repeated"].values()]
    assert [note for note in outcome.result["notes"] if "computed again" in note] == said
    assert any(note.startswith(f"Replica 0 took {shares['taken']['0']} of") for note in outcome.result["notes"])
    assert outcome.result["test_accuracy"] > 0.93
