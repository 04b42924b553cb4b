"""rows_normalisation: boxes of every row against the whole operator."""

import pytest
from row_calls import Given, assert_boxes_are_the_whole, build, given, rows_called, rows_of, uncuttable, x

from cutset.partition import rows_normalisation


def normalisation() -> dict[str, Given]:
    statistics = (x(3), x(3).abs())
    still = ("running_mean", "running_var")
    return {
        "layer_norm": given("layer_norm", x(4, 5, 6), [6], x(6), x(6)),
        "layer_norm plain": given("layer_norm", x(4, 5, 6), [5, 6]),
        "batch_norm": given("batch_norm", x(4, 3, 5), x(3), x(3), None, None, True, 0.1, 1e-5, False),
        "batch_norm still": given(
            "batch_norm", x(4, 3, 5, 2), x(3), x(3), *statistics, False, 0.1, 1e-5, False, still=still
        ),
        "softmax": given("aten.softmax.int", x(4, 5, 6), -1),
        "log_softmax": given("aten.log_softmax.int", x(4, 5, 6), 1),
        "_softmax": given("_softmax", x(4, 6), 0, False),
        "_log_softmax": given("_log_softmax", x(4, 6), 1, False),
    }


CALLS = build(normalisation)


@pytest.mark.parametrize("finer", [False, True], ids=["", "finer"])
@pytest.mark.parametrize("name", CALLS)
def test_boxes_together_are_the_whole(name: str, finer: bool) -> None:
    assert_boxes_are_the_whole(CALLS[name], finer=finer)


def test_every_row_has_a_call() -> None:
    assert rows_of(rows_normalisation) == rows_called(CALLS)


def test_every_call_can_be_cut() -> None:
    assert uncuttable(CALLS) == set()
