"""Rules against torch.optim, step by step, and against the published formula."""

import math

import msgspec
import pytest
import torch

from cutset.partition.errors import UsageError
from cutset.ps.gradient_rules import BLOCK, SGD, Adagrad
from cutset.ps.rule import Update
from cutset.ps.rules import RULES, from_plain, rule

DTYPES = [torch.float32, torch.float64]


def gradients(size, dtype, steps=20):
    generator = torch.Generator().manual_seed(1)
    scale = 10.0 ** torch.empty(size, dtype=dtype).uniform_(-6, 6, generator=generator)
    return [torch.randn(size, dtype=dtype, generator=generator) * scale for _ in range(steps)]


def trajectories(one, optimiser_of, pushes, start):
    """The values after each push, by the rule and by the optimiser."""
    value, parameter = start.clone(), start.clone().requires_grad_()
    state, optimiser = one.state(value), optimiser_of([parameter])
    for gradient in pushes:
        one.apply(value, gradient, state, Update())
        parameter.grad = gradient.clone()
        optimiser.step()
        yield value, parameter.detach()


@pytest.mark.parametrize("dtype", DTYPES)
def test_sgd_is_that_of_torch(dtype):
    start = torch.randn(100, dtype=dtype, generator=torch.Generator().manual_seed(0))
    for ours, theirs in trajectories(SGD(0.3), lambda p: torch.optim.SGD(p, lr=0.3), gradients(100, dtype), start):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 100, BLOCK + 7])
def test_adagrad_is_that_of_torch_with_the_smallest_epsilon(dtype, size):
    start = torch.randn(size, dtype=dtype, generator=torch.Generator().manual_seed(0))
    eps = torch.finfo(dtype).tiny
    pushes = gradients(size, dtype, steps=5)
    for ours, theirs in trajectories(Adagrad(0.3), lambda p: torch.optim.Adagrad(p, lr=0.3, eps=eps), pushes, start):
        torch.testing.assert_close(ours, theirs, rtol=4 * torch.finfo(dtype).eps, atol=4 * torch.finfo(dtype).eps)


def test_adagrad_is_the_formula():
    pushes = gradients(50, torch.float64)
    value, expected = torch.zeros(50, dtype=torch.float64), [0.0] * 50
    one = Adagrad(0.05)
    state = one.state(value)
    for step, gradient in enumerate(pushes):
        one.apply(value, gradient, state, Update())
        for i in range(50):
            eta = 0.05 / math.sqrt(sum(float(g[i]) ** 2 for g in pushes[: step + 1]))
            expected[i] -= eta * float(gradient[i])
        torch.testing.assert_close(value, torch.tensor(expected, dtype=torch.float64), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [*DTYPES, torch.bfloat16])
def test_adagrad_never_steps_further_than_its_rate(dtype):
    info = torch.finfo(dtype)
    subnormal = info.smallest_normal * info.eps
    sizes = [0.0, subnormal, 3 * subnormal, info.tiny, 10 * info.tiny, info.tiny**0.5, 1.01 * info.tiny**0.5, 1e-3, 1.0]
    gradient = torch.tensor([sign * size for size in sizes for sign in (1, -1)], dtype=dtype)
    one, value = Adagrad(0.5), torch.zeros(len(gradient), dtype=dtype)
    one.apply(value, gradient, one.state(value), Update())
    assert torch.isfinite(value).all()
    assert (value.abs() <= 0.5 * (1 + info.eps)).all()
    assert (value[gradient == 0] == 0).all()
    whole = gradient.abs() >= info.tiny**0.5  # where the square does not underflow, the first step is the rate itself
    torch.testing.assert_close(value[whole], -0.5 * gradient[whole].sign())


def test_adagrad_guards_change_no_other_bit():
    value = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    plain, one = value.clone(), Adagrad(0.1)
    state, total = one.state(value), torch.zeros(1000)
    for gradient in gradients(1000, torch.float32):
        one.apply(value, gradient, state, Update())
        total.addcmul_(gradient, gradient)
        plain.addcdiv_(gradient, total.sqrt(), value=-0.1)
        assert torch.equal(value, plain)


def test_an_element_without_gradient_stays():
    one, value = Adagrad(0.1), torch.ones(4)
    state = one.state(value)
    for _ in range(3):
        one.apply(value, torch.tensor([0.0, 1.0, 0.0, -1.0]), state, Update())
    assert value[[0, 2]].tolist() == [1.0, 1.0]
    assert torch.isfinite(value).all()


@pytest.mark.parametrize("one", [SGD(0.1), Adagrad(0.2), Adagrad(0.2, local_rate=0.01)])
def test_rules_travel_as_plain_data(one):
    assert from_plain(msgspec.msgpack.decode(msgspec.msgpack.encode(msgspec.to_builtins(one)))) == one


def test_local_rates():
    assert SGD(0.1).local_rate == 0.1
    assert Adagrad(0.1).local_rate == 0.0
    assert Adagrad(0.1, local_rate=0.02).local_rate == 0.02


@pytest.mark.parametrize("name", sorted(RULES))
@pytest.mark.parametrize("lr", [0.0, -0.1, math.nan, math.inf, "0.1", True])
def test_a_bad_rate_is_named(name, lr):
    with pytest.raises(UsageError) as caught:
        rule(name, lr)
    assert repr(lr) in caught.value.facts
    assert name in caught.value.facts


def test_a_bad_local_rate_is_named():
    with pytest.raises(UsageError, match="local_rate"):
        Adagrad(0.1, local_rate=-1.0)


def test_rules_by_name():
    assert rule("sgd", 0.1) == SGD(0.1)
    assert rule("adagrad", 0.1) == Adagrad(0.1)
    with pytest.raises(UsageError, match="'adam'; there are adagrad, sgd"):
        rule("adam", 0.1)


@pytest.mark.parametrize("data", [{}, {"type": "adam", "lr": 0.1}, {"type": "sgd"}, {"type": "sgd", "lr": -1}, 3])
def test_what_is_no_rule_is_refused(data):
    with pytest.raises(UsageError):
        from_plain(data)
