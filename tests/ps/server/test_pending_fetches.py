"""Fetches of a slice: when they are ready, their replies, and the log of changed rows."""

import pytest
import torch

from cutset.ps.server.pending_fetches import MAX_LOGGED_UPDATES, ChangeLog, PendingFetch, PendingFetches
from cutset.ps.server.step_clocks import StepClocks
from cutset.ps.slices.slice_state import SliceState
from cutset.ps.slices.slicing import ParameterSlice, slice_parameters

[PIECE] = slice_parameters([4], 1, align=1)


def slice_state(piece: ParameterSlice = PIECE, version: int = 0) -> SliceState:
    return SliceState(piece, torch.arange(4.0), {}, version, {"worker-0.0": 3})


def fetch(client: str, *, min_version: int = 0, min_step: int = 0, since: int | None = None) -> PendingFetch:
    return PendingFetch(client, 1, 0, min_version, min_step, since)


def test_a_fetch_waits_for_its_version_and_for_the_slowest_replica() -> None:
    fetches, clocks = PendingFetches(PIECE), StepClocks(2)
    for one in (fetch("now"), fetch("version", min_version=2), fetch("slowest", min_step=1)):
        fetches.add(one)
    assert [one.client for one in fetches.take_ready(slice_state(version=1), clocks)] == ["now"]
    clocks.record_push(0, 0)
    assert not list(fetches.take_ready(slice_state(version=1), clocks))
    clocks.record_push(1, 0)
    assert [one.client for one in fetches.take_ready(slice_state(version=1), clocks)] == ["slowest"]
    assert [one.client for one in fetches.take_ready(slice_state(version=2), clocks)] == ["version"]
    assert len(fetches) == 0


def test_the_reply_has_the_values_or_says_that_nothing_has_changed() -> None:
    fetches = PendingFetches(PIECE)
    whole = fetches.make_reply(fetch("worker-0.0"), slice_state(version=2), durable=3)
    assert whole.body == {"version": 2, "applied": 3, "durable": 3}
    assert not whole.borrowed
    assert torch.equal(whole.tensors[0], torch.arange(4.0))
    same = fetches.make_reply(fetch("worker-1.0", since=2), slice_state(version=2), durable=0)
    assert same.body == {"version": 2, "applied": 0, "durable": 0, "unchanged": True}
    assert same.tensors == ()


def test_too_many_fetches_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cutset.ps.server.pending_fetches.MAX_PENDING_FETCHES", 1)
    fetches = PendingFetches(PIECE)
    fetches.add(fetch("worker-0.0"))
    with pytest.raises(ValueError, match="comes while 1 fetches wait"):
        fetches.add(fetch("worker-1.0"))


def test_a_fetch_that_is_sent_again_is_answered_once() -> None:
    fetches, clocks = PendingFetches(PIECE), StepClocks(1)
    for _ in range(3):
        fetches.add(fetch("worker-0.0", min_version=1))
    assert [one.client for one in fetches.take_ready(slice_state(version=1), clocks)] == ["worker-0.0"]


def test_the_log_has_the_rows_changed_since_a_version() -> None:
    log = ChangeLog(10)
    assert log.rows_since(0, 1) is None
    assert log.rows_since(1, 1).tolist() == []
    for version in range(1, 5):
        log.add(version, torch.tensor([version, version + 1]))
    assert log.rows_since(0, 4).tolist() == [1, 2, 3, 4, 5]
    assert log.rows_since(1, 4).tolist() == [2, 3, 4, 5]
    assert log.rows_since(3, 4).tolist() == [4, 5]
    assert log.rows_since(4, 4).tolist() == []
    assert log.rows_since(3, 5) is None  # something else has changed the slice
    log.add(5, None)
    assert log.rows_since(4, 5) is None
    log.add(6, torch.tensor([7]))
    assert log.rows_since(5, 6).tolist() == [7]
    log.add(9, torch.tensor([8]))
    assert log.rows_since(6, 9) is None


def test_an_update_that_touches_no_rows_log_none() -> None:
    log = ChangeLog(10)
    for version in range(1, 4):
        log.add(version, torch.zeros(0, dtype=torch.int64))
    assert log.rows_since(1, 3).tolist() == []


def test_the_log_is_no_larger_than_the_slice() -> None:
    log = ChangeLog(10)
    for version in range(1, 100):
        log.add(version, torch.arange(4))
        assert log._count <= 10
    assert log.rows_since(97, 99).tolist() == [0, 1, 2, 3]
    assert log.rows_since(90, 99) is None
    for version in range(100, 100 + 2 * MAX_LOGGED_UPDATES):
        log.add(version, torch.zeros(0, dtype=torch.int64))
    assert len(log._log) == MAX_LOGGED_UPDATES
