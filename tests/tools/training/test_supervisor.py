"""What follows from the messages of the roles of a run, and from the loss of a replica."""

import sys
from dataclasses import replace
from typing import cast

import msgspec
import pytest
from places import USER_MODELS
from supervised import KILLED, Run, scores, state_file

from cutset.errors import ProcessLost
from cutset.ps.methods.downpour import Downpour
from cutset.ps.methods.sync import Sync
from cutset.ps.optimizers.standard import SGD
from cutset.runtime.launcher.launcher import Launcher
from cutset.runtime.launcher.membership import Loss
from cutset.tools.config.run_config import RunConfig
from cutset.tools.job.job import Job
from cutset.tools.job.prepare import prepare
from cutset.tools.training.elastic_replicas import MAX_JOINS

MODELS = USER_MODELS


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    path = sys.path[:]
    folder = tmp_path_factory.mktemp("supervised")
    try:
        task = f"{MODELS / 'good.py'}:task"
        return prepare(
            RunConfig(task, method=Downpour(), optimizer=SGD(0.1), out=folder, replicas=2, shards=1, epochs=1)
        )
    finally:
        sys.path[:] = path


def test_each_replica_is_a_group_and_each_shard(job: Job) -> None:
    run = Run(job, restarts=2)
    assert {role.name: role.group for role in run.roles} == {
        "shard-0": "shard 0",
        "worker-0.0": "replica 0",
        "worker-1.0": "replica 1",
    }


def test_replicas_may_join_only_where_batches_are_leased(job: Job) -> None:
    assert Run(job, restarts=0, method=Sync()).supervisor.max_replicas == 2
    assert Run(job).supervisor.max_replicas == 2 + MAX_JOINS


def test_a_run_without_losses_ends_in_order(job: Job) -> None:
    run = Run(job)
    run.progress("worker-0.0", 1)
    run.receive("worker-0.0", "evaluated", seconds=1.5, samples=8, **scores(0.5))
    run.receive("worker-0.0", "trained", steps=10)
    assert run.launcher.sent == []
    run.finish("worker-1.0")
    assert run.launcher.sent == [("worker-0.0", "all_trained")]
    run.receive("worker-0.0", "state_file", file=state_file(1))
    run.finish("worker-0.0")
    assert run.launcher.sent[1:] == [("shard-0", "finish")]
    assert set(run.supervisor.results) == {"worker-0.0", "worker-1.0"}
    assert run.supervisor.record.losses == [(8, 1.0)]
    assert run.supervisor.record.curve == [{"seconds": 1.5, "samples": 8, **scores(0.5)}]
    assert run.steps == [1]
    assert run.supervisor.restarts == []


def test_a_lost_replica_continues_after_its_last_step(job: Job) -> None:
    run = Run(job)
    assert run.lose(1, {"worker-1.0": "step 2"}) == ["worker-1.0+1"]
    (setup,) = [role.setup for role in run.supervisor._worker_roles(1)]
    assert (setup["incarnation"], setup["start_step"]) == (1, 3)
    assert run.notices == [f"replica 1 restarts at step 3: {KILLED}"]
    assert run.supervisor.restarts[0]["seconds"] is None
    run.progress("worker-1.0+1", 4)
    assert run.supervisor.restarts[0]["seconds"] >= 0
    assert run.steps == []


def test_reported_steps_count_though_no_heartbeat_had_them(job: Job) -> None:
    run = Run(job)
    run.progress("worker-0.0", 5)
    run.lose(0, {"worker-0.0": "step 1"})
    assert run.supervisor.restarts[0]["step"] == 5
    assert run.supervisor.record.losses == [(40, 0.2)]


def test_a_replica_continues_after_the_last_step_of_its_slowest_machine(job: Job) -> None:
    two = {"regions": job.regions * 2, "programs": [*job.programs] * 2, "evaluations": [*job.evaluations] * 2}
    run = Run(replace(job, **two))  # type: ignore[arg-type]
    run.lose(0, {"worker-0.0": "step 900", "worker-0.1": "step 4"})
    assert run.supervisor.restarts[0]["step"] == 5


def test_a_replica_lost_before_its_first_step_keeps_its_start_step(job: Job) -> None:
    run = Run(job)
    run.lose(1, {"worker-1.0": "step 2"})
    run.lose(1, {"worker-1.0+1": None})
    assert [restart["step"] for restart in run.supervisor.restarts] == [3, 3]


def test_a_replica_lost_after_training_only_evaluates_and_writes_its_state(job: Job) -> None:
    run = Run(job)
    run.finish("worker-1.0")
    run.receive("worker-0.0", "trained", steps=10)
    run.receive("worker-0.0", "state_file", file=state_file(1))
    run.lose(0, {"worker-0.0": None})
    assert run.supervisor.restarts[0]["step"] == run.job.training.steps
    run.receive("worker-0.0", "state_file", file=state_file(2))
    run.receive("worker-0.0+1", "trained", steps=10)
    assert run.launcher.sent == [("worker-0.0", "all_trained"), ("worker-0.0+1", "all_trained")]
    run.receive("worker-0.0+1", "state_file", file=state_file(3))
    run.finish("worker-0.0+1")
    assert run.launcher.sent[2:] == [("shard-0", "finish")]
    assert [file.bytes for file in run.supervisor.state_files] == [3]
    assert set(run.supervisor.results) == {"worker-0.0", "worker-1.0"}


def test_seconds_of_a_restarted_replica_continue_those_of_the_run(job: Job) -> None:
    run = Run(job)
    run.supervisor.record.start_s -= 100.0
    run.lose(0, {"worker-0.0": "step 2"})
    run.receive("worker-0.0+1", "evaluated", seconds=2.0, samples=32, **scores(0.5))
    run.receive("worker-0.0+1", "evaluated", seconds=3.0, samples=40, **scores(0.6))
    first, second = (point["seconds"] for point in run.supervisor.record.curve)
    assert first == pytest.approx(100.0, abs=5.0)
    assert second == first + 1.0


def test_at_the_restart_limit_the_loss_is_the_error(job: Job) -> None:
    run = Run(job, restarts=1)
    run.lose(1, {"worker-1.0": None})
    with pytest.raises(ProcessLost) as caught:
        run.lose(1, {"worker-1.0+1": None})
    said = "; replica 1 was restarted once before, the most that --restarts allows\nits log"
    assert caught.value.facts == KILLED + said
    assert (caught.value.code, caught.value.fix) == ("E602", "look")


def test_without_restarts_the_error_is_unchanged(job: Job) -> None:
    with pytest.raises(ProcessLost) as caught:
        Run(job, restarts=0).lose(1, {"worker-1.0": None})
    assert caught.value.facts == f"{KILLED}\nits log"


# Batches are leased: good.py has 12 of them ---------------------------------------------------------------------------


def test_an_idle_replica_takes_the_batches_of_a_lost_one(job: Job) -> None:
    run = Run(job)
    assert run.request_lease("worker-1.0", 0) == (0, 1)
    for number in range(11):
        assert run.request_lease("worker-0.0", number, acknowledged=number) == (1 + number, 1)
    assert run.request_lease("worker-0.0", 11, acknowledged=11) == (0, 0)
    assert run.request_lease("worker-0.0", 12, acknowledged=11, idle=True) is None
    run.lose(1, {"worker-1.0": "step 0"})
    run.supervisor.watch(cast(Launcher, run.launcher))
    assert run.launcher.leases[-1] != ("worker-0.0", 0, 1)  # the shard may have it
    assert run.launcher.sent == [("shard-0", "fence")]
    steps = {str(piece.number): 0 for piece in run.job.slices}
    run.receive("shard-0", "fenced", client="worker-1.0", steps=steps)
    assert run.launcher.leases[-1] == ("worker-0.0", 0, 1)
    assert run.launcher.stopped == []
    assert run.request_lease("worker-0.0", 13, acknowledged=12) == (0, 0)
    run.supervisor.watch(cast(Launcher, run.launcher))
    assert run.launcher.stopped == ["worker-1.0+1"]  # all is done before it was back
    run.receive("worker-0.0", "trained", steps=10)
    assert run.launcher.sent == [("shard-0", "fence"), ("shard-0", "leave"), ("worker-0.0", "all_trained")]
    assert run.supervisor.participation["completed"] == {"0": 12}
    assert run.supervisor.participation["recomputed"] == {"1": 1}


def test_a_replica_lost_when_all_is_done_is_not_restarted(job: Job) -> None:
    run = Run(job, restarts=0)
    for number in range(12):
        run.request_lease("worker-0.0", number)
    run.request_lease("worker-0.0", 12, acknowledged=12)
    assert run.lose(1, {"worker-1.0": None}) == []
    run.supervisor.watch(cast(Launcher, run.launcher))
    run.receive("worker-0.0", "trained", steps=10)
    assert run.launcher.sent == [("shard-0", "leave"), ("worker-0.0", "all_trained")]


def test_replicas_join_and_leave_as_requested(job: Job) -> None:
    run = Run(job)
    assert run.requests.limits == [(2, 2 + MAX_JOINS)]
    run.request_lease("worker-1.0", 0)
    run.request_replicas(3)
    assert run.launcher.added == ["worker-2.0"]
    run.receive("worker-2.0", "progress", step=1, steps=6, samples=8, loss=0.5, seconds=0.5, acknowledged=0)
    run.request_replicas(1)
    assert run.request_lease("worker-1.0", 1) == (0, 0)
    assert run.request_lease("worker-1.0", 2, acknowledged=1, idle=True) == (0, 0)
    run.finish("worker-1.0")
    run.request_replicas(0)
    assert [(c["replica"], c["change"]) for c in run.supervisor.participation["changes"]] == [
        (2, "joined"),
        (1, "left"),
    ]
    assert run.supervisor.participation["changes"][0]["seconds"] >= 0
    assert run.notices == [
        "replica 2 joins; replicas: 3",
        "replica 2 trains, 0.0 s after the request",
        "replica 1 is asked to leave; replicas: 1",
        "replica 2 is asked to leave; replicas: 1",
        "replica 1 has left",
        f"0 replicas were requested; there can be 1 to {MAX_JOINS} now",
    ]
    assert run.requests.limits[-1] == (1, MAX_JOINS)


def test_a_replica_that_shall_leave_before_it_trains_is_stopped(job: Job) -> None:
    run = Run(job)
    run.request_replicas(3)
    run.request_replicas(2)
    assert run.launcher.stopped == ["worker-2.0"]
    run.request_replicas(3)
    assert run.launcher.added == ["worker-2.0", "worker-3.0"]


def test_a_replica_lost_while_leaving_is_not_restarted(job: Job) -> None:
    run = Run(job)
    run.request_lease("worker-1.0", 0)
    run.request_replicas(1)
    assert run.lose(1, {"worker-1.0": None}) == []
    run.supervisor.watch(cast(Launcher, run.launcher))
    run.receive("shard-0", "fenced", client="worker-1.0", steps={str(piece.number): 0 for piece in run.job.slices})
    assert run.request_lease("worker-0.0", 0) == (0, 1)
    assert run.supervisor.participation["recomputed"] == {"1": 1}


def test_no_replica_joins_without_leases(job: Job) -> None:
    run = Run(job, method=Sync())
    run.request_replicas(3)
    assert run.requests.limits == [(2, 0)]
    assert (run.launcher.added, run.notices) == ([], [])
    assert run.supervisor.participation == {"changes": []}


def test_progress_is_reported_in_batches_and_never_decreases(job: Job) -> None:
    run = Run(job)
    run.progress("worker-0.0", 5)
    run.progress("worker-0.0", 3)
    run.progress("worker-0.0", 7)
    assert run.steps == [5, 5, 7]
    assert [samples for samples, _ in run.supervisor.record.losses] == [40, 40, 56]


# Checkpoints go by time -----------------------------------------------------------------------------------------------

EVERYBODY = [("worker-0.0", "checkpoint"), ("shard-0", "checkpoint")]  # who makes a part of one


@pytest.fixture
def timed(job: Job) -> Run:
    """A run in which one is due as soon as none is asked for, and which has told twice how far it is."""
    training = msgspec.structs.replace(job.training, steps=100_000, checkpoint_every=1, checkpoint_s=1e-9)
    run = Run(replace(job, training=training))
    run.progress("worker-0.0", 1)
    run.progress("worker-1.0", 2)
    assert run.launcher.sent == []
    run.progress("worker-0.0", 2)
    return run


def test_a_checkpoint_is_requested_from_shards_and_replica_0(timed: Run) -> None:
    assert timed.launcher.sent == EVERYBODY
    timed.progress("worker-0.0", 3)
    assert timed.launcher.sent == EVERYBODY, "it may still be completed"


def test_a_checkpoint_is_requested_from_every_machine_of_a_cut_replica(job: Job) -> None:
    training = msgspec.structs.replace(job.training, steps=100_000, checkpoint_every=1, checkpoint_s=1e-9)
    two = {"regions": job.regions * 2, "programs": [*job.programs] * 2, "evaluations": [*job.evaluations] * 2}
    run = Run(replace(job, training=training, **two))  # type: ignore[arg-type]
    for step in (1, 2):
        run.progress("worker-0.0", step)
    assert {name for name, kind in run.launcher.sent if kind == "checkpoint"} == {"worker-0.0", "worker-0.1", "shard-0"}


@pytest.mark.parametrize("who", ["worker-0.0", "shard-0"])
def test_a_missed_checkpoint_is_requested_again_from_all(timed: Run, who: str) -> None:
    timed.receive(who, "checkpoint_missed", number=timed.supervisor._checkpoints.timing._pending)
    timed.progress("worker-0.0", 3)
    assert timed.launcher.sent == EVERYBODY * 2


def test_after_a_loss_a_checkpoint_is_requested_again_once_all_are_back(timed: Run) -> None:
    error = ProcessLost("E602", "shard-0 was killed")
    timed.supervisor.restart(Loss("shard 0", error, {"shard-0": None}))
    timed.progress("worker-0.0", 3)
    assert timed.launcher.sent == EVERYBODY
    timed.receive("shard-0+1", "serving")
    timed.lose(0, {"worker-0.0": "step 3"})
    timed.progress("worker-0.0+1", 4)
    assert timed.launcher.sent[2:] == [("worker-0.0+1", "checkpoint"), ("shard-0+1", "checkpoint")]
