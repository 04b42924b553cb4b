"""What counts as a difference."""

import torch

from cutset.partition.discovery.rounding import are_close, find_differences

INF, NAN = float("inf"), float("nan")


def test_rounding_is_no_difference_and_more_is_one() -> None:
    x = torch.tensor([1.0, 1e3, 0.0, INF, NAN], dtype=torch.float64)
    assert are_close(x + 1e-10, x)
    assert find_differences(x + 1e-3, x).tolist() == [True, True, True, False, False]
    assert find_differences(x.flip(0), x).tolist() == [True, True, False, True, True]


def test_integers_are_equal_or_not() -> None:
    assert find_differences(torch.tensor([10**12, 1]), torch.tensor([10**12 + 1, 1])).tolist() == [True, False]


def test_shape_and_dtype_count() -> None:
    x = torch.ones(2, dtype=torch.float64)
    assert not are_close(x.float(), x)
    assert not are_close(x[:1], x)
    assert are_close(x.float() + 1e-6, x.float())
