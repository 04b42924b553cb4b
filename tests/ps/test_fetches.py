"""Fetches of a slice: which need wait no longer, and what they are answered."""

import pytest
import torch

from cutset.ps.server.step_clocks import Clocks
from cutset.ps.server.pending_fetches import Fetch, Fetches
from cutset.ps.slices.slice_state import Holding
from cutset.ps.slices.slicing import Slice, layout

[PIECE] = layout([4], 1, align=1)


def holding(piece: Slice = PIECE, version: int = 0) -> Holding:
    return Holding(piece, torch.arange(4.0), {}, version, {"worker-0.0": 3})


def fetch(client: str, *, at_least: int = 0, slowest: int = 0, since: int | None = None) -> Fetch:
    return Fetch(client, 1, 0, at_least, slowest, since)


def test_one_waits_for_its_version_and_for_the_slowest_replica() -> None:
    fetches, clocks = Fetches(PIECE), Clocks(2)
    for one in (fetch("now"), fetch("version", at_least=2), fetch("slowest", slowest=1)):
        fetches.add(one)
    assert [one.client for one in fetches.due(holding(version=1), clocks)] == ["now"]
    clocks.pushed(0, 0)
    assert not list(fetches.due(holding(version=1), clocks))
    clocks.pushed(1, 0)
    assert [one.client for one in fetches.due(holding(version=1), clocks)] == ["slowest"]
    assert [one.client for one in fetches.due(holding(version=2), clocks)] == ["version"]
    assert len(fetches) == 0


def test_the_answer_has_the_values_or_says_that_nothing_has_changed() -> None:
    fetches = Fetches(PIECE)
    whole = fetches.answer(fetch("worker-0.0"), holding(version=2))
    assert whole.body == {"version": 2, "applied": 3}
    assert not whole.borrowed
    assert torch.equal(whole.tensors[0], torch.arange(4.0))
    same = fetches.answer(fetch("worker-1.0", since=2), holding(version=2))
    assert same.body == {"version": 2, "applied": 0, "unchanged": True}
    assert same.tensors == ()


def test_more_than_clients_can_have_sent_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cutset.ps.server.pending_fetches.DEFERRED_MOST", 1)
    fetches = Fetches(PIECE)
    fetches.add(fetch("worker-0.0"))
    with pytest.raises(ValueError, match="comes while 1 fetches wait"):
        fetches.add(fetch("worker-1.0"))


def test_a_fetch_that_is_sent_again_is_answered_once() -> None:
    fetches, clocks = Fetches(PIECE), Clocks(1)
    for _ in range(3):
        fetches.add(fetch("worker-0.0", at_least=1))
    assert [one.client for one in fetches.due(holding(version=1), clocks)] == ["worker-0.0"]
