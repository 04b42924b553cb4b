"""Replicas join and leave while training, and others take the batches of a lost one: all batches are used."""

import signal
import sys
from pathlib import Path

import pytest
from elastic import check_joining_and_leaving, options
from train_with_faults import Signal, train_with_faults

from cutset.ps.methods.downpour import Downpour


@pytest.mark.run
def test_replicas_join_and_leave_while_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With SSP too: tests/slow/test_elastic.py."""
    monkeypatch.setattr(sys, "path", sys.path[:])
    check_joining_and_leaving(tmp_path, Downpour(warm_start=20))


@pytest.mark.slow
def test_others_take_the_batches_of_a_killed_replica(tmp_path: Path) -> None:
    """It is killed when a quarter is done; all is done, though some of it perhaps twice, and the report says so."""
    spec = "cutset.models:digits"
    job = options(tmp_path / "run", spec, Downpour(), machines=2, replicas=2, epochs=20)
    outcome = train_with_faults(job, [Signal("worker-1.1", signal.SIGKILL, 300)])
    assert outcome.error is None
    assert len(outcome.happened) == 1
    participation, (restart,) = outcome.result["participation"], outcome.result["restarts"]
    assert restart["role"] == "replica 1"
    assert sum(participation["completed"].values()) == participation["batches"]
    assert min(participation["completed"].values()) > 0
    assert participation["recomputed"].keys() <= {"1"}
    recomputed = participation["recomputed"].values()
    expected = [f"{n} batches were computed again after replica 1 was lost." for n in recomputed]
    assert [note for note in outcome.result["notes"] if "computed again" in note] == expected
    assert any(
        note.startswith(f"Replica 0 computed {participation['completed']['0']} of") for note in outcome.result["notes"]
    )
    assert outcome.result["test_accuracy"] > 0.93
