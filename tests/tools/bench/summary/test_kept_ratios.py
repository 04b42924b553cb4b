"""A ratio fell if it is lower than the kept one by more than the rounds of both differ among themselves."""

from pathlib import Path

import pytest

from cutset.errors import BadInput, UsageError
from cutset.tools.bench.peer_comparison import RATE, SECONDS, PeerComparison
from cutset.tools.bench.summary.conditions import Conditions
from cutset.tools.bench.summary.kept_ratios import (
    MIN_FALL,
    KeptBenchmark,
    KeptRatios,
    RatioChange,
    collect_ratios,
    find_changes,
    read_kept,
    tabulate_changes,
    write_kept,
)

STEADY, NOISY = (1.0, 1.001, 0.999, 1.002, 0.998), (1.0, 1.2, 0.8, 1.1, 0.9)


def scale(series: tuple[float, ...], factor: float) -> tuple[float, ...]:
    return tuple(factor * value for value in series)


@pytest.mark.parametrize(
    ("kept", "factor", "fell"),
    [(STEADY, 0.92, False), (STEADY, 0.88, True), (STEADY, 2.0, False), (NOISY, 0.8, False), (NOISY, 0.6, True)],
)
def test_what_fell_by_more_than_the_noise_is_found(kept: tuple[float, ...], factor: float, fell: bool) -> None:
    change = RatioChange("row", kept, scale(kept, factor))
    assert change.fell is fell
    assert change.change == pytest.approx(factor - 1)


def test_the_noise_is_that_of_both_and_no_single_round_changes_it() -> None:
    assert RatioChange("row", STEADY, STEADY).noise == MIN_FALL
    assert RatioChange("row", STEADY, NOISY).noise == RatioChange("row", NOISY, STEADY).noise > 0.2
    assert RatioChange("row", (*STEADY, 9.0), STEADY).noise == MIN_FALL
    assert RatioChange("row", NOISY * 9, NOISY * 9).noise < RatioChange("row", NOISY, NOISY).noise, "of the medians"
    assert RatioChange("row", (1.0,), (0.89,)).fell


def test_larger_is_better_for_seconds_too_and_rows_without_peer_are_left_out() -> None:
    first = [
        PeerComparison("copy", RATE, (2.0, 3.0), "memcpy", (4.0, 4.0)),
        PeerComparison("step", SECONDS, (2.0,), "torch", (1.0,)),
        PeerComparison("alone", SECONDS, (2.0,)),
    ]
    second = [PeerComparison("copy", RATE, (1.0,), "memcpy", (1.0,))]
    assert collect_ratios("x", [first, second]) == {
        "x: copy, of memcpy": (0.5, 0.75, 1.0),
        "x: step, of torch": (0.5,),
    }


def test_a_ratio_that_is_missing_fell_and_a_new_one_is_no_matter() -> None:
    changes = find_changes({"a": STEADY, "b": STEADY}, {"b": STEADY, "c": STEADY})
    assert [(one.row, one.fell) for one in changes] == [("a", True), ("b", False)]


def test_what_fell_stands_first_and_is_named() -> None:
    fine, fallen = RatioChange("fine", STEADY, STEADY), RatioChange("fallen", STEADY, scale(STEADY, 0.5))
    table = tabulate_changes([fine, fallen], notes=["elsewhere"])
    assert [cells[0] for cells in table.format_cells()] == ["fallen", "fine"]
    assert table.notes == ("elsewhere", "Fell by more than the noise: fallen.")
    assert tabulate_changes([fine]).notes == ("Nothing fell by more than the noise.",)


def test_the_file_is_read_as_it_was_written_and_replaces_none_of_the_user(tmp_path: Path) -> None:
    path = tmp_path / "kept.json"
    kept = KeptRatios({"x": KeptBenchmark(Conditions("cpu", 2, 1, {"torch": "2"}, "0"), "today", {"x: y": STEADY})})
    write_kept(path, KeptRatios({}))
    write_kept(path, kept)
    assert read_kept(path) == kept
    assert '"x: y": [ 1.0, 1.001, 0.999, 1.002, 0.998 ]' in path.read_text(), "a ratio is a line"
    path.write_text('{"mine": 1}')
    with pytest.raises(UsageError, match="E232"):
        write_kept(path, KeptRatios({}))
    with pytest.raises(BadInput, match="E378"):
        read_kept(path)
