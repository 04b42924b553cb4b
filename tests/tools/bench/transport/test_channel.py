"""The bench of channels, briefly: every way carries every size, and the table says so."""

import io
import json

import pytest
from click.testing import CliRunner
from rich.console import Console

from cutset.tools.bench.commands.transport import channel_command
from cutset.tools.bench.transport import channel as bench
from cutset.tools.bench.transport.channel import ChannelRates, measure, tabulate
from cutset.tools.bench.transport.transports import GLOO, RAW, SHARED, TRANSPORTS


@pytest.fixture(scope="module")
def rows() -> list[ChannelRates]:
    return measure(sizes=(1 << 10, 256 << 10), rounds=2, fraction=0.02)


@pytest.mark.slow
def test_every_way_and_size_is_timed_in_every_round(rows):
    assert [(row.transport, row.size) for row in rows] == [(t, s) for s in (1 << 10, 256 << 10) for t in TRANSPORTS]
    for row in rows:
        assert len(row.rates) == len(row.returns) == 2
        assert min(row.rates) > 1e4
        assert 0 < row.there_and_back_s < 1


def test_the_table_compares_with_a_socket_and_with_gloo():
    out = io.StringIO()
    rates = {RAW: 3e9, GLOO: 2e9, SHARED: 6e9}
    tabulate([ChannelRates(name, 1 << 20, (rate,), (1e9 / rate,)) for name, rate in rates.items()]).print(
        Console(file=out, width=200)
    )
    line = next(line for line in out.getvalue().splitlines() if SHARED in line)
    assert line.split()[-3:] == ["2.00", "3.00", "0.33"]


def test_rounds_are_in_the_json(monkeypatch):
    row = ChannelRates(RAW, 1024, (1e9, 3e9, 2e9), (3e-6, 1e-6, 2e-6))
    monkeypatch.setattr(bench, "measure", lambda rounds: [row] * rounds)
    done = CliRunner().invoke(channel_command, ["--rounds", "3", "--json"])
    assert json.loads(done.output)["rows"] == json.loads(json.dumps(tabulate([row]).to_dict()["rows"] * 3))
    assert (row.rate, row.there_and_back_s) == (2e9, 2e-6)
