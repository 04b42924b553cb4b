"""What parts tell, joined, is what the whole would tell; parts that tell nothing change nothing."""

import itertools
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from cutset.partition.operators.sharding import partial_reductions as summary

Cuts = st.sets(st.integers(1, 11), max_size=4)


def values(cuts: set[int], seed: int = 0) -> tuple[Tensor, list[tuple[int, int]]]:
    """Rows of 12 numbers, and where they are cut."""
    edges = [0, *sorted(cuts), 12]
    x = torch.randn(3, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return x, list(itertools.pairwise(edges))


def told(
    x: Tensor, parts: list[tuple[int, int]], part: Callable[[Tensor, list[int]], Tensor], width: int, *, silent: int = 1
) -> Tensor:
    """What all parts tell, and so many that tell nothing."""
    return torch.cat([*(part(x[:, a:b], [1]) for a, b in parts), x.new_zeros(silent, width, len(x))])


@given(cuts=Cuts, seed=st.integers(0, 9))
def test_moments(cuts: set[int], seed: int) -> None:
    x, parts = values(cuts, seed)
    count, mean, squares = summary.combine_moments(told(x, parts, summary.compute_moments, summary.MOMENTS))
    assert count.tolist() == [12] * 3
    torch.testing.assert_close(mean, x.mean(1))
    torch.testing.assert_close(squares / 11, x.var(1))


def test_moments_are_exact_far_from_zero() -> None:
    x, parts = values({3, 7})
    count, _, squares = summary.combine_moments(told(1e8 + x, parts, summary.compute_moments, summary.MOMENTS))
    torch.testing.assert_close(squares / count, (1e8 + x).var(1, correction=0), rtol=1e-6, atol=0)


@given(cuts=Cuts, seed=st.integers(0, 9), scale=st.sampled_from([1.0, 1e3, 1e-3]))
def test_exponentials(cuts: set[int], seed: int, scale: float) -> None:
    x, parts = values(cuts, seed)
    torch.testing.assert_close(
        summary.combine_exponentials(told(scale * x - 500, parts, summary.compute_exponentials, summary.EXPONENTIALS)),
        (scale * x - 500).logsumexp(1),
    )


@pytest.mark.parametrize("masked", [[0], [0, 1, 2, 3], list(range(12))])
def test_exponentials_of_parts_that_are_all_masked(masked: list[int]) -> None:
    x, parts = values({4, 8})
    x[:, masked] = -torch.inf
    torch.testing.assert_close(
        summary.combine_exponentials(told(x, parts, summary.compute_exponentials, summary.EXPONENTIALS)), x.logsumexp(1)
    )


@given(cuts=Cuts, seed=st.integers(0, 9))
def test_extremes_share_their_gradient_among_equals(cuts: set[int], seed: int) -> None:
    x, parts = values(cuts, seed)
    x = x.round().requires_grad_()
    found = summary.combine_extremes(told(x, parts, summary.compute_extremes, summary.EXTREMES))
    assert torch.equal(found, x.amax(1))
    (ours,) = torch.autograd.grad(found.sum(), x)
    (plain,) = torch.autograd.grad(x.amax(1).sum(), x)
    torch.testing.assert_close(ours, plain)


@given(cuts=Cuts, seed=st.integers(0, 9))
def test_places_are_the_first_of_equals(cuts: set[int], seed: int) -> None:
    x, parts = values(cuts, seed)
    x = x.round().requires_grad_()
    pieces = [summary.compute_first_extremes(x[:, a:b], 1, torch.arange(a, b)) for a, b in parts]
    value, index = summary.combine_first_extremes(torch.cat([*pieces, x.new_zeros(1, summary.FIRST_EXTREMES, 3)]))
    plain = x.max(1)
    assert torch.equal(index, plain.indices)
    (ours,) = torch.autograd.grad(value.sum(), x)
    assert torch.equal(ours, torch.autograd.grad(plain.values.sum(), x)[0])


def test_a_number_that_is_none_is_told_of() -> None:
    x, parts = values({5})
    x[0, 7] = torch.nan
    for part, join, width in (
        (summary.compute_extremes, summary.combine_extremes, summary.EXTREMES),
        (summary.compute_exponentials, summary.combine_exponentials, summary.EXPONENTIALS),
        (summary.compute_moments, lambda p: summary.combine_moments(p)[1], summary.MOMENTS),
    ):
        assert join(told(x, parts, part, width)).isnan().tolist() == [True, False, False]
