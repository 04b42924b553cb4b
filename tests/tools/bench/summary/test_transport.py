"""Rates become rows beside the peer that was measured in the same directions, with the goals of `cutset bench ps`."""

from cutset.tools.bench.summary.transport import compare_channels, compare_optimizers, compare_servers
from cutset.tools.bench.transport.channel import ChannelRates
from cutset.tools.bench.transport.optimizers import OptimizerRates
from cutset.tools.bench.transport.parameter_server import BOTH_WAYS, ONE_WAY, PULL, PUSH, PUSH_PULL, WAYS, ServerRate
from cutset.tools.bench.transport.parameter_server_goals import PSLITE_GOALS, judge_goals
from cutset.tools.bench.transport.pslite import PSLITE
from cutset.tools.bench.transport.transports import GLOO, MEMCPY, PLAIN, RAW


def test_channels_stand_beside_a_socket_one_way_and_beside_gloo_there_and_back() -> None:
    rates = {MEMCPY: 9.0, RAW: 4.0, GLOO: 2.0, PLAIN: 3.0}
    rows = list(compare_channels([ChannelRates(name, 1024, (rate,), (1 / rate,)) for name, rate in rates.items()]))
    assert [(row.name, row.peer, row.ratio) for row in rows] == [
        (f"{PLAIN}, 1 KiB, one way", RAW, 0.75),
        (f"{PLAIN}, 1 KiB, there and back", GLOO, 2 / 3),
    ]


def test_optimizers_stand_beside_memcpy_of_the_same_round() -> None:
    rows = list(compare_optimizers([OptimizerRates("sgd", (1.0, 4.0), (1.0, 2.0), (2.0, 4.0))]))
    assert [(row.name, row.peer, row.ratios) for row in rows] == [
        ("sgd", MEMCPY, (0.5, 1.0)),
        ("sgd, a push", MEMCPY, (0.5, 0.5)),
    ]


def test_servers_have_the_goals_of_their_command() -> None:
    others = [(RAW, ONE_WAY, 0, "", 4.0), (RAW, BOTH_WAYS, 0, "", 8.0)]
    ours = [
        (way, what, 1, optimizer, 3.0)
        for way in WAYS
        for what in (PUSH, PULL, PUSH_PULL)
        for optimizer in ("sgd", "adagrad")
    ]
    theirs = [(PSLITE, what, 1, "sgd", 2.0) for what in (PUSH, PULL, PUSH_PULL)]
    rates = [ServerRate(*key, (rate,)) for *key, rate in (*others, *ours, *theirs)]
    rows = list(compare_servers(rates))
    judged = [row for row in rows if row.limit is not None]
    assert {ratio for goal in judge_goals(rates) for ratio in goal.ratios} == {row.ratio for row in judged}
    assert len(judged) == sum(len(goal.ratios) for goal in judge_goals(rates))
    assert sum(row.peer == PSLITE for row in rows) == len(PSLITE_GOALS)
    (one,) = [row for row in rows if row.name == f"{PUSH_PULL}, sgd, {PLAIN}, 1 shard" and row.peer.startswith(RAW)]
    assert (one.peer, one.ratio, one.met) == (f"{RAW} {BOTH_WAYS}", 3 / 8, False)


def test_without_pslite_there_are_no_rows_of_it() -> None:
    rates = [ServerRate(RAW, way, 0, "", (4.0,)) for way in (ONE_WAY, BOTH_WAYS)]
    rates += [ServerRate(way, what, 1, "sgd", (3.0,)) for way in WAYS for what in (PUSH, PULL, PUSH_PULL)]
    assert not any(row.peer == PSLITE for row in compare_servers(rates))
