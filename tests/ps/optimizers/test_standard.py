"""Optimizers against torch.optim, step by step, and against the published formula."""

import math
from functools import partial

import pytest
import torch
from torch import optim

from cutset.errors import UsageError
from cutset.ps.optimizers.fused_kernels import BLOCK
from cutset.ps.optimizers.optimizer import Update
from cutset.ps.optimizers.standard import SGD, Adagrad, Adam, AdamW, Add, RMSprop, TorchAdagrad

DTYPES = [torch.float32, torch.float64]
FUSED = ("_fused_sgd_", "_fused_adagrad_", "_fused_adam_", "_fused_adamw_")

TWINS = [
    (SGD(0.3), partial(optim.SGD, lr=0.3)),
    (SGD(0.3, weight_decay=0.01), partial(optim.SGD, lr=0.3, weight_decay=0.01)),
    (SGD(0.3, momentum=0.9), partial(optim.SGD, lr=0.3, momentum=0.9)),
    (SGD(0.7, momentum=0.9, nesterov=True), partial(optim.SGD, lr=0.7, momentum=0.9, nesterov=True)),
    (
        SGD(0.1, momentum=0.5, nesterov=True, weight_decay=0.1),
        partial(optim.SGD, lr=0.1, momentum=0.5, nesterov=True, weight_decay=0.1),
    ),
    (TorchAdagrad(0.3), partial(optim.Adagrad, lr=0.3)),
    (
        TorchAdagrad(0.3, eps=1e-3, initial=0.1, lr_decay=0.2, weight_decay=0.01),
        partial(optim.Adagrad, lr=0.3, eps=1e-3, initial_accumulator_value=0.1, lr_decay=0.2, weight_decay=0.01),
    ),
    (RMSprop(0.01), partial(optim.RMSprop, lr=0.01)),
    (
        RMSprop(0.01, alpha=0.9, eps=1e-6, momentum=0.9, centered=True, weight_decay=0.1),
        partial(optim.RMSprop, lr=0.01, alpha=0.9, eps=1e-6, momentum=0.9, centered=True, weight_decay=0.1),
    ),
    (RMSprop(0.01, centered=True), partial(optim.RMSprop, lr=0.01, centered=True)),
    (Adam(0.01), partial(optim.Adam, lr=0.01)),
    (
        Adam(0.01, beta1=0.5, beta2=0.9, eps=1e-3, weight_decay=0.1),
        partial(optim.Adam, lr=0.01, betas=(0.5, 0.9), eps=1e-3, weight_decay=0.1),
    ),
    (AdamW(0.01), partial(optim.AdamW, lr=0.01)),
    (
        AdamW(0.01, beta1=0.5, beta2=0.9, eps=1e-3, weight_decay=0.3),
        partial(optim.AdamW, lr=0.01, betas=(0.5, 0.9), eps=1e-3, weight_decay=0.3),
    ),
]


def gradients(size, dtype, steps=20, decades=6):
    generator = torch.Generator().manual_seed(1)
    scale = 10.0 ** torch.empty(size, dtype=dtype).uniform_(-decades, decades, generator=generator)
    return [torch.randn(size, dtype=dtype, generator=generator) * scale for _ in range(steps)]


def beginning(size, dtype):
    return torch.randn(size, dtype=dtype, generator=torch.Generator().manual_seed(0))


def trajectories(one, optimiser_of, pushes, start):
    """The values after each push, by the optimizer and by the optimiser."""
    value, parameter = start.clone(), start.clone().requires_grad_()
    state, optimiser = one.init_state(value), optimiser_of([parameter])
    for number, gradient in enumerate(pushes, start=1):
        kept = gradient.clone()
        one.apply(value, gradient, state, Update(number))
        assert torch.equal(gradient, kept)
        parameter.grad = gradient.clone()
        optimiser.step()
        yield value, parameter.detach()


def close(ours, theirs, ulps):
    """Both within so many units of the last place of the larger values."""
    eps = ulps * torch.finfo(ours.dtype).eps
    torch.testing.assert_close(ours, theirs, rtol=eps, atol=eps)


@pytest.mark.first_cases(5)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("fused", [True, False], ids=["fused", "blocks"])
@pytest.mark.parametrize(("one", "optimiser_of"), TWINS, ids=[repr(one) for one, _ in TWINS])
def test_an_optimizer_equals_torch(one, optimiser_of, dtype, fused, monkeypatch):
    for name in () if fused else FUSED:
        monkeypatch.delattr(torch, name)
    pushes = gradients(BLOCK + 7, dtype, decades=1.5)
    for ours, theirs in trajectories(one, optimiser_of, pushes, beginning(BLOCK + 7, dtype)):
        close(ours, theirs, 200)


@pytest.mark.parametrize("dtype", DTYPES)
def test_plain_sgd_equals_torch_to_the_bit(dtype):
    pushes = gradients(100, dtype)
    for ours, theirs in trajectories(SGD(0.3), lambda p: optim.SGD(p, lr=0.3), pushes, beginning(100, dtype)):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 100, BLOCK + 7])
def test_adagrad_equals_torch_with_the_smallest_epsilon(dtype, size):
    eps = torch.finfo(dtype).tiny
    pushes = gradients(size, dtype, steps=5)
    start = beginning(size, dtype)
    for ours, theirs in trajectories(Adagrad(0.3), lambda p: optim.Adagrad(p, lr=0.3, eps=eps), pushes, start):
        close(ours, theirs, 4)


def test_adagrad_is_the_formula():
    pushes = gradients(50, torch.float64)
    value, expected = torch.zeros(50, dtype=torch.float64), [0.0] * 50
    one = Adagrad(0.05)
    state = one.init_state(value)
    for step, gradient in enumerate(pushes):
        one.apply(value, gradient, state, Update())
        for i in range(50):
            eta = 0.05 / math.sqrt(sum(float(g[i]) ** 2 for g in pushes[: step + 1]))
            expected[i] -= eta * float(gradient[i])
        torch.testing.assert_close(value, torch.tensor(expected, dtype=torch.float64), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("fused", [True, False], ids=["fused", "blocks"])
@pytest.mark.parametrize("dtype", [*DTYPES, torch.bfloat16])
def test_adagrad_never_steps_further_than_its_rate(dtype, fused, monkeypatch):
    for name in () if fused else FUSED:
        monkeypatch.delattr(torch, name)
    info = torch.finfo(dtype)
    subnormal = info.smallest_normal * info.eps
    squared = [info.tiny**0.5 * size for size in (1e-3, 0.1, 0.9, 1.0, 1.1, 10.0, 1e3)]
    sizes = [0.0, subnormal, 3 * subnormal, info.tiny, 10 * info.tiny, *squared, 1e-15, 1e-3, 1.0]
    gradient = torch.tensor([sign * size for size in sizes for sign in (1, -1)], dtype=dtype)
    one, value = Adagrad(0.5), torch.zeros(len(gradient), dtype=dtype)
    one.apply(value, gradient, one.init_state(value), Update())
    assert torch.isfinite(value).all()
    assert (value.abs() <= 0.5 * (1 + info.eps)).all()
    assert (value[gradient == 0] == 0).all()
    whole = gradient.abs() >= 1e-15  # where the square is not near to underflow, the first step is the rate itself
    torch.testing.assert_close(value[whole], -0.5 * gradient[whole].sign())


@pytest.mark.parametrize(
    ("dtype", "least", "ulps"),
    [(torch.float32, 1e-15, 2), (torch.float64, 1e-145, 2), (torch.float32, 1e-9, 0), (torch.float64, 1e-100, 0)],
)
def test_the_initial_sums_of_adagrad_are_less_than_the_last_bit(dtype, least, ulps, monkeypatch):
    for name in FUSED:  # which order their operations otherwise
        monkeypatch.delattr(torch, name)
    value = torch.zeros(1000, dtype=dtype)
    one = Adagrad(0.1)
    state, total = one.init_state(value), torch.zeros(1000, dtype=dtype)
    for gradient in gradients(1000, dtype, decades=3):
        gradient = gradient.sign() * gradient.abs().clamp(min=1) * least
        one.apply(value, gradient, state, Update())
        total.addcmul_(gradient, gradient)
        theirs = torch.zeros(1000, dtype=dtype).addcdiv_(gradient, total.sqrt(), value=-0.1)
        torch.testing.assert_close(value, theirs, rtol=ulps * torch.finfo(dtype).eps, atol=0.0)
        value.zero_()


@pytest.mark.parametrize("one", [Adagrad(0.1), TorchAdagrad(0.1), RMSprop(0.1), Adam(0.1), SGD(0.1, momentum=0.9)])
def test_an_element_without_gradient_does_not_change(one):
    value = torch.ones(4)
    state = one.init_state(value)
    for number in range(1, 4):
        one.apply(value, torch.tensor([0.0, 1.0, 0.0, -1.0]), state, Update(number))
    assert value[[0, 2]].tolist() == [1.0, 1.0]
    assert torch.isfinite(value).all()


def test_add_adds():
    value = torch.tensor([1.0, 2.0])
    Add().apply(value, torch.tensor([10.0, 20.0]), {}, Update())
    assert value.tolist() == [11.0, 22.0]
    Add(0.5).apply(value, torch.tensor([2.0, 2.0]), {}, Update())
    assert value.tolist() == [12.0, 23.0]


def test_local_rates():
    assert SGD(0.1).local_rate == 0.1
    assert SGD(0.1, momentum=0.9).local_rate == 0.0
    assert SGD(0.1, weight_decay=0.1).local_rate == 0.0
    assert Adagrad(0.1).local_rate == 0.0
    assert Adagrad(0.1, local_rate=0.02).local_rate == 0.02


@pytest.mark.parametrize(
    ("kind", "field", "value"),
    [
        (Adagrad, "local_rate", -1.0),
        (SGD, "momentum", 1.0),
        (SGD, "momentum", -0.1),
        (SGD, "weight_decay", math.inf),
        (TorchAdagrad, "eps", 0.0),
        (TorchAdagrad, "initial", -1.0),
        (TorchAdagrad, "lr_decay", math.nan),
        (RMSprop, "alpha", 1.5),
        (RMSprop, "momentum", 1.0),
        (RMSprop, "eps", math.inf),
        (Adam, "beta1", 1.0),
        (Adam, "beta2", math.nan),
        (Adam, "eps", True),
        (AdamW, "weight_decay", "0.1"),
    ],
)
def test_a_bad_option_is_named(kind, field, value):
    with pytest.raises(UsageError) as caught:
        kind(0.1, **{field: value})
    assert field in caught.value.facts
    assert repr(value) in caught.value.facts


def test_nesterov_without_momentum_is_refused():
    with pytest.raises(UsageError, match="nesterov"):
        SGD(0.1, nesterov=True)
