"""What asynchrony does: the staleness of equal replicas, and which optimizers bear that of sixteen."""

import threading

import pytest
from marking import with_slow
from regression import Regression, run, staleness
from turns import take_turns

from cutset.ps.methods.downpour import Downpour
from cutset.ps.optimizers.registry import parse_optimizer
from cutset.ps.optimizers.standard import SGD, Adagrad


@pytest.mark.first_cases(2)
@pytest.mark.parametrize("replicas", [1, 2, 4, 8])
def test_the_mean_staleness_of_equal_replicas_is_the_number_of_others(replicas):
    found = take_turns(SGD(0.05), replicas=replicas, updates=100 * replicas)
    assert found.staleness["mean"] == pytest.approx(replicas - 1, rel=0.1)


class OneStepEach:
    """All replicas' steps take the same time: while one computes, each of the others ends a step, in turn.

    A replica computes from its fetch until it has its turn, and gives it to the next one with its next fetch.
    """

    def __init__(self, replicas):
        self._replicas, self._turn, self._changed = replicas, 0, threading.Condition()

    def computing(self, replica):
        def begin(step):
            if step > 0:
                self.passed()
            with self._changed:
                mine = step * self._replicas + replica
                assert self._changed.wait_for(lambda: self._turn == mine, timeout=30)

        return begin

    def passed(self):
        with self._changed:
            self._turn += 1
            self._changed.notify_all()


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("by", [SGD(0.001), Adagrad(0.01)])
@pytest.mark.parametrize("replicas", [2, 4])
def test_clients_and_channels_have_the_same_staleness(replicas, by):
    turns = OneStepEach(replicas)
    workers = [Regression(turns.computing(replica), turns.passed) for replica in range(replicas)]
    _, statistics, _ = run(Downpour(), by, steps=60, replicas=replicas, workers=workers)
    found = staleness(statistics)
    assert found["mean"] == pytest.approx(replicas - 1, rel=0.1)
    assert found["max"] == replicas - 1


@pytest.mark.run
def test_free_running_replicas_have_the_same_staleness():
    begun = threading.Barrier(4)
    workers = [Regression(lambda step: begun.wait(30) if step == 0 else None) for _ in range(4)]
    _, statistics, _ = run(Downpour(), SGD(0.001), steps=200, replicas=4, workers=workers)
    assert staleness(statistics)["mean"] == pytest.approx(3, rel=0.1)


SIXTEEN = 16
DIVERGED, TRAINED = 0.4, 0.9  # test accuracy; chance is 0.1, and one replica comes to 0.96


@pytest.mark.slow
@pytest.mark.parametrize("seed", with_slow([0], range(1, 5)))
def test_sixteen_replicas_diverge_with_plain_sgd_and_not_with_rules_that_know_of_delay(seed):
    plain = take_turns(SGD(0.2), replicas=SIXTEEN, seed=seed)
    assert plain.accuracy < DIVERGED
    assert plain.staleness["mean"] == pytest.approx(SIXTEEN - 1, rel=0.1)
    for text, lr in (("dc-asgd-a", 0.2), ("adagrad", 0.05), ("sgd/tau", 0.2)):
        found = take_turns(parse_optimizer(text, lr), replicas=SIXTEEN, seed=seed)
        assert (text, found.accuracy > TRAINED, found.diverged) == (text, True, False)
        assert found.staleness == plain.staleness


@pytest.mark.slow
def test_one_replica_and_eight_train_with_plain_sgd_at_that_rate():
    """So it is the delay that the sixteen cannot bear."""
    assert all(take_turns(SGD(0.2), replicas=replicas).accuracy > 0.95 for replicas in (1, 8))


def test_a_schedule_depends_on_its_seed_alone():
    first, again, other = (take_turns(SGD(0.05), replicas=4, updates=50, seed=seed) for seed in (3, 3, 4))
    assert first == again
    assert first.staleness != other.staleness
