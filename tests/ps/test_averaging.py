"""Parameter averaging: the mean of replicas that trained apart, which with every=1 is synchronous training."""

import pytest
import torch
from regression import Regression, batch_of, run, update

from cutset.errors import UsageError
from cutset.ps.methods.averaging import Averaging
from cutset.ps.optimizers.standard import SGD, Adagrad
from cutset.ps.methods.sync import Sync


def in_turn(rule, every, steps, replicas):
    """The mean after every `every` steps, each replica's steps made one after the other in this thread."""
    ones = [Regression() for _ in range(replicas)]
    states = [rule.state(one.values) for one in ones]
    for step in range(steps):
        for replica, one in enumerate(ones):
            update(one, rule, states[replica], batch_of(replica + step * replicas), step)
        if (step + 1) % every == 0 or step + 1 == steps:
            mean = torch.stack([one.values for one in ones]).mean(0)
            for one in ones:
                one.values.copy_(mean)
    return ones[0].values


@pytest.mark.parametrize("rule", [SGD(0.02), Adagrad(0.1)])
@pytest.mark.parametrize(("replicas", "every", "steps"), [(1, 3, 20), (2, 1, 20), (2, 5, 40), (3, 7, 40)])
def test_it_is_the_mean_of_replicas_that_trained_apart(rule, replicas, every, steps):
    values, statistics, reports = run(Averaging(every), rule, steps=steps, replicas=replicas)
    torch.testing.assert_close(values, in_turn(rule, every, steps, replicas), rtol=0, atol=1e-10)
    assert [[step for step, _, _ in rows] for rows in reports] == [list(range(steps))] * replicas
    rounds = -(-steps // every)
    assert {(piece["version"], piece["late"]) for shard in statistics for piece in shard["slices"]} == {(rounds, 0)}


@pytest.mark.parametrize("replicas", [2, 3])
def test_with_rounds_of_one_step_it_equals_sync(replicas):
    """And so one process with the batch of all replicas."""
    averaged, _, _ = run(Averaging(1), SGD(0.02), steps=40, replicas=replicas)
    synchronous, _, _ = run(Sync(), SGD(0.02), steps=40, replicas=replicas)
    torch.testing.assert_close(averaged, synchronous, rtol=0, atol=1e-10)


def test_it_pushes_once_a_round():
    _, statistics, _ = run(Averaging(10), SGD(0.02), steps=35, replicas=2, shards=1)
    (piece,) = statistics[0]["slices"]
    assert (piece["pushes"], piece["duplicates"]) == (2 * 4, 0)


def test_it_goes_on_at_any_step():
    values, _, _ = run(Averaging(5), SGD(0.02), steps=40, parts=4)
    torch.testing.assert_close(values, in_turn(SGD(0.02), 5, 40, 1), rtol=0, atol=1e-10)


def test_a_bad_length_of_a_round_is_named():
    with pytest.raises(UsageError, match="every is 0") as caught:
        Averaging(every=0)
    assert "averaging:every=1" in caught.value.fix
