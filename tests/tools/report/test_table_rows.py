"""The result table has the columns that somebody measured, and no others."""

from typing import Any

from cutset.tools.report.table_rows import format_results


def row(**more: Any) -> dict[str, Any]:
    counts = {"name": "one process", "processes": 1, "threads": 2, "samples": 64, "seconds": 2.0, "samples_per_s": 32.0}
    return {**counts, "test_accuracy": None, "test_loss": None, "metrics": {}, **more}


def test_what_no_row_has_measured_has_no_column() -> None:
    headings, (cells,) = format_results([row()])
    assert not {"test accuracy", "test loss", "time to target"} & set(headings)
    assert len(cells) == len(headings)


def test_the_time_to_a_target_is_there_where_one_was_named() -> None:
    headings, cells = format_results([row(target=0.9), row(target=0.9, time_to_target_s=3.0), row()])
    place = headings.index("time to target")
    assert [one[place] for one in cells] == ["not reached", "3 s to 90 %", "–"]
    assert {len(one) for one in cells} == {len(headings)}
