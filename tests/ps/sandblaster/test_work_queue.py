"""Every group is done once, whoever asks and whoever is lost; the slow do not hold up the fast."""

import heapq
import math
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from cutset.ps.sandblaster.evaluation import GROUPS_PER_REPLICA
from cutset.ps.sandblaster.work_queue import MAX_COPIES, PortionGroup, WorkQueue


def all_of(queue, who):
    """What one replica is given that does everything at once."""
    found = []
    while (group := queue.take(who)) is not None:
        found.append(group)
        assert queue.finish(who, group)
    return found


class QueueMachine(RuleBasedStateMachine):
    """Replicas ask, are done, late and lost in any order, beside a plain account of it all."""

    def __init__(self):
        super().__init__()
        self.count, self.copies = 13, MAX_COPIES
        self.queue = WorkQueue(self.count, copies=self.copies)
        self.held = {}  # by group: who is at it, as it is known
        self.late = []  # queue that others were first with, which come nevertheless
        self.done = {}
        self.backups = 0

    @rule(who=st.sampled_from("abcd"))
    def asks(self, who):
        fresh = set(range(self.count)) - self.held.keys() - self.done.keys()
        group = self.queue.take(who)
        if group in fresh:
            self.held[group] = [who]
            return
        assert not fresh
        open_ = [by for by in self.held.values() if who not in by and len(by) < self.copies]
        if group is None:
            assert not open_
            return
        self.backups += 1
        assert who not in self.held[group]
        assert len(self.held[group]) == min(map(len, open_)) < self.copies
        self.held[group].append(who)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def is_done(self, data):
        group = data.draw(st.sampled_from(sorted(self.held)))
        who = data.draw(st.sampled_from(self.held[group]))
        assert self.queue.finish(who, group)
        self.late += [(other, group) for other in self.held.pop(group) if other != who]
        self.done[group] = who

    @precondition(lambda self: self.late)
    @rule(data=st.data())
    def is_done_late(self, data):
        who, group = self.late.pop(data.draw(st.integers(0, len(self.late) - 1)))
        first = group not in self.done
        assert self.queue.finish(who, group) == first
        if first:  # what another had done first was lost
            self.late += [(other, group) for other in self.held.pop(group, []) if other != who]
            self.done[group] = who

    @rule(who=st.sampled_from("abcd"))
    def is_lost(self, who):
        self.queue.remove_replica(who)
        self.held = {group: [other for other in by if other != who] for group, by in self.held.items()}
        self.held = {group: by for group, by in self.held.items() if by}
        self.late = [one for one in self.late if one[0] != who]
        self.done = {group: by for group, by in self.done.items() if by != who}

    @invariant()
    def agrees(self):
        assert self.queue.is_complete == (len(self.done) == self.count)
        assert self.queue.groups_finished == Counter(self.done.values())
        assert self.queue.backups == self.backups

    def teardown(self):
        """One that comes when all others are lost can do it all."""
        for who in "abcd":
            self.is_lost(who)
        assert sorted(all_of(self.queue, "new")) == list(range(self.count))
        assert self.queue.is_complete


TestWorkQueue = QueueMachine.TestCase


@given(st.integers(0, 60), st.integers(1, 5), st.integers(1, 3), st.randoms(use_true_random=False))
def test_everything_is_done_exactly_once_whoever_asks(count, replicas, copies, chance):
    queue, working, first = WorkQueue(count, copies=copies), {}, Counter()
    while not queue.is_complete:
        who = str(chance.randrange(replicas))
        if who in working:
            group = working.pop(who)
            first[group] += queue.finish(who, group)
        elif (group := queue.take(who)) is not None:
            working[who] = group
    assert first == Counter(range(count))
    assert sum(queue.groups_finished.values()) == count
    assert queue.take("0") is None


def test_nothing_is_complete_at_once():
    assert WorkQueue(0).is_complete
    assert WorkQueue(0).take("a") is None
    assert not WorkQueue(1).is_complete


def test_one_replica_gets_consecutive_groups():
    assert all_of(WorkQueue(20), "a") == list(range(20))


def test_a_second_replica_begins_in_the_middle():
    """And a third in the middle of what is most."""
    queue = WorkQueue(17, copies=1)
    assert [queue.take(who) for who in "abababacac"] == [0, 9, 1, 10, 2, 11, 3, 6, 4, 7]
    assert [queue.take(who) for who in "bbbbb"] == [12, 13, 14, 15, 16]
    assert [queue.take(who) for who in "bcb"] == [5, 8, None]


@given(st.integers(2, 8), st.randoms(use_true_random=False))
@settings(max_examples=30)
def test_replicas_of_one_speed_have_long_runs(replicas, chance):
    """A few for each, of 32 queue."""
    queue, names = WorkQueue(32 * replicas, copies=1), [str(n) for n in range(replicas)]
    given_ = {name: [] for name in names}
    for _ in range(32):
        for name in chance.sample(names, replicas):
            given_[name].append(queue.take(name))
    assert sorted(group for those in given_.values() for group in those) == list(range(32 * replicas))
    runs = sum(b != a + 1 for those in given_.values() for a, b in pairwise([-2, *those]))
    assert runs <= 5 * replicas


def test_backups_are_only_given_out_when_nothing_fresh_is_left():
    queue = WorkQueue(3)
    assert [queue.take("a"), queue.take("b")] == [0, 2]
    assert (queue.take("b"), queue.backups) == (1, 0)
    assert (queue.take("b"), queue.backups) == (0, 1)


def test_a_backup_is_of_what_has_waited_longest_and_has_the_fewest_copies():
    queue = WorkQueue(3, copies=3)
    assert [queue.take(who) for who in "abc"] == [0, 2, 1]
    assert [queue.take("d") for _ in range(4)] == [0, 2, 1, None]
    assert [queue.take("a") for _ in range(3)] == [2, 1, None]
    assert queue.backups == 5


def test_no_replica_gets_a_group_that_it_works_at():
    queue = WorkQueue(1, copies=9)
    assert (queue.take("a"), queue.take("a"), queue.take("b"), queue.take("b")) == (0, None, 0, None)


@pytest.mark.parametrize("copies", [1, 2, 3])
def test_no_more_copies_than_are_allowed(copies):
    queue = WorkQueue(1, copies=copies)
    assert [queue.take(who) for who in "abcd"] == [0] * copies + [None] * (4 - copies)
    assert queue.backups == copies - 1
    queue.remove_replica("a")
    assert [queue.take(who) for who in "de"] == [0, None]


def test_who_is_first_counts():
    queue = WorkQueue(2)
    assert [queue.take(who) for who in "aba"] == [0, 1, 1]
    assert queue.finish("a", 1)
    assert not queue.finish("b", 1)
    assert not queue.finish("b", 1)
    assert queue.groups_finished == {"a": 1}
    assert not queue.is_complete
    assert queue.finish("a", 0)
    assert queue.is_complete


@pytest.mark.parametrize("group", [-1, 2, 100])
def test_an_unknown_group_does_not_count(group):
    queue = WorkQueue(2)
    assert not queue.finish("a", group)
    assert queue.groups_finished == {}


def test_what_a_lost_replica_had_and_has_done_is_handed_out_again():
    queue = WorkQueue(6)
    assert [queue.take(who) for who in "aab"] == [0, 1, 4]
    queue.finish("a", 0)
    queue.finish("b", 4)
    queue.remove_replica("a")
    assert queue.groups_finished == {"b": 1}
    assert [queue.take("b") for _ in range(4)] == [1, 0, 5, 3]
    assert queue.backups == 0


def test_what_another_replica_works_at_is_not_handed_out_again():
    queue = WorkQueue(1)
    assert [queue.take(who) for who in "ab"] == [0, 0]
    queue.remove_replica("a")
    assert queue.take("b") is None
    assert queue.finish("b", 0)


def test_losing_one_that_had_nothing_changes_nothing():
    queue = WorkQueue(2)
    queue.take("a")
    queue.remove_replica("b")
    assert (queue.take("a"), queue.backups) == (1, 0)


def test_what_is_lost_twice_comes_once():
    """Two had a group; the first was done with it and lost, then the second."""
    queue = WorkQueue(1, copies=2)
    assert [queue.take(who) for who in "ab"] == [0, 0]
    assert queue.finish("a", 0)
    queue.remove_replica("a")
    assert queue.finish("b", 0)
    queue.remove_replica("b")
    assert (queue.take("c"), queue.backups) == (0, 1)
    assert queue.take("c") is None
    assert (queue.take("d"), queue.backups) == (0, 2)
    assert queue.take("e") is None


def test_a_group_knows_its_portions():
    assert PortionGroup(1, 7, 0, level=2, index=1, first=100, count=6).portions == range(104, 106)
    assert PortionGroup(1, 7, 0, level=0, index=3, first=0, count=6).portions == range(3, 4)


# Simulated: replicas that take so long for one group, and ask for the next at once.


def simulate_makespan(queue, pace):
    """Until all are done, each replica going on as soon as it is done; pace: of each, seconds for a group.

    One that was given nothing does not ask again: nothing comes back while nobody is lost.
    """
    events, working, now = [(0.0, n) for n in range(len(pace))], {}, 0.0
    while not queue.is_complete:
        now, n = heapq.heappop(events)
        if n in working:
            queue.finish(str(n), working.pop(n))
        group = queue.take(str(n))
        if group is not None:
            working[n] = group
            heapq.heappush(events, (now + pace[n], n))
    return now


def ideal(count, pace):
    """If work could be divided at will."""
    return count / math.fsum(1 / one for one in pace)


def paces(replicas, slow):
    """The slow ones take five times as long; they are spread among the others."""
    found = [1.0] * replicas
    for n in range(slow):
        found[n * replicas // slow] = 5.0
    return found


REPLICAS = pytest.mark.parametrize(("replicas", "slow"), [(4, 1), (2000, 1), (2000, 200)])


@REPLICAS
def test_small_groups_and_backups_end_soon(replicas, slow):
    count, pace = GROUPS_PER_REPLICA * replicas, paces(replicas, slow)
    assert simulate_makespan(WorkQueue(count), pace) <= 1.3 * ideal(count, pace)


@REPLICAS
def test_whole_shares_without_backups_wait_for_the_slowest(replicas, slow):
    pace = paces(replicas, slow)
    queue = WorkQueue(replicas, copies=1)
    assert simulate_makespan(queue, pace) >= 3 * ideal(replicas, pace)
    assert queue.backups == 0


def test_small_groups_alone_and_backups_alone_help_less_than_both():
    pace = [16.0, 1.0, 1.0, 1.0]
    small, small_alone = (
        simulate_makespan(WorkQueue(4 * GROUPS_PER_REPLICA), pace),
        simulate_makespan(WorkQueue(4 * GROUPS_PER_REPLICA, copies=1), pace),
    )
    backups_alone, neither = (
        simulate_makespan(WorkQueue(4), pace) * GROUPS_PER_REPLICA,
        simulate_makespan(WorkQueue(4, copies=1), pace) * GROUPS_PER_REPLICA,
    )
    assert (small, small_alone, backups_alone, neither) == (21, 32, 32, 256)


def test_a_replica_that_stands_still_holds_nobody_up():
    pace = [1.0, 1.0, 1.0, 1e9]
    assert simulate_makespan(WorkQueue(64), pace) <= 1.1 * ideal(64, pace)
