"""The bench of parameter servers, briefly: everything takes its turn, updates are applied, and the goals are judged."""

import io
import json

import pytest
from click.testing import CliRunner
from rich.console import Console

from cutset.errors import BadInput
from cutset.tools.bench.commands.transport import ps_command
from cutset.tools.bench.transport import pslite
from cutset.tools.bench.transport.parameter_server import (
    BOTH_WAYS,
    CASES,
    ONE_WAY,
    PULL,
    PUSH,
    PUSH_PULL,
    SUMMED,
    Case,
    ServerRate,
    measure,
)
from cutset.tools.bench.transport.parameter_server_goals import judge_goals, tabulate_goals, tabulate_rates
from cutset.tools.bench.transport.pslite import PSLITE, make_rows, measure_beside, run_pslite
from cutset.tools.bench.transport.transports import CURVE, GLOO, MEMCPY, PLAIN, RAW, SHARED

BESIDE = [(MEMCPY, ONE_WAY), (RAW, ONE_WAY), (RAW, BOTH_WAYS), (GLOO, SUMMED)]


def row(way, what, rate, shards=0, optimizer=""):
    return ServerRate(way, what, shards, optimizer, (0.9 * rate, rate, 3 * rate))


def rows(push=0.9, pull=0.9, both=0.9, shared=1.8, adagrad=1.0, curve=0.6):
    """Of a raw socket with 2 GB/s one way and 3 both ways; each rate as a part of those, CURVE's of plain TCP's."""
    found = [row(way, what, {ONE_WAY: 2e9}.get(what, 3e9)) for way, what in BESIDE]
    for optimizer, part in (("sgd", 1.0), ("adagrad", adagrad)):
        encrypted = (curve * push, curve * pull, curve * both)
        for way, ratios in ((PLAIN, (push, pull, both)), (CURVE, encrypted), (SHARED, (1.0, 1.0, shared))):
            for what, ratio, raw in zip((PUSH, PULL, PUSH_PULL), ratios, (2e9, 2e9, 3e9), strict=True):
                found.append(row(way, what, part * ratio * raw, 1, optimizer))
    return found


def test_all_transports_optimizers_and_shards_are_there_by_default():
    assert {(c.way, c.shards, c.optimizer) for c in CASES} == {
        (way, shards, optimizer)
        for way in (PLAIN, CURVE, SHARED)
        for shards in (1, 2)
        for optimizer in ("sgd", "adagrad")
    }


@pytest.mark.slow
def test_everything_is_timed_in_every_round():
    cases = [Case(PLAIN, 1, "sgd"), Case(SHARED, 2, "adagrad"), Case(CURVE, 2, "sgd")]
    found = measure(size=1 << 20, rounds=2, cases=cases)
    wanted = [(way, what, 0, "") for way, what in BESIDE]
    wanted += [(c.way, what, c.shards, c.optimizer) for c in cases for what in (PUSH, PULL, PUSH_PULL)]
    assert [(r.way, r.what, r.shards, r.optimizer) for r in found] == wanted
    assert all(len(r.rates) == 2 and min(r.rates) > 1e5 for r in found)


def test_goals_that_are_just_met():
    found = judge_goals(rows(curve=0.601))
    assert len(found) == 7
    assert all(goal.met for goal in found)
    assert [len(goal.ratios) for goal in found] == [2, 2, 2, 6, 2, 2, 2]


def test_pslite_is_a_goal_where_it_was_run():
    runs = [{PUSH: 1.8e9, PULL: 1.7e9, PUSH_PULL: 2.7e9}, {PUSH: 1.8e9, PULL: 1.9e9, PUSH_PULL: 3.3e9}]
    found = {goal.text: goal for goal in judge_goals([*rows(), *make_rows(runs)])}
    assert {text: goal.met for text, goal in found.items() if PSLITE in text} == {
        "our TCP, push, of ps-lite": True,
        "our TCP, pull, of ps-lite": True,
        "our TCP, push+pull, of ps-lite": False,
        "our shared memory, push+pull, of ps-lite": True,
    }
    assert found["our TCP, push+pull, of ps-lite"].ratios == (0.9,)


@pytest.mark.parametrize(
    ("worse", "text"),
    [
        ({"push": 0.89}, "our TCP, push, of raw TCP one way"),
        ({"pull": 0.89}, "our TCP, pull, of raw TCP one way"),
        ({"both": 0.89}, "our TCP, push+pull, of raw TCP both ways"),
        ({"curve": 0.59}, "our TCP, CURVE, of our TCP"),
    ],
)
def test_a_goal_that_is_missed(worse, text):
    assert [goal.text for goal in judge_goals(rows(**{"curve": 0.601, **worse})) if not goal.met] == [text]


def test_adagrad_may_be_somewhat_slower():
    rates = {"push": 2.0, "pull": 2.0, "both": 2.0, "shared": 4.0, "curve": 0.8}
    assert all(goal.met for goal in judge_goals(rows(**rates, adagrad=0.86)))
    assert [g.text for g in judge_goals(rows(**rates, adagrad=0.84)) if not g.met] == [
        "our TCP, adagrad, of sgd",
        "our TCP, CURVE, adagrad, of sgd",
        "our shared memory, adagrad, of sgd",
    ]


def test_the_table_shows_medians_and_fractions_of_a_raw_socket():
    out = io.StringIO()
    console = Console(file=out, width=200)
    for tabulate in (tabulate_rates, tabulate_goals):
        tabulate(rows(push=0.5)).print(console)
    text = out.getvalue()
    lines = [line.split() for line in text.splitlines() if line.startswith(f"{PLAIN}  ") and "sgd" in line]
    assert [line[-4:] for line in lines[:3]] == [
        ["push", "1.00", "GB/s", "0.50"],
        ["pull", "1.80", "GB/s", "0.90"],
        ["push+pull", "2.70", "GB/s", "0.90"],
    ]
    missed = next(line for line in text.splitlines() if line.startswith("our TCP, push, of"))
    assert missed.split()[-4:] == ["0.90", "0.50", "0.50", "no"]


def test_a_program_is_run_in_all_three_roles_and_its_rates_are_read(tmp_path):
    program = tmp_path / "peer"
    program.write_text('#!/bin/sh\necho "$DMLC_ROLE of $DMLC_NUM_SERVER: push 2.10 pull 1.70 push+pull 1.80 GB/s"\n')
    program.chmod(0o755)
    assert run_pslite(program) == {PUSH: 2.1e9, PULL: 1.7e9, PUSH_PULL: 1.8e9}


def test_a_program_takes_its_turn_between_our_rounds(tmp_path, monkeypatch):
    turns = []

    def measure_some(*, rounds, cases):
        turns.append(rounds)
        return [
            ServerRate(PLAIN, what, 1, "sgd", tuple(float(len(turns)) for _ in range(rounds))) for what in (PUSH, PULL)
        ]

    def run(program):
        turns.append(program)
        return {PUSH: len(turns), PULL: 1.0, PUSH_PULL: 1.0}

    monkeypatch.setattr(pslite, "measure", measure_some)
    monkeypatch.setattr(pslite, "run_pslite", run)
    rates = {(row.way, row.what): row.rates for row in measure_beside(tmp_path, rounds=5)}
    assert turns == [tmp_path, 2, tmp_path, 2, tmp_path, 1, tmp_path]
    assert rates[PLAIN, PUSH] == rates[PLAIN, PULL] == (2.0, 2.0, 4.0, 4.0, 6.0)
    assert rates[PSLITE, PUSH] == (1, 3, 5, 7)
    turns.clear()
    assert [row.way for row in measure_beside(None, rounds=5)] == [PLAIN, PLAIN]
    assert turns == [5]


def test_a_program_that_will_not_do_is_said(tmp_path):
    with pytest.raises(BadInput, match="does not run"):
        run_pslite(tmp_path / "none")
    program = tmp_path / "peer"
    program.write_text("#!/bin/sh\necho hello\n")
    program.chmod(0o755)
    with pytest.raises(BadInput, match="printed no rates: 'hello'"):
        run_pslite(program)


def test_rounds_and_goals_are_in_the_json(monkeypatch):
    monkeypatch.setattr(pslite, "measure", lambda rounds, cases: rows()[:rounds])
    done = CliRunner().invoke(ps_command, ["--rounds", "3", "--json"])
    assert json.loads(done.output) == json.loads(
        json.dumps({**tabulate_rates(rows()[:3]).to_dict(), **tabulate_goals(rows()[:3]).to_dict()})
    )
    assert json.loads(done.output)["rows"][0]["rates"] == [1.8e9, 2e9, 6e9]
