"""Hogwild: alone it is plain SGD bit for bit; together replicas learn on one memory, and every update is counted."""

import threading

import pytest
import torch
from regression import Regression, every, one_after_the_other, pieces, plain_sgd, run

from cutset.errors import Diverged, UsageError
from cutset.ps.methods.hogwild import Hogwild
from cutset.ps.optimizers.standard import SGD, Adagrad
from cutset.ps.server import shared_tensors


def updates(statistics):
    """(version, pushes) of each machine's slices on each shard."""
    return [(piece["version"], piece["pushes"]) for piece in pieces(statistics)]


def test_one_replica_has_the_bits_of_plain_sgd():
    values, statistics, reports = run(Hogwild(), SGD(0.02), steps=40, shards=1)
    assert torch.equal(values, plain_sgd(0.02, 40))
    assert updates(statistics) == [(40, 40)]
    assert [step for step, _, _ in reports[0]] == list(range(40))


def test_the_optimizer_state_exists_once():
    """Two replicas, one after the other, do what one does: they share the sums of squares and the count of updates."""
    values, statistics, _ = run(Hogwild(), Adagrad(0.1), steps=20, replicas=2, shards=1, workers=take_steps_in_turn(20))
    batches = [every(replica, 2, 20)(step) for replica in range(2) for step in range(20)]
    assert torch.equal(values, one_after_the_other(Adagrad(0.1), batches))
    assert updates(statistics) == [(40, 40)]


def take_steps_in_turn(steps):
    """Two workers of which the second begins when the first has ended."""
    ended = threading.Event()

    def after_the_first(step):
        assert ended.wait(timeout=30)

    return [Regression(after=ended.set), Regression(after_the_first)]


@pytest.mark.parametrize(("optimizer", "far"), [(SGD(0.01), 1e-3), (Adagrad(0.3), 0.05)])
@pytest.mark.parametrize("replicas", [2, 3])
def test_replicas_learn_together(optimizer, far, replicas):
    values, statistics, reports = run(Hogwild(), optimizer, steps=400, replicas=replicas, shards=1)
    assert (values - 1).abs().max() < far
    assert updates(statistics) == [(400 * replicas, 400 * replicas)]
    assert [len(rows) for rows in reports] == [400] * replicas


def test_staleness_is_counted_for_each_worker():
    """The second replica computes its only gradient while the first takes all its steps."""
    began, ended = threading.Event(), threading.Event()

    def while_the_first_works(step):
        began.set()
        assert ended.wait(timeout=30)

    first = Regression(lambda step: began.wait(timeout=30), after=ended.set)
    _, statistics, _ = run(
        Hogwild(), SGD(0.01), steps=1, replicas=2, shards=1, workers=[first, Regression(while_the_first_works)]
    )
    (piece,) = statistics[0]["slices"]
    assert piece["staleness"]["worker-0.0"]["histogram"] == [[0, 1]]
    assert piece["staleness"]["worker-1.0"]["histogram"] == [[1, 1]]


def test_another_host_is_named(monkeypatch):
    def nowhere(offer):
        raise OSError("no such process")

    monkeypatch.setattr(shared_tensors, "map_memory", nowhere)
    with pytest.raises(UsageError, match=r"on one host; worker-0\.0 does not find") as caught:
        run(Hogwild(), SGD(0.02), steps=3, shards=1)
    assert caught.value.code == "E269"
    assert "--method downpour" in caught.value.fix


def test_parameters_that_are_not_finite_are_named():
    with pytest.raises(Diverged) as caught:
        run(Hogwild(), SGD(1e308), steps=1, shards=1)
    assert caught.value.code == "E704"
    assert "worker-0.0" in caught.value.facts
