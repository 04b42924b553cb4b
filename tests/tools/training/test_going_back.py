"""Where replicas go in lock step, a loss takes all roles back to the last recovery point."""

from dataclasses import replace
from typing import Any, cast

import msgspec
import pytest
from supervised import Run, prepare_sync_run, scores

from cutset.errors import ProcessLost
from cutset.ps.checkpoint.journal import recovery_path
from cutset.ps.methods.downpour import Downpour
from cutset.ps.methods.sync import Sync
from cutset.runtime.launcher.launcher import Launcher
from cutset.runtime.launcher.membership import Loss
from cutset.tools.job.job import Job


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    return prepare_sync_run(tmp_path_factory.mktemp("run"), shards=2)


ALL = ["shard-0", "shard-1", "worker-0.0", "worker-1.0"]


def lose(run: Run, group: str, *names: str) -> list[str]:
    """Lose a group; return the names of what is started for it alone."""
    loss = Loss(group, ProcessLost("E602", f"{names[0]} was killed by SIGKILL"), dict.fromkeys(names, "step 5"))
    return [role.name for role in run.supervisor.restart(loss)]


def save_point(run: Run, number: int, suffix: str = "") -> None:
    """All roles have saved their part of a recovery point."""
    recovery_path(run.job.out, number).mkdir(parents=True, exist_ok=True)
    for name in ALL:
        body: dict[str, Any] = {"number": number}
        if name.startswith("shard"):
            body["file"] = {"shard": int(name[-1]), "sha256": f"{number:064x}", "bytes": 1}
        run.receive(name + suffix, "recovery_point_saved", **body)


def watch(run: Run) -> None:
    run.supervisor.watch(cast(Launcher, run.launcher))


def setups(run: Run) -> dict[str, Any]:
    """What the roles are told that are started now."""
    return {role.name: role.setup for role in run.supervisor.roles()}


@pytest.mark.parametrize(("group", "name"), [("replica 1", "worker-1.0"), ("shard 0", "shard-0")])
def test_all_roles_are_ended_and_begin_at_the_last_recovery_point(job: Job, group: str, name: str) -> None:
    run = Run(job)
    save_point(run, 4)
    assert lose(run, group, name) == []
    watch(run)
    assert sorted(run.launcher.stopped) == [other for other in ALL if other != name]
    assert sorted(run.launcher.added) == [f"{role}+1" for role in ALL]
    assert run.notices == [f"{group} is lost: {name} was killed by SIGKILL; all go back to step 4"]
    told = setups(run)
    assert {told[f"worker-{r}.0+1"]["start_step"] for r in range(2)} == {4}
    assert told["worker-1.0+1"]["local_state"].endswith("journal/000004/worker-1.0.safetensors")
    assert "journal/000004/shard-1." in told["shard-1+1"]["restore_from"]
    assert {told[f"shard-{s}+1"]["steps"] for s in range(2)} == {4}
    [record] = run.supervisor.restarts
    assert (record["role"], record["step"]) == (group, 4)


def test_losses_at_the_same_time_take_all_back_once(job: Job) -> None:
    run = Run(job)
    save_point(run, 4)
    lose(run, "replica 0", "worker-0.0")
    lose(run, "shard 1", "shard-1")
    watch(run)
    watch(run)
    assert sorted(run.launcher.stopped) == ["shard-0", "worker-1.0"]
    assert sorted(run.launcher.added) == [f"{role}+1" for role in ALL]
    assert [record["role"] for record in run.supervisor.restarts] == ["replica 0", "shard 1"]


def test_what_was_reported_of_later_steps_is_dropped(job: Job) -> None:
    run = Run(job)
    for step in (2, 3, 6):
        run.receive("worker-0.0", "progress", step=step, steps=9, samples=16 * step, loss=1.0, seconds=float(step))
        run.receive("worker-0.0", "evaluated", seconds=float(step), samples=16 * step, **scores(0.5))
    save_point(run, 3)
    lose(run, "replica 1", "worker-1.0")
    watch(run)
    assert [samples for samples, _ in run.supervisor.record.losses] == [32, 48]
    assert [point["samples"] for point in run.supervisor.record.curve] == [32, 48]


def test_the_limit_of_restarts_counts_losses_of_the_same_role(job: Job) -> None:
    """Not how often it went back with others: with a thousand machines that is often."""
    run = Run(job)
    for count, (group, name) in enumerate([("replica 1", "worker-1.0"), ("shard 0", "shard-0+1")]):
        lose(run, group, name)
        watch(run)
        assert f"worker-0.0+{count + 1}" in run.launcher.added
    for count in (2, 3):
        lose(run, "replica 0", f"worker-0.0+{count}")
        watch(run)
    with pytest.raises(ProcessLost, match="replica 0 was restarted 2 times before"):
        lose(run, "replica 0", "worker-0.0+4")
    assert len(set(run.launcher.added)) == len(run.launcher.added)


def test_a_replica_for_which_there_are_spares_is_restarted_alone(job: Job) -> None:
    run = Run(job, method=Sync(backups=1))
    save_point(run, 4)
    assert lose(run, "replica 1", "worker-1.0") == ["worker-1.0+1"]
    watch(run)
    assert (run.launcher.stopped, run.launcher.added) == ([], [])
    lose(run, "replica 0", "worker-0.0")
    watch(run)
    assert sorted(run.launcher.stopped) == ["shard-0", "shard-1", "worker-1.0+1"]
    assert sorted(run.launcher.added) == ["shard-0+1", "shard-1+1", "worker-0.0+1", "worker-1.0+2"]


def test_a_recovery_point_is_requested_from_all_roles_while_none_is_missing(job: Job) -> None:
    quick = msgspec.structs.replace(job.training, steps=100_000)
    run = Run(replace(job, training=quick))
    run.supervisor._points._timing._training = msgspec.structs.replace(
        run.supervisor._points._timing._training, checkpoint_s=1e-9, steps=100_000
    )
    for step in (1, 2):
        run.receive("worker-0.0", "progress", step=step, steps=9, samples=16 * step, loss=1.0, seconds=float(step))
    assert sorted(run.launcher.sent) == [(name, "recovery_point") for name in ALL]


@pytest.mark.parametrize("method", [Downpour(), Sync()])
def test_a_shard_lost_while_it_writes_the_end_is_told_again(job: Job, method: Downpour | Sync) -> None:
    run = Run(job, method=method)
    for name in ("worker-0.0", "worker-1.0"):
        run.finish(name)
    assert run.launcher.sent[-2:] == [("shard-0", "finish"), ("shard-1", "finish")]
    lose(run, "shard 1", "shard-1")
    watch(run)
    if method == Sync():
        for name in ("worker-0.0+1", "worker-1.0+1"):
            run.finish(name)
        run.receive("shard-0+1", "serving")
    run.receive("shard-1+1", "serving")
    watch(run)
    assert ("shard-1+1", "finish") in run.launcher.sent


def test_a_shard_restarted_later_hears_of_replicas_that_left_without_a_word(job: Job) -> None:
    run = Run(job, method=Downpour())
    run.request_lease("worker-1.0", 0)
    run.request_replicas(1)
    lose(run, "shard 0", "shard-0")
    lose(run, "replica 1", "worker-1.0")
    watch(run)
    assert [name for name, kind in run.launcher.sent if kind == "leave"] == ["shard-1"]
    run.receive("shard-0+1", "serving")
    watch(run)
    assert [name for name, kind in run.launcher.sent if kind == "leave"] == ["shard-1", "shard-0+1"]


def test_a_shard_that_never_could_write_its_journal_cannot_be_restarted(job: Job) -> None:
    run = Run(job, method=Downpour())
    run.receive("shard-0", "write_failed", reason="[Errno 28] No space left on device: 'journal'")
    with pytest.raises(ProcessLost, match=r"shard-0 was killed .*; it has no journal .*: \[Errno 28\] No space"):
        lose(run, "shard 0", "shard-0")
