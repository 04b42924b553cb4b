"""Optimizers for delayed gradients against their published formulas, written out."""

import math

import pytest
import torch

from cutset.errors import UsageError
from cutset.ps.methods.downpour import Downpour
from cutset.ps.optimizers.delay_compensated import AdaDelay, DCAdaptive, DCConstant
from cutset.ps.optimizers.fused_kernels import BLOCK
from cutset.ps.optimizers.optimizer import Update
from cutset.ps.optimizers.standard import SGD

DTYPES = [torch.float32, torch.float64]


def normal(size, seed, dtype=torch.float64):
    return torch.randn(size, dtype=dtype, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("number", "tau"), [(1, 0), (4, 5), (100, 0), (100, 21)])
def test_adadelay_is_the_formula(number, tau):
    value, gradient = normal(20, 0), normal(20, 1)
    pairs = zip(value.tolist(), gradient.tolist(), strict=True)
    expected = [v - 0.3 / (2.0 + math.sqrt(number + tau)) * g for v, g in pairs]
    one, update = AdaDelay(0.3, beta=2.0), Update(number, tau)
    one.apply(value, gradient, {}, update)
    torch.testing.assert_close(value, torch.tensor(expected, dtype=torch.float64), rtol=1e-14, atol=1e-14)
    assert one.rate(update) == 0.3 / (2.0 + math.sqrt(number + tau))


class Published:
    """Algorithm 2 of DC-ASGD, element by element: a fetch backs up what is sent, a push is compensated."""

    def __init__(self, values, lr, lam, adaptive):
        self.w, self.lr, self.lam, self.adaptive = values.tolist(), lr, lam, adaptive
        self.bak, self.ms = {}, {}

    def fetch(self, m):
        self.bak[m] = list(self.w)

    def push(self, m, gradient):
        ms = self.ms.setdefault(m, [0.0] * len(self.w))
        for i, g in enumerate(gradient.tolist()):
            ms[i] = 0.95 * ms[i] + 0.05 * g * g
            lam = self.lam / math.sqrt(ms[i] + 1e-7) if self.adaptive else self.lam
            self.w[i] -= self.lr * (g + lam * g * g * (self.w[i] - self.bak[m][i]))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("one", [DCConstant(0.1), DCAdaptive(0.1), DCConstant(0.2, lam=1.0)])
def test_dc_asgd_is_the_algorithm(one, dtype):
    value = normal(30, 0, dtype)
    published = Published(value, one.lr, one.lam, isinstance(one, DCAdaptive))
    state = one.init_state(value)
    turns = "f0 f1 f2 p0 p1 f1 p1 p1 p2 f0 p0 p2 p1 f2 f2 p2"  # replicas that push twice, or fetch twice
    for number, turn in enumerate(turns.split()):
        replica = int(turn[1])
        if turn[0] == "f":
            one.on_fetch(value, state, replica)
            published.fetch(replica)
            continue
        gradient = normal(30, 100 + number, dtype)
        one.apply(value, gradient, state, Update(number, replica=replica))
        published.push(replica, gradient)
        eps = 100 * torch.finfo(dtype).eps
        torch.testing.assert_close(value, torch.tensor(published.w, dtype=dtype), rtol=eps, atol=eps)


@pytest.mark.parametrize("one", [DCConstant(0.1), DCAdaptive(0.1)])
def test_a_fresh_gradient_needs_no_compensation(one):
    value, gradient = normal(BLOCK + 7, 0), normal(BLOCK + 7, 1)
    expected = value - 0.1 * gradient
    state = one.init_state(value)
    one.on_fetch(value, state, 3)
    one.apply(value, gradient, state, Update(replica=3))
    torch.testing.assert_close(value, expected)


@pytest.mark.parametrize("one", [DCConstant(0.1), DCAdaptive(0.1)])
def test_a_replica_takes_plain_steps_until_it_fetches(one):
    value, gradient = normal(10, 0), normal(10, 1)
    expected = value - 0.1 * gradient
    one.apply(value, gradient, one.init_state(value), Update(replica=3))
    torch.testing.assert_close(value, expected)


def test_the_backup_is_a_copy():
    one, value = DCConstant(0.1), normal(5, 0)
    state, before = one.init_state(value), value.clone()
    one.on_fetch(value, state, 0)
    value.zero_()
    assert torch.equal(state["fetched-0"], before)


@pytest.mark.parametrize("one", [DCConstant(0.1), DCAdaptive(0.1)])
def test_no_fetch_may_overtake_a_push(one):
    with pytest.raises(UsageError, match="overlap"):
        Downpour(overlap=True).check(one, replicas=2, steps=10)
    Downpour().check(one, replicas=2, steps=10)
    Downpour(overlap=True).check(SGD(0.1), replicas=2, steps=10)


@pytest.mark.parametrize(
    ("kind", "field", "value"),
    [(AdaDelay, "beta", -1.0), (DCConstant, "lam", math.nan), (DCAdaptive, "mean", 1.0), (DCAdaptive, "eps", 0.0)],
)
def test_a_bad_option_is_named(kind, field, value):
    with pytest.raises(UsageError) as caught:
        kind(0.1, **{field: value})
    assert field in caught.value.facts
    assert repr(value) in caught.value.facts
