"""Downpour over shards in threads: equal to plain SGD where it must be, converging where it may differ."""

import threading

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from in_threads import run_in_threads
from regression import SIZE, Regression, batch_of, every, in_one_process, plain_sgd, run, staleness

from cutset.errors import Diverged, UsageError
from cutset.ps.client.client import Client
from cutset.ps.methods.downpour import Downpour
from cutset.ps.methods.training_loop import TrainingLoop
from cutset.ps.optimizers.optimizer import Update
from cutset.ps.optimizers.standard import SGD, Adagrad
from cutset.ps.server.serving import ServingConfig
from cutset.ps.server.shard import Shard
from cutset.ps.slices.slicing import slice_parameters, slices_of_shard
from cutset.runtime.channel.mailbox import Mailbox


@pytest.mark.first_cases(5)
@pytest.mark.parametrize("copies", [False, True])
@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize(("fetch", "push"), [(1, 1), (3, 2), (2, 3), (7, 1), (1, 5)])
def test_one_replica_equals_plain_sgd(fetch, push, overlap, copies):
    workers = [Regression()]
    method = Downpour(fetch=fetch, push=push, overlap=overlap)
    values, statistics, _ = run(method, SGD(0.02), steps=50, workers=workers, copies=copies)
    expected = plain_sgd(0.02, 50)
    torch.testing.assert_close(values, expected, rtol=0, atol=1e-10)
    torch.testing.assert_close(workers[0].values, expected, rtol=0, atol=1e-10)
    assert staleness(statistics)["max"] == 0
    assert all(piece["pushes"] == method.count_pushes(50) for shard in statistics for piece in shard["slices"])


@pytest.mark.parametrize("push", [1, 3])
def test_the_gradients_of_each_step_are_clipped_and_not_their_sum(push):
    slices, one, norms = slice_parameters([SIZE], 1), Regression(), []
    server = Shard(0, slices_of_shard(slices, 0), ServingConfig(SGD(0.02)))

    def clip(step):
        norms.append(one.gradients.norm().item())
        one.gradients.mul_(min(1.0, 0.5 / norms[-1]))

    def worker(channel):
        client = Client(Mailbox(channel), slices, one.values, local_rate=0.02)
        client.put()
        loop = TrainingLoop(one, client, SGD(0.02), every(0, 1, 12), replicas=1, clip=clip)
        loop.run(Downpour(push=push).train(loop))

    values, expected = torch.zeros(SIZE, dtype=torch.float64, requires_grad=True), []
    optimiser = torch.optim.SGD([values], lr=0.02)
    for step in range(12):
        inputs, targets = (torch.stack(rows) for rows in zip(*batch_of(step), strict=True))
        optimiser.zero_grad()
        (inputs @ values - targets).square().mean().backward()
        expected.append(values.grad.norm().item())
        values.grad.mul_(min(1.0, 0.5 / expected[-1]))
        optimiser.step()
    run_in_threads([server], {"worker-0.0": worker})
    assert norms == pytest.approx(expected, rel=1e-12)
    torch.testing.assert_close(one.values, values.detach(), rtol=0, atol=1e-10)


def test_a_run_is_continued():
    values, _, [reports] = run(Downpour(fetch=3, push=2), SGD(0.02), steps=50, parts=4)
    torch.testing.assert_close(values, plain_sgd(0.02, 50), rtol=0, atol=1e-10)
    assert [step for step, _, _ in reports] == list(range(50))


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 5), st.integers(1, 5), st.integers(1, 12), st.booleans(), st.integers(1, 5))
def test_one_replica_equals_plain_sgd_whatever_the_periods(fetch, push, steps, overlap, shards):
    values, _, _ = run(Downpour(fetch, push, overlap=overlap), SGD(0.02), steps=steps, shards=shards)
    torch.testing.assert_close(values, plain_sgd(0.02, steps), rtol=0, atol=1e-10)


def test_adagrad_without_overlap_equals_sequential_adagrad():
    values, _, _ = run(Downpour(overlap=False), Adagrad(0.1), steps=30)
    torch.testing.assert_close(values, in_one_process(Adagrad(0.1), 30, 1), rtol=0, atol=1e-12)


def test_accrued_gradients_without_a_local_step():
    values, _, _ = run(Downpour(fetch=4, push=4, overlap=False), Adagrad(0.1), steps=9)
    one, optimizer = Regression(), Adagrad(0.1)
    shard, state = one.values.clone(), optimizer.init_state(one.values)
    one.gradients.zero_()
    for step in range(9):  # fetches at 0, 4, 8; pushes after 0, 4, 8
        if step % 4 == 0:
            one.values.copy_(shard)
        one.step(batch_of(step), step)
        if step % 4 == 0:
            optimizer.apply(shard, one.gradients, state, Update())
            one.gradients.zero_()
    torch.testing.assert_close(values, shard, rtol=0, atol=1e-12)


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("replicas", [2, 4])
@pytest.mark.parametrize("optimizer", [SGD(0.01), Adagrad(0.3)])
@pytest.mark.parametrize("method", [Downpour(), Downpour(fetch=2, push=3, warm_start=5)])
def test_replicas_converge_together(method, optimizer, replicas):
    values, _, reports = run(method, optimizer, steps=600 // replicas, replicas=replicas)
    assert (values - 1).abs().max() < 0.05
    assert reports[0][0][1] > 10
    assert [len(rows) for rows in reports] == [600 // replicas] * replicas


class RoundRobin:
    """Gradients are computed in turn: a replica's turn lasts until its next step begins, or its training has ended."""

    def __init__(self, replicas):
        self._replicas = replicas
        self._turn = 0
        self._changed = threading.Condition()

    def worker(self, replica):
        return Regression(lambda step: self._begin(replica, step), self._end)

    def _begin(self, replica, step):
        if step > 0:
            self._end()
        with self._changed:
            assert self._changed.wait_for(lambda: self._turn == step * self._replicas + replica, timeout=30)

    def _end(self):
        with self._changed:
            self._turn += 1
            self._changed.notify_all()


@pytest.mark.parametrize("replicas", [2, 4])
@pytest.mark.parametrize("optimizer", [SGD(0.01), Adagrad(0.1)])
def test_staleness_in_turn_is_one_less_than_the_replicas(replicas, optimizer):
    turns, steps, shards = RoundRobin(replicas), 30, 2
    workers = [turns.worker(r) for r in range(replicas)]
    method = Downpour(overlap=False)
    _, statistics, _ = run(method, optimizer, steps=steps, replicas=replicas, workers=workers, shards=shards)
    found = staleness(statistics)
    assert found["max"] == replicas - 1
    # Of the first pushes only is the staleness open: a first fetch may come before or after the first turns.
    assert 0 <= replicas - 1 - found["mean"] <= (replicas - 1) / steps + 1e-9
    assert dict(found["histogram"])[replicas - 1] >= replicas * (steps - 1) * shards


@pytest.mark.parametrize("overlap", [False, True])
def test_warm_start_holds_the_others_back(overlap):
    log = []

    class Logged(Shard):
        def handle(self, message):
            replies = super().handle(message)
            log.append((self.index, message.sender, message.kind))
            log.extend((self.index, peer, reply.kind) for peer, reply in replies)
            return replies

    method = Downpour(warm_start=6, overlap=overlap)
    _, _, reports = run(method, SGD(0.01), steps=20, replicas=3, shard_class=Logged)
    assert [len(rows) for rows in reports] == [20, 20, 20]
    for shard in range(2):
        events = [(sender, kind) for index, sender, kind in log if index == shard]
        for other in ("worker-1.0", "worker-2.0"):
            alone = events[: events.index((other, "values"))]
            assert alone.count(("worker-0.0", "push")) >= 6
            assert not {("worker-1.0", "push"), ("worker-2.0", "push")} & set(
                alone[: _nth(alone, ("worker-0.0", "push"), 6)]
            )


def _nth(events, event, n):
    return [index for index, each in enumerate(events) if each == event][n - 1]


def test_a_warm_start_that_never_ends_is_refused():
    with pytest.raises(UsageError, match="warm start of 4 pushes, but replica 0 makes 3 in 5 steps"):
        run(Downpour(push=2, warm_start=4), SGD(0.01), steps=5, replicas=2)
    run(Downpour(push=2, warm_start=3), SGD(0.01), steps=5, replicas=2)


@given(st.integers(1, 7), st.integers(0, 40))
def test_pushes_are_counted_as_the_loop_makes_them(push, steps):
    made = sum(step % push == 0 or step == steps - 1 for step in range(steps))
    assert Downpour(push=push).count_pushes(steps) == made


def test_replicas_take_every_rth_batch_and_report_samples():
    taken = []

    class Taking(Regression):
        def step(self, batch, step):
            taken.append(float(batch[0][1]))
            return super().step(batch, step)

    _, _, reports = run(Downpour(), SGD(0.01), steps=5, replicas=2, workers=[Taking(), Taking()])
    assert sorted(taken) == sorted(float(batch_of(number)[0][1]) for number in range(10))
    assert [(step, samples) for step, _, samples in reports[1]] == [(step, 8) for step in range(5)]


def test_a_worker_without_the_loss_reports_none():
    class Silent(Regression):
        def step(self, batch, step):
            super().step(batch, step)

    _, _, [rows] = run(Downpour(), SGD(0.01), steps=2, workers=[Silent()])
    assert [loss for _, loss, _ in rows] == [None, None]


def test_a_loss_that_is_not_finite_names_worker_step_and_rate():
    class Exploding(Regression):
        def step(self, batch, step):
            super().step(batch, step)
            return float("nan") if step == 3 else 1.0

    with pytest.raises(Diverged, match=r"worker-0\.0 at step 3 is nan(.|\n)*--lr") as caught:
        run(Downpour(), SGD(0.01), steps=5, workers=[Exploding()])
    assert caught.value.exit_code == 7


def test_a_gradient_that_is_not_finite_is_found_by_the_shard():
    class Poisoned(Regression):
        def step(self, batch, step):
            self.gradients[3] += float("inf") if step == 2 else 0.0

    with pytest.raises(Diverged, match=r"shard-0 .*machine 0 .*worker-0\.0 at step 2"):
        run(Downpour(), SGD(0.01), steps=5, workers=[Poisoned()])


def test_too_large_a_rate_diverges():
    with pytest.raises(Diverged):
        run(Downpour(), SGD(50.0), steps=500, replicas=2)


@pytest.mark.parametrize("name", ["fetch", "push"])
@pytest.mark.parametrize("value", [0, -1, 1.5, "2", True, None])
def test_wrong_periods_are_named(name, value):
    with pytest.raises(UsageError, match=name) as caught:
        Downpour(**{name: value})
    assert repr(value) in caught.value.facts


def test_a_wrong_warm_start_is_named():
    with pytest.raises(UsageError, match="warm_start is -1"):
        Downpour(warm_start=-1)
