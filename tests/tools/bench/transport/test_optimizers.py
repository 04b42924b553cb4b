"""The benchmark of optimizers, briefly: every optimizer is timed beside memcpy, and the table says so."""

import io
import json

import torch
from click.testing import CliRunner
from rich.console import Console

from cutset.ps.optimizers.registry import OPTIMIZERS
from cutset.tools.bench.commands.transport import optimizers_command
from cutset.tools.bench.transport import optimizers as bench
from cutset.tools.bench.transport.optimizers import NAMES, OptimizerRates, measure, tabulate


def test_every_optimizer_is_timed_in_every_round():
    threads = torch.get_num_threads()
    rows = measure(elements=1 << 12, rounds=2)
    assert [row.optimizer for row in rows] == list(NAMES)
    assert set(OPTIMIZERS) <= set(NAMES)
    for row in rows:
        assert [len(rates) for rates in (row.alone, row.pushed, row.memcpy)] == [2, 2, 2]
        assert min(*row.alone, *row.pushed, *row.memcpy) > 0
    assert torch.get_num_threads() == threads


ROW = OptimizerRates("sgd", (4e9, 3e9, 2e9), (3e9, 2e9, 1e9), (4e9, 4e9, 8e9))


def test_the_table_compares_with_memcpy_of_the_same_round():
    out = io.StringIO()
    tabulate([ROW]).print(Console(file=out, width=200))
    line = next(line for line in out.getvalue().splitlines() if "sgd" in line)
    assert line.split() == ["sgd", "3.00", "GB/s", "0.75", "2.00", "GB/s", "0.50"]


def test_rounds_are_in_the_json(monkeypatch):
    monkeypatch.setattr(bench, "measure", lambda rounds: [ROW] * rounds)
    done = CliRunner().invoke(optimizers_command, ["--rounds", "3", "--json"])
    assert json.loads(done.output)["rows"] == json.loads(json.dumps(tabulate([ROW]).to_dict()["rows"] * 3))
