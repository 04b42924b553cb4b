"""A feed gives every reader all batches, not far ahead of the user, and what one has the others get."""

import threading
from collections.abc import Iterator

import pytest
import torch

from cutset.models.task import Data
from cutset.runtime.replica.batch_feed import BatchFeed


def numbered(count: int, drawn: list[int]) -> Iterator[Data]:
    for number in range(count):
        drawn.append(number)
        yield Data((torch.tensor([number]),), ())


def numbers(batches: Iterator[Data]) -> list[int]:
    return [int(batch.inputs[0]) for batch in batches]


def test_every_reader_gets_all_batches_in_order() -> None:
    feed = BatchFeed(numbered(5, []), readers=2, ahead=9)
    assert numbers(feed.batches()) == numbers(feed.batches()) == [0, 1, 2, 3, 4]


def test_nothing_is_drawn_far_ahead_of_the_user() -> None:
    drawn: list[int] = []
    feed = BatchFeed(numbered(100, drawn), readers=1, ahead=3)
    batches = feed.batches()
    for _ in range(3):
        next(batches)
    waiting = threading.Thread(target=next, args=(batches,))
    waiting.start()
    assert drawn == [0, 1, 2]
    feed.count_consumed()
    waiting.join(10)
    assert not waiting.is_alive()
    assert drawn == [0, 1, 2, 3]


def test_after_the_end_readers_get_what_another_has_already() -> None:
    feed = BatchFeed(numbered(100, []), readers=2, ahead=50)
    first = feed.batches()
    assert [int(next(first).inputs[0]) for _ in range(4)] == [0, 1, 2, 3]
    feed.end()
    assert numbers(feed.batches()) == [0, 1, 2, 3]
    assert numbers(first) == []


def test_what_the_source_raises_reaches_the_reader() -> None:
    def broken() -> Iterator[Data]:
        yield Data((torch.zeros(1),), ())
        raise LookupError("no more")

    batches = BatchFeed(broken(), readers=1, ahead=5).batches()
    next(batches)
    with pytest.raises(LookupError, match="no more"):
        next(batches)
