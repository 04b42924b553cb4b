"""rows_attention: boxes of every row against the whole operator."""

import pytest
import torch
from row_calls import Given, assert_boxes_are_the_whole, b, build, given, rows_called, rows_of, uncuttable, x

from cutset.partition import rows_attention


def attention() -> dict[str, Given]:
    mask, causal = b(3, 1, 4, 5) | (torch.arange(5) == 0), {"is_causal": True}
    q, k, v = x(3, 2, 4, 6), x(3, 2, 5, 6), x(3, 2, 5, 7)
    return {
        "attention": given("scaled_dot_product_attention", q, k, v),
        "attention masked": given("scaled_dot_product_attention", q, k, v, mask, scale=0.3),
        "attention added": given("scaled_dot_product_attention", q, k, v, x(4, 5)),
        "attention causal": given("scaled_dot_product_attention", q, x(3, 2, 4, 6), x(3, 2, 4, 7), **causal),
        "attention 3-d": given("scaled_dot_product_attention", x(3, 4, 6), x(3, 5, 6), x(3, 5, 6)),
        "attention one head": given("scaled_dot_product_attention", q, x(3, 1, 5, 6), x(3, 1, 5, 7)),
    }


CALLS = build(attention)


@pytest.mark.parametrize("finer", [False, True], ids=["", "finer"])
@pytest.mark.parametrize("name", CALLS)
def test_boxes_together_are_the_whole(name: str, finer: bool) -> None:
    assert_boxes_are_the_whole(CALLS[name], finer=finer)


def test_every_row_has_a_call() -> None:
    assert rows_of(rows_attention) == rows_called(CALLS)


def test_every_call_can_be_cut() -> None:
    assert uncuttable(CALLS) == set()
