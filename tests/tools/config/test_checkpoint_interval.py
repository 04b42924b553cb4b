"""What `--checkpoint-every` accepts: a number of steps, or a time with its unit."""

from typing import Any

import pytest

from cutset.errors import UsageError
from cutset.ps.methods.registry import parse_method
from cutset.ps.methods.sync import Sync
from cutset.tools.config.checkpoint_interval import CheckpointInterval, parse_interval


@pytest.mark.parametrize(
    ("text", "interval"),
    [
        (0, CheckpointInterval()),
        ("0", CheckpointInterval()),
        (50, CheckpointInterval(50)),
        ("50", CheckpointInterval(50)),
        ("30s", CheckpointInterval(1, 30.0)),
        ("0.5 s", CheckpointInterval(1, 0.5)),
        ("5min", CheckpointInterval(1, 300.0)),
        ("1.5h", CheckpointInterval(1, 5400.0)),
    ],
)
def test_a_number_is_of_steps_and_a_time_has_a_unit(text: int | str, interval: CheckpointInterval) -> None:
    assert parse_interval(text, Sync()) == interval


@pytest.mark.parametrize(
    "text", ["0s", "0.0min", "-1s", "5x", "5m", "5 Min", "s", "", "-1", -1, "1.5", 1.5, "1e3s", "nans", True, "9" * 16]
)
def test_what_is_neither_is_refused(text: Any) -> None:
    with pytest.raises(UsageError, match=f"E293: --checkpoint-every {text}; ") as caught:
        parse_interval(text, Sync())
    assert caught.value.fix


@pytest.mark.parametrize("text", [4, "4s"])
def test_methods_that_push_nothing_write_no_checkpoints(text: int | str) -> None:
    with pytest.raises(UsageError, match="E288"):
        parse_interval(text, parse_method("allreduce"))


def test_steps_between_two_pushes_are_refused_with_the_next_number_that_fits() -> None:
    with pytest.raises(UsageError, match=r"E281: .*\n  fix: .* --checkpoint-every 8$"):
        parse_interval(5, parse_method("downpour:push=4"))


def test_checkpoints_by_time_fall_on_pushes() -> None:
    assert parse_interval("2min", parse_method("downpour:push=4")) == CheckpointInterval(4, 120.0)
