"""The bench of rules, briefly: every rule is timed beside memcpy, and the table says so."""

import io
import json

import torch
from click.testing import CliRunner
from rich.console import Console

from cutset.ps.optimizers.registry import RULES
from cutset.tools.bench.transport import optimizers as bench
from cutset.tools.bench.commands import rules_command
from cutset.tools.bench.transport.optimizers import NAMES, RuleRow, as_data, measure, print_rows


def test_every_rule_is_timed_in_every_round():
    threads = torch.get_num_threads()
    rows = measure(elements=1 << 12, rounds=2)
    assert [row.rule for row in rows] == list(NAMES)
    assert set(RULES) <= set(NAMES)
    for row in rows:
        assert [len(rates) for rates in (row.alone, row.pushed, row.memcpy)] == [2, 2, 2]
        assert min(*row.alone, *row.pushed, *row.memcpy) > 0
    assert torch.get_num_threads() == threads


ROW = RuleRow("sgd", (4e9, 3e9, 2e9), (3e9, 2e9, 1e9), (4e9, 4e9, 8e9))


def test_the_table_compares_with_memcpy_of_the_same_round(monkeypatch):
    out = io.StringIO()
    monkeypatch.setattr(bench, "make_console", lambda: Console(file=out, width=200))
    print_rows([ROW])
    line = next(line for line in out.getvalue().splitlines() if "sgd" in line)
    assert line.split() == ["sgd", "3.00", "GB/s", "0.75", "2.00", "GB/s", "0.50"]


def test_rounds_are_in_the_json(monkeypatch):
    monkeypatch.setattr(bench, "measure", lambda rounds: [ROW] * rounds)
    done = CliRunner().invoke(rules_command, ["--rounds", "3", "--json"])
    assert json.loads(done.output)["rows"] == [json.loads(json.dumps(as_data(ROW)))] * 3
