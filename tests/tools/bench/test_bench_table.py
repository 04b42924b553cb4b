"""`BenchTable`: one table, printed, as JSON, as markup and as Markdown."""

import json

import pytest

from cutset.partition.cluster.quantities import Bandwidth, Speed
from cutset.tools.bench.bench_table import BenchTable, Column, show_tables


def make_table(**facts: object) -> BenchTable[tuple[str, float]]:
    columns = [
        Column[tuple[str, float]]("method", key="method", value=lambda row: row[0]),
        Column[tuple[str, float]]("seconds", key="seconds", value=lambda row: row[1], format="{:.2f} s".format),
    ]
    return BenchTable(columns, [("sync", 1.5), ("ssp", 0.25)], notes=["a note"], facts=facts)


def test_a_quantity_is_a_number_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    show_tables(make_table(rate=Bandwidth.parse("1 Gbit/s"), speed=Speed.parse("2 GFLOP/s")), as_json=True)
    data = json.loads(capsys.readouterr().out)
    assert (data["rate"], data["speed"]) == (125e6, 2e9)
    assert data["rows"] == [{"method": "sync", "seconds": 1.5}, {"method": "ssp", "seconds": 0.25}]


def test_what_is_not_plain_is_refused() -> None:
    with pytest.raises(TypeError, match="object"):
        make_table(rate=object()).to_dict()


def test_the_cells_of_markdown_are_those_that_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    table = make_table()
    show_tables(table, as_json=False)
    printed = capsys.readouterr().out
    markdown = table.to_markdown().splitlines()
    assert markdown[2:4] == ["| sync | 1.50 s |", "| ssp | 0.25 s |"]
    assert markdown[-1] == "a note"
    assert all(text in printed for text in ("method", "seconds", "1.50 s", "0.25 s", "a note"))
