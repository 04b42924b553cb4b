"""Rows that an island reads or fills: what passes forward and back, and how they travel."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from cutset.partition.operators.routed_rows import (
    combine,
    count_packed_bytes,
    dispatch,
    keep_rows,
    pack_rows,
    unpack_rows,
)

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


def sample(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize(
    ("shape", "chosen_shape", "dim", "chosen_dims", "spread"),
    [
        ((6, 4), (6,), 0, [0], (6, 1)),
        ((6, 4), (6, 2), 0, [0], (6, 1)),
        ((3, 6, 4), (2, 6), 1, [1], (1, 6, 1)),
        ((3, 6, 4), (3, 6), 0, [0, 1], (3, 6, 1)),
        ((3, 6, 4), (3, 2, 6), 0, [0, 2], (3, 6, 1)),
    ],
)
def test_rows_that_are_not_chosen_are_zero(
    shape: tuple[int, ...], chosen_shape: tuple[int, ...], dim: int, chosen_dims: list[int], spread: tuple[int, ...]
) -> None:
    x, chosen = sample(*shape), torch.rand(chosen_shape) > 0.6
    others = [d for d in range(len(chosen_shape)) if d not in chosen_dims]
    rows = (chosen.sum(others) > 0 if others else chosen).reshape(spread)
    assert torch.equal(keep_rows(x, chosen, dim, chosen_dims), torch.where(rows, x, 0.0))
    assert torch.equal(keep_rows(x, chosen.long() * 3, dim, chosen_dims), torch.where(rows, x, 0.0))


def test_what_is_not_a_number_is_not_spread() -> None:
    x = torch.full((4, 3), float("nan"))
    kept = keep_rows(x, torch.tensor([True, False, False, True]), 0, [0])
    assert kept.isnan().all(1).tolist() == [True, False, False, True]
    assert not kept[1:3].any()


def test_a_dispatch_masks_forward_and_passes_the_gradient() -> None:
    x, chosen, gradient = sample(5, 3), torch.tensor([True, False, True, False, False]), torch.randn(5, 3).double()
    out = dispatch(x, chosen, 0, [0])
    assert torch.equal(out.detach(), torch.where(chosen[:, None], x, 0.0))
    out.backward(gradient)
    assert x.grad is not None
    assert torch.equal(x.grad, gradient)


def test_a_combine_passes_forward_and_masks_the_gradient() -> None:
    x, chosen, gradient = sample(5, 3), torch.tensor([True, False, True, False, False]), torch.randn(5, 3).double()
    out = combine(x, chosen, 0, [0])
    assert torch.equal(out.detach(), x.detach())
    out.backward(gradient)
    assert x.grad is not None
    assert torch.equal(x.grad, torch.where(chosen[:, None], gradient, 0.0))


def bits(tensor: Tensor) -> Tensor:
    return tensor.contiguous().flatten().view(torch.uint8)


@given(
    st.sampled_from(DTYPES),
    st.lists(st.integers(1, 5), min_size=0, max_size=2),
    st.integers(1, 9),
    st.integers(0, 2**16),
)
def test_what_travels_comes_back_with_all_bits(dtype: torch.dtype, outer: list[int], width: int, seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    shape = (*outer, width)
    tensor = torch.randn(shape, generator=draw).to(dtype)
    tensor[torch.rand(outer, generator=draw) > 0.4] = 0
    tensor[torch.rand(outer, generator=draw) > 0.8] = -0.0
    tensor[torch.rand(outer, generator=draw) > 0.9] = float("nan")
    mask, rows = pack_rows(tensor)
    assert len(rows) == int((tensor.reshape(-1, width).view(torch.uint8) != 0).any(1).sum())
    back = unpack_rows((mask, rows), shape)
    assert (back.dtype, back.shape) == (dtype, tensor.shape)
    assert torch.equal(bits(back), bits(tensor))


def test_a_part_of_a_larger_tensor_travels_too() -> None:
    tensor = torch.randn(6, 8).t()[1:5]
    assert torch.equal(unpack_rows(pack_rows(tensor), (4, 6)), tensor)


def test_its_bytes_are_those_that_are_counted() -> None:
    tensor = torch.randn(37, 16)
    tensor[torch.arange(37) % 4 > 0] = 0
    mask, rows = pack_rows(tensor)
    assert mask.nbytes + rows.nbytes == count_packed_bytes(tensor.numel(), 16, 4, 10 / 37)


def test_what_is_not_of_that_shape_is_refused() -> None:
    mask, rows = pack_rows(torch.ones(5, 3))
    for packed, shape in [
        ((mask, rows), (5, 4)),
        ((mask, rows), (9, 3)),
        ((mask, rows), (4, 3)),  # a bit beyond the rows
        ((mask, rows[:4]), (5, 3)),
        ((mask.float(), rows), (5, 3)),
    ]:
        with pytest.raises(ValueError, match="for"):
            unpack_rows(packed, shape)
