"""The bench of parameter servers, briefly: everything takes its turn, updates are applied, and the goals are judged."""

import io
import json

import pytest
from click.testing import CliRunner
from rich.console import Console

from cutset.tools.bench.transport import parameter_server as ps, parameter_server_goals as ps_goals
from cutset.tools.bench.commands import ps_command
from cutset.tools.bench.transport.parameter_server import (
    BOTH_WAYS,
    CASES,
    ONE_WAY,
    PULL,
    PUSH,
    PUSH_PULL,
    SUMMED,
    Case,
    PsRow,
    measure,
)
from cutset.tools.bench.transport.parameter_server_goals import as_data, goals, print_rows
from cutset.tools.bench.transport.transports import CURVE, GLOO, MEMCPY, PLAIN, RAW, SHARED

BESIDE = [(MEMCPY, ONE_WAY), (RAW, ONE_WAY), (RAW, BOTH_WAYS), (GLOO, SUMMED)]


def row(way, what, rate, shards=0, rule=""):
    return PsRow(way, what, shards, rule, (0.9 * rate, rate, 3 * rate))


def rows(push=0.8, pull=0.8, both=0.9, shared=1.8, adagrad=1.0):
    """Of a raw socket with 2 GB/s one way and 3 both ways; each rate as a part of those."""
    found = [row(way, what, {ONE_WAY: 2e9}.get(what, 3e9)) for way, what in BESIDE]
    for rule, part in (("sgd", 1.0), ("adagrad", adagrad)):
        for way, ratios in ((PLAIN, (push, pull, both)), (SHARED, (1.0, 1.0, shared))):
            for what, ratio, raw in zip((PUSH, PULL, PUSH_PULL), ratios, (2e9, 2e9, 3e9), strict=True):
                found.append(row(way, what, part * ratio * raw, 1, rule))
    return found


def test_all_ways_rules_and_shards_are_there_by_default():
    assert {(c.way, c.shards, c.rule) for c in CASES} == {
        (way, shards, rule) for way in (PLAIN, CURVE, SHARED) for shards in (1, 2) for rule in ("sgd", "adagrad")
    }


def test_everything_is_timed_in_every_round():
    cases = [Case(PLAIN, 1, "sgd"), Case(SHARED, 2, "adagrad"), Case(CURVE, 2, "sgd")]
    found = measure(size=1 << 20, rounds=2, cases=cases)
    wanted = [(way, what, 0, "") for way, what in BESIDE]
    wanted += [(c.way, what, c.shards, c.rule) for c in cases for what in (PUSH, PULL, PUSH_PULL)]
    assert [(r.way, r.what, r.shards, r.rule) for r in found] == wanted
    assert all(len(r.rates) == 2 and min(r.rates) > 1e5 for r in found)


def test_goals_that_are_just_met():
    found = goals(rows(adagrad=1.0))
    assert len(found) == 6
    assert all(goal.met for goal in found)
    assert [len(goal.ratios) for goal in found] == [2] * 6


@pytest.mark.parametrize(
    ("worse", "text"),
    [
        ({"push": 0.79}, "our TCP, push, of raw TCP one way"),
        ({"pull": 0.79}, "our TCP, pull, of raw TCP one way"),
        ({"both": 0.89}, "our TCP, push+pull, of raw TCP both ways"),
        ({"shared": 1.79}, "our shared memory, push+pull, of raw TCP both ways"),
    ],
)
def test_a_goal_that_is_missed(worse, text):
    assert [goal.text for goal in goals(rows(**worse)) if not goal.met] == [text]


def test_adagrad_may_take_a_fifth_longer():
    rates = {"push": 2.0, "pull": 2.0, "both": 2.0, "shared": 4.0}
    assert all(goal.met for goal in goals(rows(**rates, adagrad=0.84)))
    assert [g.text for g in goals(rows(**rates, adagrad=0.83)) if not g.met] == [
        "our TCP, adagrad, of sgd",
        "our shared memory, adagrad, of sgd",
    ]


def test_the_table_shows_medians_and_parts_of_a_raw_socket(monkeypatch):
    out = io.StringIO()
    monkeypatch.setattr(ps_goals, "make_console", lambda: Console(file=out, width=200))
    print_rows(rows(push=0.5))
    text = out.getvalue()
    line = next(line for line in text.splitlines() if line.startswith(PLAIN) and "sgd" in line)
    assert line.split()[-9:] == ["1.00", "GB/s", "(0.50)", "1.60", "GB/s", "(0.80)", "2.70", "GB/s", "(0.90)"]
    missed = next(line for line in text.splitlines() if line.startswith("our TCP, push, of"))
    assert missed.split()[-4:] == ["0.80", "0.50", "0.50", "no"]


def test_rounds_and_goals_are_in_the_json(monkeypatch):
    monkeypatch.setattr(ps, "measure", lambda rounds: rows()[:rounds])
    done = CliRunner().invoke(ps_command, ["--rounds", "3", "--json"])
    assert json.loads(done.output) == json.loads(json.dumps(as_data(rows()[:3])))
    assert json.loads(done.output)["rows"][0]["rates"] == [1.8e9, 2e9, 6e9]
