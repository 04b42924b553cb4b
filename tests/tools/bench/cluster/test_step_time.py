"""The benchmark of a step counts right, and compares what it measured in one round."""

import json

import pytest
from click.testing import CliRunner

from cutset.tools.bench.cluster.step_time import COLUMNS, PLAIN, UNCUT, StepRow, tabulate
from cutset.tools.bench.commands.bench import bench
from cutset.tools.probe.measure_step import StepTimes


def rows() -> list[StepRow]:
    plain = StepRow(PLAIN, 10)
    found = [plain, StepRow(UNCUT, 10, plain), StepRow("cut over 2 processes", 10, plain)]
    for seconds in ((1e-3, 1.1e-3, 3e-3), (2e-3, 2.3e-3, 3e-3), (4e-3, 4.2e-3, 5e-3)):
        for row, step_s in zip(found, seconds, strict=True):
            row.add(StepTimes((step_s, step_s, 1.0)[:2], bytes_sent=100 if row is found[2] else 0))
    return found


def test_overhead_is_that_of_one_round_and_of_one_operator() -> None:
    plain, uncut, cut = rows()
    assert [row.step_s for row in (plain, uncut, cut)] == [2e-3, 2.3e-3, 3e-3]
    assert uncut.overhead_s == pytest.approx(0.2e-3 / 10)  # the median of 0.1, 0.3 and 0.2 ms
    assert cut.ratio == pytest.approx(1.5)
    assert plain.ratio is None
    assert plain.overhead_s is None
    assert cut.overhead_s is None, "its messages are not the operators'"


def test_the_table_prints_every_row() -> None:
    table = tabulate(rows(), task="mine")
    assert table.headings == [column.heading for column in COLUMNS if column.heading]
    assert [cells[0] for cells in table.format_cells()] == [PLAIN, UNCUT, "cut over 2 processes"]
    assert table.format_cells()[1][4] == "20.0 us"
    assert table.to_dict()["task"] == "mine"


@pytest.mark.run
def test_a_step_of_a_tiny_task_is_measured_in_three_ways() -> None:
    options = ["step", "cutset.models:digits_softmax", "--machines", "2", "--rounds", "1", "--steps", "3", "--json"]
    done = CliRunner().invoke(bench, options, catch_exceptions=False)
    plain, uncut, cut = json.loads(done.stdout)["rows"]
    assert [row["how"] for row in (plain, uncut, cut)] == [PLAIN, UNCUT, "cut over 2 processes"]
    assert {row["operators"] for row in (plain, uncut, cut)} == {2}  # linear and cross entropy
    assert all(len(row["medians"]) == 1 and row["step_s"] > 0 for row in (plain, uncut, cut))
    assert [row["bytes_sent"] > 0 for row in (plain, uncut, cut)] == [False, False, True]
