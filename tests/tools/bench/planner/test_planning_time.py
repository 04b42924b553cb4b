"""What planning takes, measured in processes of their own."""

import os

import pytest

from cutset.tools.bench.planner.planning_time import measure_planning, tabulate


@pytest.mark.run
def test_each_plan_is_measured_by_itself() -> None:
    lines = list[str]()
    cases = [(("small", "cutset.models:digits"), (1, 2)), (("deep", "cutset.models:transformer(layers=2)"), (2,))]
    rows = measure_planning(lines.append, cases)
    assert [(row.net, row.machines) for row in rows] == [("small", 1), ("small", 2), ("deep", 2)]
    assert rows[0].plan == "one machine"
    assert rows[0].operators == rows[1].operators < rows[2].operators
    for row in rows:
        assert 0 < row.capture_s < row.cpu_s
        assert 50 << 20 < row.peak_bytes < os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert len(lines) == 3
    table = tabulate(rows)
    assert [column.format_cell(rows[1]) for column in table.columns][:3] == ["small", str(rows[1].operators), "2"]
