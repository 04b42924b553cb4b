"""The program that `cutset bench start` compares with makes a step as torch does."""

import math

from cutset.tools.bench.training.plain_first_step import make_first_step


def test_the_first_loss_of_ten_classes_is_that_of_a_guess() -> None:
    assert abs(make_first_step("cutset.models:digits") - math.log(10)) < 0.5
