"""Averaging and DiLoCo: rounds of local steps, and a step of the shards with the mean of what they did."""

import threading

import pytest
import torch
from regression import Regression, batch_of, run, update

from cutset.errors import UsageError
from cutset.ps.methods.local_sgd import Averaging, DiLoCo
from cutset.ps.methods.sync import Sync
from cutset.ps.optimizers.delay_compensated import DCAdaptive
from cutset.ps.optimizers.standard import SGD, Adagrad, AdamW
from cutset.ps.server.shard import Shard


def run_algorithm_1(method, optimizer, steps, replicas):
    """What the shards hold at the end; torch's SGD is the outer optimiser.

    With overlap a round begins where the replica was, and before the next one what the others did is put beneath it.
    """
    outer = torch.nn.Parameter(torch.zeros_like(Regression().values))
    optimiser = torch.optim.SGD(
        [outer], lr=method.outer_lr, momentum=method.momentum, nesterov=method.momentum > 0, foreach=False
    )
    ones = [Regression() for _ in range(replicas)]
    states = [optimizer.init_state(one.values) for one in ones]
    bases = [one.values.clone() for one in ones]
    late = outer.detach().clone()
    for step in range(steps):
        for replica, one in enumerate(ones):
            update(one, optimizer, states[replica], batch_of(replica + step * replicas), step)
        if (step + 1) % method.every and step + 1 < steps:
            continue
        if method.overlap:
            for one, base in zip(ones, bases, strict=True):
                one.values += late - base if step >= method.every else 0
                base.copy_(late)
        outer.grad = torch.stack([base - one.values for one, base in zip(ones, bases, strict=True)]).mean(0)
        optimiser.step()
        late = outer.detach().clone()
        for one, base in zip(ones, bases, strict=True):
            if not method.overlap:
                one.values.copy_(late)
            base.copy_(one.values)
    return outer.detach()


@pytest.mark.parametrize("optimizer", [SGD(0.01), AdamW(0.02)])
@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize(("replicas", "every", "steps"), [(1, 4, 30), (2, 5, 40), (3, 10, 45)])
def test_diloco_equals_algorithm_1_of_the_paper(optimizer, overlap, replicas, every, steps):
    method = DiLoCo(every, overlap)
    values, statistics, reports = run(method, optimizer, steps=steps, replicas=replicas)
    torch.testing.assert_close(values, run_algorithm_1(method, optimizer, steps, replicas), rtol=0, atol=1e-10)
    assert [[step for step, _, _ in rows] for rows in reports] == [list(range(steps))] * replicas
    rounds = -(-steps // every)
    assert {(piece["version"], piece["late"]) for shard in statistics for piece in shard["slices"]} == {(rounds, 0)}


@pytest.mark.parametrize("every", [1, 5])
def test_diloco_with_plain_sgd_of_rate_1_is_averaging(every):
    ours, _, _ = run(DiLoCo(every, outer_lr=1.0, momentum=0.0), SGD(0.02), steps=40, replicas=2)
    averaged, _, _ = run(Averaging(every), SGD(0.02), steps=40, replicas=2)
    torch.testing.assert_close(ours, averaged, rtol=0, atol=1e-10)


@pytest.mark.run
@pytest.mark.first_cases(1)
@pytest.mark.parametrize("overlap", [False, True])
def test_diloco_converges(overlap):
    values, _, _ = run(DiLoCo(5, overlap, momentum=0.5), AdamW(0.02), steps=600, replicas=3)
    assert (values - 1).abs().max() < 0.05


class Slow(Shard):
    """Takes in what ends a round only when a later round is half over."""

    begun: threading.Event

    def handle(self, message):
        if message.kind == "push" and message.step == 3:
            assert self.begun.wait(timeout=30), "the round after the push is not begun before the push is taken in"
        return super().handle(message)


def test_overlap_hides_a_slow_shard():
    """The push of steps 0 to 3 is taken in when both replicas have begun step 6, and the run is the same to the bit."""
    begun, missing, lock = threading.Event(), {0, 1}, threading.Lock()
    fetched = threading.Barrier(2)  # a shard that waits answers no fetch, so both have theirs before the first push

    def before(replica):
        def begin(step):
            if step == 0:
                fetched.wait(timeout=30)
            with lock:
                missing.difference_update({replica} if step == 6 else ())
                if not missing:
                    begun.set()

        return begin

    method, optimizer = DiLoCo(4, overlap=True), SGD(0.02)
    workers = [Regression(before(replica)) for replica in range(2)]
    slow = type("Slow", (Slow,), {"begun": begun})
    values, _, _ = run(method, optimizer, steps=20, replicas=2, workers=workers, shard_class=slow)
    quick, _, _ = run(method, optimizer, steps=20, replicas=2)
    assert torch.equal(values, quick)


def test_wrong_options_of_diloco_are_named():
    with pytest.raises(UsageError, match=r"optimizer dc-asgd-a compensates the delay .* diloco has none"):
        run(DiLoCo(), DCAdaptive(0.1), steps=3)
    for bad in (0.0, -1.0, float("inf"), float("nan"), True):
        with pytest.raises(UsageError, match=r"outer_lr is .*above 0 and finite"):
            DiLoCo(outer_lr=bad)
    with pytest.raises(UsageError, match=r"momentum is 1\.0; it must be at least 0 and below 1"):
        DiLoCo(momentum=1.0)


# Averaging


def average_in_one_thread(optimizer, every, steps, replicas):
    """The mean after every `every` steps, each replica's steps made one after the other in this thread."""
    ones = [Regression() for _ in range(replicas)]
    states = [optimizer.init_state(one.values) for one in ones]
    for step in range(steps):
        for replica, one in enumerate(ones):
            update(one, optimizer, states[replica], batch_of(replica + step * replicas), step)
        if (step + 1) % every == 0 or step + 1 == steps:
            mean = torch.stack([one.values for one in ones]).mean(0)
            for one in ones:
                one.values.copy_(mean)
    return ones[0].values


@pytest.mark.parametrize("optimizer", [SGD(0.02), Adagrad(0.1)])
@pytest.mark.parametrize(("replicas", "every", "steps"), [(1, 3, 20), (2, 1, 20), (2, 5, 40), (3, 7, 40)])
def test_averaging_is_the_mean_of_independent_replicas(optimizer, replicas, every, steps):
    values, statistics, reports = run(Averaging(every), optimizer, steps=steps, replicas=replicas)
    torch.testing.assert_close(values, average_in_one_thread(optimizer, every, steps, replicas), rtol=0, atol=1e-10)
    assert [[step for step, _, _ in rows] for rows in reports] == [list(range(steps))] * replicas
    rounds = -(-steps // every)
    assert {(piece["version"], piece["late"]) for shard in statistics for piece in shard["slices"]} == {(rounds, 0)}


@pytest.mark.parametrize("replicas", [2, 3])
def test_averaging_after_every_step_equals_sync(replicas):
    """And so one process with the batch of all replicas."""
    averaged, _, _ = run(Averaging(1), SGD(0.02), steps=40, replicas=replicas)
    synchronous, _, _ = run(Sync(), SGD(0.02), steps=40, replicas=replicas)
    torch.testing.assert_close(averaged, synchronous, rtol=0, atol=1e-10)


def test_averaging_pushes_once_a_round():
    _, statistics, _ = run(Averaging(10), SGD(0.02), steps=35, replicas=2, shards=1)
    (piece,) = statistics[0]["slices"]
    assert (piece["pushes"], piece["duplicates"]) == (2 * 4, 0)


def test_averaging_continues_at_any_step():
    values, _, _ = run(Averaging(5), SGD(0.02), steps=40, parts=4)
    torch.testing.assert_close(values, average_in_one_thread(SGD(0.02), 5, 40, 1), rtol=0, atol=1e-10)


def test_a_wrong_length_of_a_round_is_named():
    with pytest.raises(UsageError, match="every is 0") as caught:
        Averaging(every=0)
    assert "averaging:every=1" in caught.value.fix
