"""A version that all roles have saved is one to go back to; the last one stays."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from supervised import prepare_sync_run

from cutset.ps.checkpoint.journal import INTERVAL_S, recovery_path
from cutset.ps.methods.local_sgd import Averaging
from cutset.runtime.channel.message import Message
from cutset.tools.job.job import Job
from cutset.tools.training.recovery_points import RecoveryPoints

ROLES = ["shard-0", "worker-0.0", "worker-1.0"]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Job:
    return prepare_sync_run(tmp_path_factory.mktemp("run"), shards=1)


@pytest.fixture
def job(prepared: Job, tmp_path: Path) -> Job:
    return replace(prepared, config=replace(prepared.config, out=tmp_path))


def save(points: RecoveryPoints, number: int, roles: list[str], folder: Path) -> None:
    """Tell that roles have saved their parts."""
    recovery_path(folder, number).mkdir(parents=True, exist_ok=True)
    for role in roles:
        body: dict[str, Any] = {"number": number}
        if role.startswith("shard"):
            body["file"] = {"shard": 0, "sha256": f"{number:064x}", "bytes": 1}
        points.handle(Message("recovery_point_saved", body=body, sender=role))


def test_before_any_is_complete_all_begin_anew(job: Job, tmp_path: Path) -> None:
    points = RecoveryPoints(job)
    save(points, 7, ROLES[:2], tmp_path)
    points.interrupt()
    assert (points.step, points.shard_file(0), points.local_state_file(1, 0)) == (0, "", "")
    assert not recovery_path(tmp_path, 7).exists(), "what is not complete is removed"


def test_the_last_complete_one_stays(job: Job, tmp_path: Path) -> None:
    points = RecoveryPoints(job)
    for number in (7, 9):
        save(points, number, ROLES, tmp_path)
    save(points, 12, ["shard-0+1", "worker-1.0+1"], tmp_path)
    points.interrupt()
    assert points.step == 9
    assert points.shard_file(0).startswith(str(recovery_path("", 9) / "shard-0."))
    assert points.local_state_file(1, 0) == str(recovery_path("", 9) / "worker-1.0.safetensors")
    assert [folder.name for folder in (tmp_path / "journal").iterdir()] == ["000009"]


def test_a_version_of_local_sgd_is_a_round(job: Job, tmp_path: Path) -> None:
    points = RecoveryPoints(replace(job, method=Averaging(every=4)))
    save(points, 3, ROLES, tmp_path)
    assert points.step == 12


def test_one_is_requested_after_some_seconds_and_when_the_last_is_complete(job: Job, tmp_path: Path) -> None:
    now = [0.0]
    points = RecoveryPoints(job, clock=lambda: now[0])
    assert points.note_progress(2, 1.0) is None
    assert points.note_progress(4, 2.0) is None
    now[0] = INTERVAL_S
    number = points.note_progress(8, 3.0)
    assert number is not None
    assert number > 4  # ahead of what is done
    now[0] = 3 * INTERVAL_S
    assert points.note_progress(16, 4.0) is None, "one at a time"
    save(points, number, ROLES, tmp_path)
    assert points.note_progress(18, 5.0) is not None
    points.interrupt()
    assert points.note_progress(20, 6.0) is not None, "the one that was interrupted will not be complete"
