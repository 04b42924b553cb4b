"""Optimizers as they are asked for, as they travel, and what all of them have in common."""

import math
from itertools import pairwise

import msgspec
import pytest
import torch

from cutset.errors import UsageError
from cutset.ps.optimizers.optimizer import Update
from cutset.ps.optimizers.rates import Scaled
from cutset.ps.optimizers.registry import OPTIMIZERS, from_plain, parse_optimizer
from cutset.ps.optimizers.standard import SGD, Adagrad, Adam

NAMES = [*sorted(OPTIMIZERS), *(f"{name}/tau" for name in sorted(OPTIMIZERS)), "sgd:momentum=0.9,nesterov=true"]
DTYPES = [torch.float32, torch.float64]


def normal(size, seed, dtype=torch.float32):
    return torch.randn(size, dtype=dtype, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("text", NAMES)
def test_optimizers_travel_as_plain_data(text):
    one = parse_optimizer(text, 0.1)
    assert from_plain(msgspec.msgpack.decode(msgspec.msgpack.encode(msgspec.to_builtins(one)))) == one
    assert one.name == text.partition(":")[0]
    assert one.lr == 0.1


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
@pytest.mark.parametrize("lr", [0.0, -0.1, math.nan, math.inf, "0.1", True])
def test_a_bad_rate_is_named(name, lr):
    with pytest.raises(UsageError) as caught:
        parse_optimizer(name, lr)
    assert repr(lr) in caught.value.facts
    assert name in caught.value.facts


def test_optimizers_by_name():
    assert parse_optimizer("sgd", 0.1) == SGD(0.1)
    assert parse_optimizer("adagrad", 0.1) == Adagrad(0.1)
    assert parse_optimizer("adam:beta1=0.8,eps=1e-6", 0.1) == Adam(0.1, beta1=0.8, eps=1e-6)
    assert parse_optimizer("adagrad/tau", 0.1) == Scaled(Adagrad(0.1))
    assert parse_optimizer("sgd/tau:momentum=0.5", 0.1) == Scaled(SGD(0.1, momentum=0.5))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("adamm", "'adamm'; there are adadelay, adagrad,"),
        ("adamm/tau", "'adamm'; there are"),
        ("adagrad/tau/tau", "'adagrad/tau'; there are"),
        ("adam:gamma=1", "no option 'gamma=1'; its options are lr, beta1"),
        ("adam/tau:gamma=1", "no option 'gamma=1'"),
        ("adam:beta1=1.5", "beta1 of optimizer adam is 1.5"),
        ("sgd:momentum=lots", "sgd:momentum=lots"),
    ],
)
def test_an_unknown_optimizer_names_the_known_ones(text, words):
    with pytest.raises(UsageError) as caught:
        parse_optimizer(text, 0.1)
    assert words in caught.value.facts


@pytest.mark.parametrize(
    "data",
    [{}, {"type": "adamm", "lr": 0.1}, {"type": "sgd"}, {"type": "sgd", "lr": -1}, 3, {"type": "scaled", "inner": 3}],
)
def test_data_of_no_optimizer_is_refused(data):
    with pytest.raises(UsageError):
        from_plain(data)


@pytest.mark.parametrize("tau", [0, 1, 2, 7])
@pytest.mark.parametrize("name", ["sgd", "adagrad", "adam", "sgd:momentum=0.9", "adadelay", "dc-asgd-a"])
def test_a_scaled_optimizer_has_a_lower_rate(name, tau):
    plain, _, options = name.partition(":")
    scaled, slower = parse_optimizer(f"{plain}/tau:{options}", 0.3), parse_optimizer(name, 0.3 / max(1, tau))
    value, other = normal(50, 0), normal(50, 0)
    memory, others = scaled.init_state(value), slower.init_state(other)
    for number in range(1, 5):
        update, gradient = Update(number, tau, replica=1), normal(50, number)
        scaled.on_fetch(value, memory, 1)
        slower.on_fetch(other, others, 1)
        scaled.apply(value, gradient, memory, update)
        slower.apply(other, gradient, others, update)
        assert scaled.rate(update) == slower.rate(update)
    assert torch.equal(value, other)


def test_which_optimizers_compensate_delay():
    delayed = {name for name in NAMES if parse_optimizer(name, 0.1).compensates_delay}
    assert delayed == {"adadelay", "dc-asgd-a", "dc-asgd-c", *(name for name in NAMES if name.endswith("/tau"))}
    assert {name for name in NAMES if parse_optimizer(name, 0.1).needs_every_fetch} == {
        "dc-asgd-a",
        "dc-asgd-a/tau",
        "dc-asgd-c",
        "dc-asgd-c/tau",
    }


def run(one, dtype, bounds):
    """Values and state after some pushes, applied to each part of the values on its own."""
    size = bounds[-1]
    value = normal(size, 0, dtype)
    parts = [value[a:b] for a, b in pairwise(bounds)]
    states = [one.init_state(part) for part in parts]
    for number in range(1, 4):
        gradient = normal(size, number, dtype)
        for part, state, (a, b) in zip(parts, states, pairwise(bounds), strict=True):
            one.on_fetch(part, state, 1 - number % 2)
            one.apply(part, gradient[a:b], state, Update(number, number, replica=number % 2))
    return value, {name: torch.cat([state[name] for state in states]) for name in states[0]}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("text", NAMES)
def test_slices_may_be_applied_apart_to_the_last_bit(text, dtype):
    one = parse_optimizer(text, 0.1)
    whole, memory = run(one, dtype, [0, 1003])
    for bounds in ([0, 1, 2, 17, 500, 1003], [0, 512, 1003], [0, 333, 1003]):
        apart, memories = run(one, dtype, bounds)
        assert torch.equal(whole, apart)
        assert memory.keys() == memories.keys()
        for name in memory:
            assert torch.equal(memory[name], memories[name])


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("text", [*NAMES, "rmsprop:momentum=0.9,centered=true", "adam:weight_decay=0.1"])
def test_a_gradient_that_is_not_finite_shows_in_the_values_at_once(text, bad):
    one, value = parse_optimizer(text, 0.1), normal(20, 0)
    state, gradient = one.init_state(value), normal(20, 1)
    one.on_fetch(value, state, 0)
    gradient[[3, 19]] = bad
    one.apply(value, gradient, state, Update())
    assert torch.isfinite(value).logical_not().nonzero().flatten().tolist() == [3, 19]
