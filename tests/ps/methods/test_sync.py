"""Synchronous training equals one process with the batch of all replicas; backups are not waited for."""

import threading

import pytest
import torch
from regression import Regression, check_lock_step, in_one_process, pieces, run

from cutset.errors import UsageError
from cutset.ps.methods.sync import Sync
from cutset.ps.methods.training_loop import TrainingLoop
from cutset.ps.optimizers.standard import SGD, Adagrad


@pytest.mark.parametrize("optimizer", [SGD(0.02), Adagrad(0.1)])
@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_it_equals_one_process_with_the_batch_of_all(optimizer, replicas):
    found = check_lock_step(Sync(), optimizer, replicas=replicas, steps=40)
    assert all(piece["late"] == 0 and piece["version"] == 40 for piece in found)


def test_two_runs_have_the_same_bits():
    first, again = (run(Sync(), Adagrad(0.1), steps=25, replicas=3)[0] for _ in range(2))
    assert torch.equal(first, again)


def test_it_continues_at_any_step():
    values, _, _ = run(Sync(), Adagrad(0.1), steps=40, replicas=1, parts=4)
    torch.testing.assert_close(values, in_one_process(Adagrad(0.1), 40, 1), rtol=0, atol=1e-10)


def test_a_slow_backup_holds_nobody_up():
    """The third replica computes its first gradient until the others have done all their steps."""
    done, ended = threading.Semaphore(0), threading.Event()

    def slowly(step):
        if step == 0:
            for _ in range(2):
                assert done.acquire(timeout=30)
        ended.set()

    workers = [Regression(after=done.release), Regression(after=done.release), Regression(slowly)]
    values, statistics, reports = run(Sync(backups=1), SGD(0.02), steps=30, replicas=3, workers=workers)
    assert ended.is_set()
    assert [len(rows) for rows in reports] == [30, 30, 1]
    assert all(piece["late"] == 1 and piece["version"] == 30 for piece in pieces(statistics))
    assert (values - 1).abs().max() < 0.8


def test_at_least_one_replica_is_no_backup():
    with pytest.raises(UsageError, match="2 backups among 2 replicas") as caught:
        run(Sync(backups=2), SGD(0.1), steps=3, replicas=2)
    assert "sync:backups=1" in caught.value.fix
    with pytest.raises(UsageError, match="backups is -1"):
        Sync(backups=-1)


class CountingClient:
    """A client of shards that always have the version that is asked for. asked: those versions."""

    def __init__(self):
        self.name, self.replica, self.slices = "worker-0", 0, []
        self.version, self.asked = 0, []

    def push(self, gradient, step, *, base):
        pass

    def fetch(self, min_version=0, changed_only=False):
        self.asked.append(min_version)

    def wait(self):
        self.version = self.asked[-1]

    def leave(self):
        pass


def list_batches(step):
    return torch.zeros(1, 3) if step < 4 else None


@pytest.mark.parametrize(("backups", "asked"), [(0, 1), (1, 0)])
def test_an_evaluation_waits_for_the_next_values_unless_others_may_wait_for_it(backups, asked):
    """With a backup the others may be where replica 0 evaluates a step later, and go on only then."""
    client, during = CountingClient(), []

    def report(step, loss, count):
        before = len(client.asked)
        loop.settle()
        during.append(len(client.asked) - before)

    loop = TrainingLoop(Regression(), client, SGD(0.1), list_batches, replicas=3, report=report)
    assert list(Sync(backups=backups).train(loop)) == [0, 1, 2, 3]
    assert during == [asked] * 4
    assert client.asked == [0, 1, 2, 3, 4]
