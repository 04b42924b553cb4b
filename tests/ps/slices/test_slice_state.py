"""A slice takes pushes whole and by rows, and stops at the first that makes anything non-finite."""

import math
from functools import partial

import pytest
import torch
from torch import optim

from cutset.errors import Diverged
from cutset.ps.optimizers.optimizer import Update
from cutset.ps.optimizers.registry import OPTIMIZERS, parse_optimizer
from cutset.ps.optimizers.standard import SGD, Adagrad, Adam, Add, RMSprop, TorchAdagrad
from cutset.ps.slices.slice_state import PART, SliceState
from cutset.ps.slices.slicing import slice_parameters

ROWS, WIDTH = 12, 5
SIZE = ROWS * WIDTH


def held(one, value):
    (piece,) = slice_parameters([value.numel()], 1)
    return SliceState(piece, value, one.init_state(value))


def normal(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def push(slice_state, one, gradient, *, tau=0):
    slice_state.apply(one, gradient, Update(slice_state.version + 1, tau), worker="worker-1.0", step=7)


def push_rows(slice_state, one, rows, gradients):
    slice_state.apply_rows(one, rows, gradients, Update(slice_state.version + 1), worker="worker-1.0", step=7)


def assert_names(caught, what, version):
    facts = caught.value.facts
    assert what in facts
    assert "shard-0" in facts
    assert "worker-1.0 at step 7" in facts
    assert f"version {version} " in facts


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", [*sorted(OPTIMIZERS), "adagrad/tau", "sgd:momentum=0.9"])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_bad_gradient_is_named_and_changes_nothing(name, bad, dtype):
    one = parse_optimizer(name, 0.1)
    slice_state = held(one, normal(100, dtype=dtype))
    push(slice_state, one, normal(100, dtype=dtype))
    gradient = normal(100, dtype=dtype)
    gradient[41] = bad
    kept = [tensor.clone() for tensor in (slice_state.value, *slice_state.state.values())]
    with pytest.raises(Diverged) as caught:
        push(slice_state, one, gradient)
    assert_names(caught, "the gradient", 1)
    assert all(torch.equal(a, b) for a, b in zip(kept, (slice_state.value, *slice_state.state.values()), strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("one", [SGD(1.0), SGD(1.0, momentum=0.5), SGD(1.0, weight_decay=0.1)])
def test_parameters_that_overflow_are_named(one, dtype):
    most = torch.finfo(dtype).max
    slice_state = held(one, torch.ones(100, dtype=dtype))
    push(slice_state, one, torch.full((100,), -most * 0.7, dtype=dtype))
    with pytest.raises(Diverged) as caught:
        push(slice_state, one, torch.full((100,), -most * 0.7, dtype=dtype))
    assert_names(caught, "the parameters", 2)


SQUARED = [
    (Adagrad(0.1), "the optimizer's sum"),
    (TorchAdagrad(0.1), "the optimizer's sum"),
    (Adam(0.1, beta2=0.0), "the optimizer's square"),
    (RMSprop(0.1, alpha=0.0), "the optimizer's square"),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("one", "what"), SQUARED)
def test_a_sum_of_squares_that_overflows_is_named_though_the_parameters_are_finite(one, what, dtype):
    slice_state = held(one, normal(100, dtype=dtype))
    for seed in range(3):
        push(slice_state, one, normal(100, dtype=dtype, seed=seed))
    gradient = normal(100, dtype=dtype)
    gradient[17] = 1.1 * torch.finfo(dtype).max ** 0.5
    with pytest.raises(Diverged) as caught:
        push(slice_state, one, gradient)
    assert torch.isfinite(slice_state.value).all()
    assert_names(caught, what, 4)


@pytest.mark.parametrize("one", [one for one, _ in SQUARED[:2]])
def test_a_sum_that_overflows_gradually_is_detected_at_once(one):
    slice_state, most = held(one, torch.zeros(10)), torch.finfo(torch.float32).max
    gradient = torch.full((10,), math.sqrt(0.3 * most))
    for _ in range(3):
        push(slice_state, one, gradient)
        assert torch.isfinite(slice_state.state["sum"]).all()
    with pytest.raises(Diverged) as caught:
        push(slice_state, one, gradient)
    assert_names(caught, "the optimizer's sum", 4)


def test_a_full_sum_stays_finite_whatever_small_gradients_are_added():
    one = Adagrad(0.1)
    slice_state = held(one, torch.zeros(10))
    slice_state.state["sum"].fill_(torch.finfo(torch.float32).max)
    for _ in range(5):
        push(slice_state, one, torch.full((10,), 2.0**48))  # the largest that are not checked: 2^50 together
    assert torch.isfinite(slice_state.state["sum"]).all()


@pytest.mark.parametrize("one", [SGD(1e34), Add(1e34)])
def test_parameters_that_overflow_by_small_gradients_are_named_at_once(one):
    slice_state, gradient = held(one, torch.zeros(PART + 10)), torch.zeros(PART + 10)
    gradient[-1] = 1e4
    for _ in range(3):
        push(slice_state, one, gradient)
    assert torch.isfinite(slice_state.value).all()
    with pytest.raises(Diverged) as caught:
        push(slice_state, one, gradient)
    assert_names(caught, "the parameters", 4)


@pytest.mark.parametrize("one", [SGD(0.1), Add(0.3), Adagrad(0.02)])
def test_values_change_by_no_more_than_the_optimizer_says(one):
    slice_state = held(one, normal(1000, dtype=torch.float64))
    for seed in range(20):
        gradient = normal(1000, seed=seed, dtype=torch.float64) * 10.0 ** (seed - 10)
        before = slice_state.value.clone()
        push(slice_state, one, gradient)
        change = torch.linalg.vector_norm(slice_state.value - before)
        most = one.max_change(float(torch.linalg.vector_norm(gradient)), 1000, Update())
        assert most is not None
        assert change <= most * 1.001
        assert torch.linalg.vector_norm(slice_state.value) <= slice_state._norm * 1.001


def test_values_that_others_write_too_are_looked_at_after_every_push():
    one = SGD(0.1)
    slice_state = held(one, normal(100))
    push(slice_state, one, normal(100))
    slice_state.share(slice_state.value.clone())
    push(slice_state, one, normal(100))
    slice_state.value[5] = math.inf
    with pytest.raises(Diverged, match="the parameters"):
        push(slice_state, one, normal(100))


def test_weight_decay_of_huge_parameters_is_checked():
    one = TorchAdagrad(0.1, weight_decay=0.9)
    slice_state = held(one, torch.full((10,), 1e19))
    push(slice_state, one, torch.ones(10))
    slice_state.value.fill_(2e19)
    slice_state._norm = math.inf  # as a push would have left it that made them so large
    with pytest.raises(Diverged, match="the optimizer's sum"):
        push(slice_state, one, torch.ones(10))


@pytest.mark.parametrize("text", ["sgd", "adagrad", "dc-asgd-a", "adam:weight_decay=0.1"])
def test_a_push_applied_in_parts_equals_the_whole(text):
    one, size = parse_optimizer(text, 0.1), 2 * PART + 100
    slice_state, whole = held(one, normal(size)), normal(size)
    state = one.init_state(whole)
    for number in range(1, 3):
        one.on_fetch(whole, state, 0)
        one.on_fetch(slice_state.value, slice_state.state, 0)
        gradient = normal(size, seed=number)
        push(slice_state, one, gradient)
        one.apply(whole, gradient, state, Update(number))
    assert torch.equal(slice_state.value, whole)
    assert all(torch.equal(slice_state.state[name], state[name]) for name in state)


@pytest.mark.parametrize("one", [SGD(0.1), Adagrad(0.1)])
@pytest.mark.parametrize("place", [0, PART, 2 * PART + 99])
@pytest.mark.parametrize("bad", [math.nan, 1.1 * torch.finfo(torch.float32).max ** 0.5])
def test_all_parts_are_checked(one, place, bad):
    slice_state = held(one, normal(2 * PART + 100))
    push(slice_state, one, normal(2 * PART + 100))
    gradient = normal(2 * PART + 100)
    gradient[place] = bad
    if math.isfinite(bad) and not slice_state.state:
        push(slice_state, one, gradient)
        return
    with pytest.raises(Diverged) as caught:
        push(slice_state, one, gradient)
    assert_names(caught, *(("the optimizer's sum", 2) if math.isfinite(bad) else ("the gradient", 1)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_large_finite_values_are_accepted(dtype):
    one = SGD(0.1)
    slice_state = held(one, torch.zeros(1000, dtype=dtype))
    gradient = torch.full((1000,), torch.finfo(dtype).max / 2, dtype=dtype)  # whose sum overflows
    push(slice_state, one, gradient)
    assert torch.isfinite(slice_state.value).all()


def sparse_twin(optimiser_of, start, pushes):
    """The table after each sparse push, by an optimiser of torch."""
    parameter = start.clone().requires_grad_()
    optimiser = optimiser_of([parameter])
    for rows, gradients in pushes:
        with torch.sparse.check_sparse_tensor_invariants():  # asked for, as leaving it open is warned about
            parameter.grad = torch.sparse_coo_tensor(rows[None], gradients, start.shape)
            optimiser.step()
        yield parameter.detach()


def sparse_pushes(dtype, count=12):
    generator = torch.Generator().manual_seed(3)
    for number in range(count):
        rows = torch.randperm(ROWS, generator=generator)[: 1 + number % 4].sort().values
        yield rows, torch.randn(len(rows), WIDTH, dtype=dtype, generator=generator)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("one", "optimiser_of"),
    [
        (SGD(0.3), partial(optim.SGD, lr=0.3)),
        (TorchAdagrad(0.3), partial(optim.Adagrad, lr=0.3)),
        (TorchAdagrad(0.3, initial=0.1), partial(optim.Adagrad, lr=0.3, initial_accumulator_value=0.1)),
        (TorchAdagrad(0.3, lr_decay=0.1), partial(optim.Adagrad, lr=0.3, lr_decay=0.1)),
        # SparseAdam adds eps before it corrects the root, Adam after; where both are negligible they agree
        (Adam(0.1, eps=1e-30), partial(optim.SparseAdam, lr=0.1, eps=1e-30)),
        (Adam(0.1, beta1=0.5, beta2=0.8, eps=1e-30), partial(optim.SparseAdam, lr=0.1, betas=(0.5, 0.8), eps=1e-30)),
    ],
)
def test_rows_equal_torch_sparse_optimizers(one, optimiser_of, dtype):
    start = normal(ROWS, WIDTH, dtype=dtype)
    slice_state = held(one, start.clone().view(-1))
    pushes = list(sparse_pushes(dtype))
    eps = 50 * torch.finfo(dtype).eps
    for (rows, gradients), table in zip(pushes, sparse_twin(optimiser_of, start, pushes), strict=True):
        push_rows(slice_state, one, rows, gradients)
        torch.testing.assert_close(slice_state.value.view(ROWS, WIDTH), table, rtol=eps, atol=eps)
    assert slice_state.version == len(pushes)


@pytest.mark.parametrize("name", [*sorted(OPTIMIZERS), "adagrad/tau", "sgd:momentum=0.9", "rmsprop:centered=true"])
def test_all_rows_equal_a_dense_push_and_no_others_change(name):
    one = parse_optimizer(name, 0.1)
    dense, by_rows = held(one, normal(SIZE)), held(one, normal(SIZE))
    parts = held(one, normal(SIZE))
    some = torch.tensor([0, 3, 4, 11])
    for seed in range(1, 4):
        gradients = normal(ROWS, WIDTH, seed=seed)
        for slice_state in (dense, by_rows, parts):
            one.on_fetch(slice_state.value, slice_state.state, 0)
        push(dense, one, gradients.view(-1))
        push_rows(by_rows, one, torch.arange(ROWS), gradients)
        push_rows(parts, one, some, gradients[some])
    assert torch.equal(dense.value, by_rows.value)
    assert dense.state.keys() == by_rows.state.keys()
    assert all(torch.equal(dense.state[key], by_rows.state[key]) for key in dense.state)
    others = [row for row in range(ROWS) if row not in some]
    table, start = parts.value.view(ROWS, WIDTH), normal(SIZE).view(ROWS, WIDTH)
    assert torch.equal(table[some], dense.value.view(ROWS, WIDTH)[some])
    assert torch.equal(table[others], start[others])


def test_a_push_without_rows_is_counted():
    one = Adam(0.1)
    slice_state = held(one, normal(SIZE))
    push_rows(slice_state, one, torch.empty(0, dtype=torch.int64), torch.empty(0, WIDTH))
    assert slice_state.version == 1
    assert torch.equal(slice_state.value, normal(SIZE))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_bad_row_is_named_and_changes_nothing(bad):
    one = Adagrad(0.1)
    slice_state = held(one, normal(SIZE))
    gradients = normal(2, WIDTH)
    gradients[1, 2] = bad
    with pytest.raises(Diverged) as caught:
        push_rows(slice_state, one, torch.tensor([2, 5]), gradients)
    assert_names(caught, "the gradient", 0)
    assert torch.equal(slice_state.value, normal(SIZE))


@pytest.mark.parametrize(
    ("rows", "shape", "words"),
    [
        ([-1, 2], (2, WIDTH), "rows -1 to 2 in a slice of 12"),
        ([2, ROWS], (2, WIDTH), "rows 2 to 12"),
        ([2, 2], (2, WIDTH), "ascend"),
        ([3, 2], (2, WIDTH), "ascend"),
        ([2, 3], (3, WIDTH), "wanted are"),
        ([2, 3], (2 * WIDTH,), "wanted are"),
        ([2, 3], (2, 7), "width 7 in a slice of 60"),
        ([2, 3], (2, 0), "width 0"),
    ],
)
def test_rows_that_do_not_fit_are_refused(rows, shape, words):
    one = SGD(0.1)
    slice_state = held(one, normal(SIZE))
    with pytest.raises(ValueError, match=words):
        push_rows(slice_state, one, torch.tensor(rows), torch.ones(shape))
    assert slice_state.version == 0
    with pytest.raises(ValueError, match="wanted are"):
        push_rows(slice_state, one, torch.tensor([1], dtype=torch.int32), torch.ones(1, WIDTH))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_lent_values_are_copied_before_a_push_only_while_they_are_read(dtype):
    one = SGD(1.0)
    slice_state = held(one, torch.zeros(8, dtype=dtype))
    at = slice_state.value.data_ptr()
    first, second = slice_state.lend_values(), slice_state.lend_values()[2:4]
    assert first.data_ptr() == at
    push(slice_state, one, torch.ones(8, dtype=dtype))
    assert slice_state.value.data_ptr() != at
    assert not first.any()
    del first
    third, at = slice_state.lend_values(), slice_state.value.data_ptr()
    del third
    push(slice_state, one, torch.ones(8, dtype=dtype))
    assert slice_state.value.data_ptr() == at
    assert (slice_state.value == -2).all()
    assert not second.any()


def test_a_push_of_rows_changes_no_lent_values():
    one = SGD(1.0)
    slice_state = held(one, torch.zeros(SIZE))
    shown = slice_state.lend_values()
    push_rows(slice_state, one, torch.tensor([1]), torch.ones(1, WIDTH))
    assert not shown.any()
    assert slice_state.value.view(ROWS, WIDTH)[1].tolist() == [-1.0] * WIDTH


def test_lent_values_are_copied_with_the_given_function():
    copied = []

    def copy(tensor):
        copied.append(tensor.clone())
        return copied[-1]

    one = SGD(1.0)
    (piece,) = slice_parameters([8], 1)
    slice_state = SliceState(piece, torch.zeros(8), {}, copy=copy)
    shown = slice_state.lend_values()
    push(slice_state, one, torch.ones(8))
    assert [slice_state.value is copy for copy in copied] == [True]
    assert not shown.any()
