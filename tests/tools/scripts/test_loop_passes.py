"""A run that goes on with other replicas, or other batches, takes what was left, and says what it takes again."""

import warnings
from collections import Counter
from typing import Any

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, TensorDataset

from cutset.tools.job.stream_position import LoopPass, LoopPosition
from cutset.tools.scripts.data_share import share_loader
from cutset.tools.scripts.loop_counts import LoopCounts
from cutset.tools.scripts.loop_passes import count_again, count_own_steps, list_until, spread_over


def train(
    samples: int, batch: int, replica: int, replicas: int, *, epochs: int, counts: LoopCounts, stop: int = -1
) -> list[list[int]]:
    """Take a step on each batch; return the samples of each pass."""
    data: DataLoader[Any] = DataLoader(TensorDataset(torch.arange(samples)), batch_size=batch, shuffle=True)
    share, seen, steps = share_loader(data, replica, replicas, seed=2, counts=counts), list[list[int]](), 0
    for _ in range(epochs):
        seen.append([])
        for (numbers,) in share:
            seen[-1] += numbers.tolist()
            steps += not counts.take_step()
            if steps == stop:
                return seen
    return seen


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 3), st.integers(1, 3), st.integers(1, 3), st.data())
@pytest.mark.run
def test_other_replicas_take_what_was_left(
    before: int, now: int, batch: int, new_batch: int, rounds: int, data: st.DataObject
) -> None:
    samples, epochs = before * batch * rounds, 3
    steps = data.draw(st.integers(1, epochs * rounds))
    counts = [LoopCounts() for _ in range(before)]
    for one in counts:
        one.begin_at(0, LoopPosition(batch=batch))
    seen = [train(samples, batch, r, before, epochs=epochs, counts=counts[r], stop=steps) for r in range(before)]
    position = counts[0].describe(steps - 1)
    start_step = steps * before * batch // (now * new_batch)
    for replica in range(now):
        later = LoopCounts()
        place = spread_over(
            position, steps, start_step=start_step, replicas=(before, now), batch=new_batch, replica=replica
        )
        later.begin_at(start_step, place)
        seen.append(train(samples, new_batch, replica, now, epochs=epochs, counts=later))
    together = Counter(number for passes in seen for one in passes for number in one)
    again = count_again(position, steps, replicas=before, batch=new_batch)
    assert sum(together.values()) == epochs * samples + again
    if batch == new_batch:
        assert set(together.values()) == {epochs}
        assert again == 0


def test_each_replica_goes_on_after_its_own_steps() -> None:
    """The run counts the mean of all steps; this one had made more."""
    counts = LoopCounts()
    train(10, 1, 0, 1, epochs=2, counts=counts, stop=13)
    position = count_own_steps(LoopPosition(counts.passes), 9)
    later = LoopCounts()
    later.begin_at(9, position)
    assert [len(one) for one in train(10, 1, 0, 1, epochs=2, counts=later)] == [0, 7]
    assert later.describe(16).ahead == 4
    assert count_own_steps(LoopPosition(), 9) == LoopPosition()


def test_passes_that_are_alike_are_one_entry() -> None:
    counts = LoopCounts()
    train(10, 1, 0, 1, epochs=100, counts=counts)
    whole = LoopPass(times=100, steps=10, stepped=10, batches=10)
    assert counts.passes == [whole, LoopPass()]
    part = LoopPass(steps=4, stepped=4, batches=4)
    assert list_until(counts.passes, 24) == [LoopPass(2, 10, 10, 10), part]
    assert list_until(counts.passes, 30) == [LoopPass(3, 10, 10, 10), LoopPass()]
    assert list_until(counts.passes, 1004) == [whole, part]
    assert list_until([whole, part], 1003) == [whole, LoopPass(steps=3, stepped=3, batches=3)]


PEEKED = LoopPass(1, 9, 9, 9, idle=1)
LEFT = LoopPass(1, 3, 3, 4, has_left=True)
AT_END = LoopPass(1, 0, 0, 6, after=1)


@pytest.mark.parametrize(
    ("passes", "steps", "after"),
    [
        ([], 7, [LoopPass(1, 7, 7, 7)]),
        ([LoopPass(1, 2, 4, 4, idle=1)], 5, [LoopPass(1, 5, 10, 10, idle=1)]),
        ([PEEKED, LoopPass(1, 2, 2, 2)], 14, [PEEKED, LoopPass(1, 5, 5, 5)]),
        ([LEFT, LoopPass(1, 1, 1, 1)], 11, [LEFT, LEFT, LEFT, LoopPass(1, 2, 2, 2, has_left=True)]),
        ([AT_END, LoopPass()], 2, [AT_END, AT_END]),
    ],
)
def test_steps_since_the_last_report_are_taken_to_have_gone_on_as_before(
    passes: list[LoopPass], steps: int, after: list[LoopPass]
) -> None:
    found = list_until(passes, steps)
    assert [msgspec.structs.replace(one, times=1) for one in found for _ in range(one.times)] == after


def test_other_replicas_go_on_from_a_report_that_is_not_the_last() -> None:
    """It knows of three steps of six; the next batch is the seventh."""
    position = LoopPosition([LoopPass(1, 3, 3, 3)])
    given = []
    for replica in range(2):
        counts = LoopCounts()
        counts.begin_at(3, spread_over(position, 6, start_step=3, replicas=(1, 2), batch=1, replica=replica))
        data: DataLoader[Any] = DataLoader(TensorDataset(torch.arange(12)), batch_size=1)
        given.append([int(n) for (n,) in share_loader(data, replica, 2, seed=0, counts=counts)])
    assert given == [[6, 8, 10], [7, 9, 11]]
    assert count_again(LoopPosition([LoopPass(1, 3, 3, 3)], batch=4), 5, replicas=1, batch=8) == 4


def test_a_pass_of_which_a_replica_had_nothing_is_passed_over() -> None:
    """Of epochs of one batch the second of two replicas has none."""
    position = LoopPosition([LoopPass(5, 1, 1, 1), LoopPass()])
    for replica in range(2):
        counts = LoopCounts()
        counts.begin_at(2, spread_over(position, 5, start_step=2, replicas=(1, 2), batch=1, replica=replica))
        data: DataLoader[Any] = DataLoader(TensorDataset(torch.arange(1)))
        share = share_loader(data, replica, 2, seed=0, counts=counts)
        assert [len(list(share)) for _ in range(7)] == ([0] * 5 + [1] * 2 if replica == 0 else [0] * 7)
        assert counts.passes[0].times == 5


def test_loops_within_each_other_are_said_to_lose_their_place() -> None:
    data: DataLoader[Any] = DataLoader(TensorDataset(torch.arange(4)))
    share = share_loader(data, 0, 1, seed=0, counts=LoopCounts())
    with pytest.warns(UserWarning, match="cannot find its place in both"):
        assert len([1 for _ in share for _ in share]) == 16


def test_a_step_over_batches_that_were_left_begins_with_them_again() -> None:
    """Accumulation over two: the loop has left after five batches, of which two steps took four."""
    counts = LoopCounts()
    counts.begin_at(2, LoopPosition([LoopPass(1, 2, 4, 5, has_left=True)]))
    data: DataLoader[Any] = DataLoader(TensorDataset(torch.arange(10)))
    share = iter(share_loader(data, 0, 1, seed=0, counts=counts))
    for _ in range(2):
        next(share)
    counts.take_step()
    assert counts.passes == [LoopPass(1, 3, 6, 6)]
    with pytest.warns(UserWarning, match="resumed at batch 4"):
        share.close()


@pytest.mark.parametrize("passes", [0, 1])
def test_who_leaves_the_pass_that_was_resumed_is_told_that_its_count_may_be_wrong(passes: int) -> None:
    """Not where the passes before ended so, too: then it is given no more than those."""

    def loop(counts: LoopCounts, begin: int, stop: int) -> int:
        data: DataLoader[Any] = DataLoader(TensorDataset(torch.arange(20)))
        share, steps = share_loader(data, 0, 1, seed=0, counts=counts), begin
        for _ in range(3):
            for place, _ in enumerate(share):
                if place == 5:
                    break
                steps += not counts.take_step()
                if steps == stop:
                    return steps
        return steps

    counts, stop = LoopCounts(), 5 * passes + 3
    loop(counts, 0, stop)
    later = LoopCounts()
    later.begin_at(stop, LoopPosition(counts.passes))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        steps = loop(later, stop, -1)
    if passes:
        assert (steps, caught) == (15, [])
    else:
        assert steps == 15 + 3, "it cannot be known that the first pass would be left at the fifth batch"
        assert "resumed at batch 3" in str(caught[0].message)
