"""rows_reduction: boxes of every row against the whole operator."""

import pytest
import torch
from row_calls import (
    Given,
    assert_boxes_are_the_whole,
    assert_stays_whole,
    b,
    build,
    given,
    n,
    rows_called,
    rows_of,
    uncuttable,
    x,
)

from cutset.partition import rows_reduction


def sums() -> dict[str, Given]:
    score, soft, weight = x(6, 5), x(6, 5).softmax(1), torch.rand(5, dtype=torch.float64)
    labels, image = n(5, 6), n(5, 2, 3, 4)
    entropy = {
        "entropy": (score, labels),
        "entropy weighted": (score, labels, weight),
        "entropy ignored": (score, labels, weight, 1, 2),
        "entropy summed": (score, labels, None, 2),
        "entropy none": (score, labels, weight, 0),
        "entropy smoothed": (score, labels, weight, 1, 3, 0.2),
        "entropy smoothed plain": (score, labels, None, 1, -100, 0.1),
        "entropy soft": (score, soft, weight),
        "entropy soft smoothed": (score, soft, None, 1, -100, 0.2),
        "entropy spatial": (x(2, 5, 3, 4), image, weight, 1, 1),
        "entropy soft spatial": (x(2, 5, 3, 4), x(2, 5, 3, 4).softmax(1)),
    }
    losses = ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy_with_logits")
    target, reduce = torch.rand(4, 6, dtype=torch.float64), {"mean": 1, "sum": 2, "none": 0}
    return {
        "mean": given("mean", x(4, 6)),
        "mean dims": given("aten.mean.dim", x(4, 5, 6), [0, -1]),
        "mean keep": given("aten.mean.dim", x(4, 5, 6), [1], True),
        "mean rounded": given("aten.mean.dim", x(4, 5).float(), [0], dtype=torch.float64),
        "sum": given("sum", x(4, 6)),
        "sum dims": given("aten.sum.dim_IntList", x(4, 5, 6), [1, 2]),
        "sum keep": given("aten.sum.dim_IntList", x(4, 5, 6), [-1], True),
        "sum counts": given("sum", b(4, 6)),
        "sum of none": given("aten.sum.dim_IntList", x(4, 6), []),
        **{name: given("cross_entropy_loss", *args, still=("weight",)) for name, args in entropy.items()},
        **{
            f"{loss} {how}": given(loss, x(4, 6), target, reduction=code)
            for loss in losses
            for how, code in reduce.items()
        },
    }


CALLS = build(sums)


@pytest.mark.parametrize("finer", [False, True], ids=["", "finer"])
@pytest.mark.parametrize("name", CALLS)
def test_boxes_together_are_the_whole(name: str, finer: bool) -> None:
    assert_boxes_are_the_whole(CALLS[name], finer=finer)


def test_every_row_has_a_call() -> None:
    assert rows_of(rows_reduction) == rows_called(CALLS)


def test_every_call_can_be_cut() -> None:
    assert uncuttable(CALLS) == set()


@pytest.mark.parametrize(
    "case",
    [
        given("mse_loss", torch.zeros(4, 6), torch.zeros(6)),
        given("cross_entropy_loss", torch.zeros(5), torch.tensor(1)),
    ],
    ids=lambda case: case.target,
)
def test_a_call_that_no_row_describes_stays_whole(case: Given) -> None:
    assert_stays_whole(case)
