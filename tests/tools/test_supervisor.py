"""What follows from what the roles of a run say, and from the loss of a replica."""

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from cutset.errors import ProcessLost
from cutset.ps.methods.downpour import Downpour
from cutset.ps.optimizers.standard import SGD
from cutset.ps.methods.sync import Sync
from cutset.runtime.launcher.liveness import Loss
from cutset.runtime.launcher.launcher import Launcher, Role
from cutset.runtime.channel.message import Message
from cutset.tools.job.run_config import worker_name
from cutset.tools.training.crew import JOINS_MOST
from cutset.tools.task.load_task import TaskSpec
from cutset.tools.job.prepare import Options, Prepared, prepare
from cutset.tools.training.scale_requests import Standing, Wishes
from cutset.tools.training.supervisor import Supervisor

MODELS = Path(__file__).parent / "user_models"
KILLED = "worker-1.0 was killed by SIGKILL (its last progress was 'step 2')"


def state_file(size: int) -> dict[str, Any]:
    """What a worker says of the file of its buffers."""
    return {"machine": 0, "sha256": "0" * 64, "bytes": size, "pieces": []}


class Post:
    """A launcher that only remembers what it was told."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, str]] = []
        self.leases: list[tuple[str, int, int]] = []
        self.added: list[str] = []
        self.dismissed: list[str] = []

    def send(self, peer: str, message: Message) -> None:
        if message.kind == "leased":
            self.leases.append((peer, message.body["first"], message.body["count"]))
        else:
            self.sent.append((peer, message.kind))

    def add(self, roles: Sequence[Role]) -> None:
        self.added += [role.name for role in roles]

    def dismiss(self, names: Sequence[str]) -> None:
        self.dismissed += names


class Wished(Wishes):
    """Wishes that are there at once."""

    def __init__(self) -> None:
        self.next: int | None = None
        self.standing: list[tuple[int, int]] = []

    def take(self) -> int | None:
        found, self.next = self.next, None
        return found

    def stand(self, standing: Standing) -> None:
        self.standing.append((standing.replicas, standing.most))


class Run:
    """A supervisor of two replicas of one machine each, and what it says."""

    def __init__(self, job: Prepared, **options: Any) -> None:
        self.job = replace(job, options=replace(job.options, **options))
        self.post, self.notes, self.told = Post(), list[str](), list[int]()
        self.wishes = Wished()
        self.supervisor = Supervisor(
            self.job,
            tell=lambda name, step, steps, loss: self.told.append(step),
            note=self.notes.append,
            wishes=self.wishes,
        )
        self.roles = self.supervisor.roles()
        self.supervisor.began()

    def hears(self, sender: str, kind: str, **body: Any) -> None:
        self.supervisor.take(Message(kind, body=body, sender=sender), cast(Launcher, self.post))

    def progress(self, sender: str, step: int) -> None:
        self.hears(sender, "progress", step=step, steps=6, samples=8 * step, loss=1 / step, seconds=float(step))

    def asks(self, sender: str, chunk: int, *, settled: int = 0, idle: bool = False) -> tuple[int, int] | None:
        """What it is leased: first and count; None where it has to wait."""
        body = {"idle": idle, "settled": settled, "pace_s": 1e-3}
        told = len(self.post.leases)
        message = Message("lease", edge=chunk, body=body, sender=sender)
        self.supervisor.take(message, cast(Launcher, self.post))
        return next(((first, count) for name, first, count in self.post.leases[told:] if name == sender), None)

    def wishes_for(self, replicas: int) -> None:
        self.wishes.next = replicas
        self.supervisor.watch(cast(Launcher, self.post))

    def finishes(self, sender: str) -> None:
        self.hears(sender, "finished", value={"seconds": 4.0})

    def loses(self, replica: int, progress: dict[str, int | str | None]) -> list[str]:
        """The names of those that take its place."""
        loss = Loss(f"replica {replica}", ProcessLost("E602", f"{KILLED}\nits log", fix="look"), progress)
        return [role.name for role in self.supervisor.renew(loss)]


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    path = sys.path[:]
    folder = tmp_path_factory.mktemp("supervised")
    try:
        spec = TaskSpec(f"{MODELS / 'good.py'}:task")
        return prepare(Options(spec, Downpour(), SGD(0.1), folder, replicas=2, shards=1, epochs=1))
    finally:
        sys.path[:] = path


def test_each_replica_is_a_group_and_each_shard(job: Prepared) -> None:
    run = Run(job, restarts=2)
    assert {role.name: role.group for role in run.roles} == {
        "shard-0": "shard 0",
        "worker-0.0": "replica 0",
        "worker-1.0": "replica 1",
    }
    again = ["worker-0.0+1", "worker-0.0+2", "worker-1.0+1", "worker-1.0+2"]
    more = [worker_name(replica, 0, times) for replica in range(2, 2 + JOINS_MOST) for times in range(3)]
    assert [name for name in run.supervisor.spares if name.startswith("worker")] == again + more


def test_names_are_kept_for_those_who_may_join_where_anybody_may(job: Prepared) -> None:
    run = Run(job, restarts=0, method=Sync())
    assert [name for name in run.supervisor.spares if name.startswith("worker")] == []
    assert run.supervisor.replicas_most == 2


def test_a_run_without_losses_ends_in_order(job: Prepared) -> None:
    run = Run(job)
    run.progress("worker-0.0", 1)
    run.hears("worker-0.0", "tested", seconds=1.5, samples=8, test_accuracy=0.5)
    run.hears("worker-0.0", "trained")
    assert run.post.sent == []
    run.finishes("worker-1.0")
    assert run.post.sent == [("worker-0.0", "all trained")]
    run.hears("worker-0.0", "state", file=state_file(1))
    run.finishes("worker-0.0")
    assert run.post.sent[1:] == [("shard-0", "finish")]
    assert set(run.supervisor.results) == {"worker-0.0", "worker-1.0"}
    assert run.supervisor.losses == [(8, 1.0)]
    assert run.supervisor.curve == [{"seconds": 1.5, "samples": 8, "test_accuracy": 0.5}]
    assert run.told == [1]
    assert run.supervisor.restarts == []


def test_a_lost_replica_goes_on_after_its_last_step(job: Prepared) -> None:
    run = Run(job)
    assert run.loses(1, {"worker-1.0": "step 2"}) == ["worker-1.0+1"]
    (setup,) = [role.setup for role in run.supervisor._workers(1)]
    assert (setup["times"], setup["first"]) == (1, 3)
    assert run.notes == [f"replica 1 starts again at step 3: {KILLED}"]
    assert run.supervisor.restarts[0]["seconds"] is None
    run.progress("worker-1.0+1", 4)
    assert run.supervisor.restarts[0]["seconds"] >= 0
    assert run.told == []


def test_steps_that_it_told_count_though_its_beacon_did_not(job: Prepared) -> None:
    run = Run(job)
    run.progress("worker-0.0", 5)
    run.loses(0, {"worker-0.0": "step 1"})
    assert run.supervisor.restarts[0]["step"] == 5
    assert run.supervisor.losses == [(40, 0.2)]


def test_the_machine_that_is_furthest_behind_says_where_to_go_on(job: Prepared) -> None:
    two = {"regions": job.regions * 2, "programs": [*job.programs] * 2, "evaluations": [*job.evaluations] * 2}
    run = Run(replace(job, **two))  # type: ignore[arg-type]
    run.loses(0, {"worker-0.0": "step 900", "worker-0.1": "step 4"})
    assert run.supervisor.restarts[0]["step"] == 5


def test_one_that_dies_before_its_first_step_begins_where_the_one_before_did(job: Prepared) -> None:
    run = Run(job)
    run.loses(1, {"worker-1.0": "step 2"})
    run.loses(1, {"worker-1.0+1": None})
    assert [restart["step"] for restart in run.supervisor.restarts] == [3, 3]


def test_one_that_had_trained_takes_no_step_again_but_tests_and_sends_its_state(job: Prepared) -> None:
    run = Run(job)
    run.finishes("worker-1.0")
    run.hears("worker-0.0", "trained")
    run.hears("worker-0.0", "state", file=state_file(1))
    run.loses(0, {"worker-0.0": None})
    assert run.supervisor.restarts[0]["step"] == run.job.course.steps
    run.hears("worker-0.0", "state", file=state_file(2))
    run.hears("worker-0.0+1", "trained")
    assert run.post.sent == [("worker-0.0", "all trained"), ("worker-0.0+1", "all trained")]
    run.hears("worker-0.0+1", "state", file=state_file(3))
    run.finishes("worker-0.0+1")
    assert run.post.sent[2:] == [("shard-0", "finish")]
    assert [file.bytes for file in run.supervisor.state] == [3]
    assert set(run.supervisor.results) == {"worker-0.0", "worker-1.0"}


def test_its_seconds_go_on_from_those_of_the_run(job: Prepared) -> None:
    run = Run(job)
    run.supervisor._began -= 100.0
    run.loses(0, {"worker-0.0": "step 2"})
    run.hears("worker-0.0+1", "tested", seconds=2.0, samples=32, test_accuracy=0.5)
    run.hears("worker-0.0+1", "tested", seconds=3.0, samples=40, test_accuracy=0.6)
    first, second = (point["seconds"] for point in run.supervisor.curve)
    assert first == pytest.approx(100.0, abs=5.0)
    assert second == first + 1.0


def test_one_that_is_lost_too_often_is_the_error(job: Prepared) -> None:
    run = Run(job, restarts=1)
    run.loses(1, {"worker-1.0": None})
    with pytest.raises(ProcessLost) as caught:
        run.loses(1, {"worker-1.0+1": None})
    said = "; replica 1 was started again once before, and that is all that --restarts allows\nits log"
    assert caught.value.facts == KILLED + said
    assert (caught.value.code, caught.value.fix) == ("E602", "look")


def test_with_no_restarts_the_error_is_as_it_was(job: Prepared) -> None:
    with pytest.raises(ProcessLost) as caught:
        Run(job, restarts=0).loses(1, {"worker-1.0": None})
    assert caught.value.facts == f"{KILLED}\nits log"


# Batches are leased: good.py has 12 of them ---------------------------------------------------------------------------


def test_what_a_lost_replica_had_is_taken_by_one_that_is_idle(job: Prepared) -> None:
    run = Run(job)
    assert run.asks("worker-1.0", 0) == (0, 1)
    for chunk in range(11):
        assert run.asks("worker-0.0", chunk, settled=chunk) == (1 + chunk, 1)
    assert run.asks("worker-0.0", 11, settled=11) == (0, 0)
    assert run.asks("worker-0.0", 12, settled=11, idle=True) is None
    run.loses(1, {"worker-1.0": "step 0, settled 0"})
    run.supervisor.watch(cast(Launcher, run.post))
    assert run.post.leases[-1] == ("worker-0.0", 0, 1)
    assert run.post.dismissed == []
    assert run.asks("worker-0.0", 13, settled=12) == (0, 0)
    run.supervisor.watch(cast(Launcher, run.post))
    assert run.post.dismissed == ["worker-1.0+1"]  # all is done before it was back
    run.hears("worker-0.0", "trained")
    assert run.post.sent == [("shard-0", "leave"), ("worker-0.0", "all trained")]
    assert run.supervisor.shares["taken"] == {"0": 12}
    assert run.supervisor.shares["repeated"] == {"1": 1}


def test_one_that_is_lost_when_all_is_done_is_not_started_again(job: Prepared) -> None:
    run = Run(job, restarts=0)
    for chunk in range(12):
        run.asks("worker-0.0", chunk)
    run.asks("worker-0.0", 12, settled=12)
    assert run.loses(1, {"worker-1.0": None}) == []
    run.supervisor.watch(cast(Launcher, run.post))
    run.hears("worker-0.0", "trained")
    assert run.post.sent == [("shard-0", "leave"), ("worker-0.0", "all trained")]


def test_replicas_join_and_leave_as_somebody_wishes(job: Prepared) -> None:
    run = Run(job)
    assert run.wishes.standing == [(2, 2 + JOINS_MOST)]
    run.asks("worker-1.0", 0)
    run.wishes_for(3)
    assert run.post.added == ["worker-2.0"]
    run.hears("worker-2.0", "progress", step=1, steps=6, samples=8, loss=0.5, seconds=0.5, settled=0)
    run.wishes_for(1)
    assert run.asks("worker-1.0", 1) == (0, 0)
    assert run.asks("worker-1.0", 2, settled=1, idle=True) == (0, 0)
    run.finishes("worker-1.0")
    run.wishes_for(0)
    assert [(c["replica"], c["how"]) for c in run.supervisor.shares["changes"]] == [(2, "joined"), (1, "left")]
    assert run.supervisor.shares["changes"][0]["seconds"] >= 0
    assert run.notes == [
        "replica 2 joins; from now on 3 in all",
        "replica 2 trains, 0.0 s after it was asked for",
        "replica 1 is asked to leave; from now on 1 in all",
        "replica 2 is asked to leave; from now on 1 in all",
        "replica 1 has left",
        f"0 replicas were asked for; there can be 1 to {JOINS_MOST} now",
    ]
    assert run.wishes.standing[-1] == (1, JOINS_MOST)


def test_one_that_shall_leave_before_it_trains_is_ended(job: Prepared) -> None:
    run = Run(job)
    run.wishes_for(3)
    run.wishes_for(2)
    assert run.post.dismissed == ["worker-2.0"]
    run.wishes_for(3)
    assert run.post.added == ["worker-2.0", "worker-3.0"]


def test_one_that_is_lost_while_it_leaves_is_not_started_again(job: Prepared) -> None:
    run = Run(job)
    run.asks("worker-1.0", 0)
    run.wishes_for(1)
    assert run.loses(1, {"worker-1.0": None}) == []
    assert run.asks("worker-0.0", 0) == (0, 1)
    assert run.supervisor.shares["repeated"] == {"1": 1}


def test_where_replicas_take_turns_nobody_joins(job: Prepared) -> None:
    run = Run(job, method=Sync())
    run.wishes_for(3)
    assert run.wishes.standing == [(2, 0)]
    assert (run.post.added, run.notes) == ([], [])
    assert run.supervisor.shares == {"changes": []}


def test_progress_is_told_in_batches_and_never_goes_back(job: Prepared) -> None:
    run = Run(job)
    run.progress("worker-0.0", 5)
    run.progress("worker-0.0", 3)
    run.progress("worker-0.0", 7)
    assert run.told == [5, 5, 7]
    assert [samples for samples, _ in run.supervisor.losses] == [40, 40, 56]


# Checkpoints go by time -----------------------------------------------------------------------------------------------

EVERYBODY = [("worker-0.0", "checkpoint"), ("shard-0", "checkpoint")]  # who makes a part of one


@pytest.fixture
def timed(job: Prepared) -> Run:
    """A run in which one is due as soon as none is asked for, and which has told twice how far it is."""
    course = msgspec.structs.replace(job.course, steps=100_000, checkpoint_every=1, checkpoint_s=1e-9)
    run = Run(replace(job, course=course))
    run.progress("worker-0.0", 1)
    run.progress("worker-1.0", 2)
    assert run.post.sent == []
    run.progress("worker-0.0", 2)
    return run


def test_shards_and_replica_0_are_asked_for_a_checkpoint(timed: Run) -> None:
    assert timed.post.sent == EVERYBODY
    timed.progress("worker-0.0", 3)
    assert timed.post.sent == EVERYBODY, "it may still be completed"


def test_of_a_cut_replica_every_machine_is_asked(job: Prepared) -> None:
    course = msgspec.structs.replace(job.course, steps=100_000, checkpoint_every=1, checkpoint_s=1e-9)
    two = {"regions": job.regions * 2, "programs": [*job.programs] * 2, "evaluations": [*job.evaluations] * 2}
    run = Run(replace(job, course=course, **two))  # type: ignore[arg-type]
    for step in (1, 2):
        run.progress("worker-0.0", step)
    assert {name for name, kind in run.post.sent if kind == "checkpoint"} == {"worker-0.0", "worker-0.1", "shard-0"}


@pytest.mark.parametrize("who", ["worker-0.0", "shard-0"])
def test_where_one_is_late_all_are_asked_again(timed: Run, who: str) -> None:
    timed.hears(who, "late", checkpoint=timed.supervisor._checkpoints.timing._pending)
    timed.progress("worker-0.0", 3)
    assert timed.post.sent == EVERYBODY * 2


def test_after_a_loss_all_are_asked_again_once_they_are_there(timed: Run) -> None:
    error = ProcessLost("E602", "shard-0 was killed")
    timed.supervisor.renew(Loss("shard 0", error, {"shard-0": None}))
    timed.progress("worker-0.0", 3)
    assert timed.post.sent == EVERYBODY
    timed.hears("shard-0+1", "serving")
    timed.loses(0, {"worker-0.0": "step 3"})
    timed.progress("worker-0.0+1", 4)
    assert timed.post.sent[2:] == [("worker-0.0+1", "checkpoint"), ("shard-0+1", "checkpoint")]
