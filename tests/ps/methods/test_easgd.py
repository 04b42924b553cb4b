"""Elastic averaging SGD, beside the formulas of its paper."""

import pytest
import torch
from regression import SIZE, Regression, batch_of, run

from cutset.errors import UsageError
from cutset.ps.methods.easgd import EASGD
from cutset.ps.optimizers.standard import SGD, Adagrad
from cutset.ps.server.shard import Shard

RATE = 0.02


def gradient(x, number):
    one = Regression()
    one.values.copy_(x)
    one.gradients.zero_()
    one.step(batch_of(number), 0)
    return one.gradients


def run_algorithm_1(order, *, every, alpha, steps, replicas, rate=RATE, gradient=gradient):
    """Centre and replicas after the fetches and pushes that a shard has seen, in their order."""
    centre = torch.zeros(SIZE, dtype=torch.float64)
    x, seen, t, pulls = {}, {}, [0] * replicas, [0] * replicas
    for kind, r in order:
        if kind == "fetch":
            seen[r] = centre
            x.setdefault(r, centre)
            continue
        pulls[r] += 1
        at = min(pulls[r] * every, steps)
        while t[r] < at:
            x[r] = x[r] - rate * gradient(x[r], r + t[r] * replicas)
            t[r] += 1
        pull = alpha * (x[r] - seen[r])
        step = rate * gradient(x[r], r + t[r] * replicas) if at < steps else 0
        centre, x[r], t[r] = centre + pull, x[r] - pull - step, t[r] + 1
    return centre, x


@pytest.mark.parametrize(
    ("replicas", "every", "alpha", "steps"), [(1, 1, 0.5, 20), (1, 4, 0.0, 30), (2, 1, 0.0, 30), (3, 5, 0.2, 42)]
)
def test_it_equals_algorithm_1_of_the_paper_in_any_order_of_replicas(replicas, every, alpha, steps):
    order = []

    class Watched(Shard):
        def handle(self, message):
            if message.kind in ("fetch", "push"):
                order.append((message.kind, message.body["replica"]))
            return super().handle(message)

    workers = [Regression() for _ in range(replicas)]
    method = EASGD(every, alpha)
    values, _, reports = run(
        method, SGD(RATE), steps=steps, replicas=replicas, shards=1, workers=workers, shard_class=Watched
    )
    centre, x = run_algorithm_1(order, every=every, alpha=alpha or 0.9 / replicas, steps=steps, replicas=replicas)
    torch.testing.assert_close(values, centre, rtol=0, atol=1e-10)
    for replica, worker in enumerate(workers):
        torch.testing.assert_close(worker.values, x[replica], rtol=0, atol=1e-10)
    assert order.count(("push", 0)) == -(-steps // every)
    assert [[step for step, _, _ in rows] for rows in reports] == [list(range(steps))] * replicas


@pytest.mark.parametrize("optimizer", [SGD(0.02), Adagrad(0.5)])
def test_the_centre_converges(optimizer):
    values, _, _ = run(EASGD(every=5), optimizer, steps=400, replicas=3)
    assert (values - 1).abs().max() < 0.05


@pytest.mark.parametrize("replicas", [1, 2, 4])
@pytest.mark.parametrize("every", [1, 5])
def test_the_default_rate_makes_up_for_the_centre_that_takes_no_steps(replicas, every):
    """On a slope, with replicas that take turns; the test above shows that the method is this algorithm."""
    method, steps = EASGD(every=every), 400
    rate = RATE * method.scale_default_rate(replicas)
    turns = [(kind, r) for _ in range(steps // every) for r in range(replicas) for kind in ("fetch", "push")]
    centre, _ = run_algorithm_1(
        turns,
        every=every,
        alpha=0.9 / replicas,
        steps=steps,
        replicas=replicas,
        rate=rate,
        gradient=lambda x, number: torch.ones_like(x),
    )
    assert -float(centre.mean()) == pytest.approx(RATE * steps, rel=0.05)


def test_it_continues_from_the_centre_at_any_step():
    values, statistics, _ = run(EASGD(every=5), SGD(0.02), steps=400, parts=4)
    assert (values - 1).abs().max() < 0.05
    assert {piece["version"] for shard in statistics for piece in shard["slices"]} == {400 // 5}


def test_wrong_options_are_named():
    with pytest.raises(UsageError, match="every is 0"):
        EASGD(every=0)
    for alpha in (-0.1, 1.5, float("nan"), True):
        with pytest.raises(UsageError, match=r"alpha is .*from 0 to 1") as caught:
            EASGD(alpha=alpha)
        assert "easgd:alpha=0.1" in caught.value.fix
