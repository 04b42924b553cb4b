"""Every chunk is done once, whoever asks and whoever is lost; the slow do not hold up the fast."""

import heapq
import math
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from cutset.ps.sandblaster.coordinator import CHUNKS
from cutset.ps.sandblaster.work_queue import COPIES, Chunk, Chunks


def all_of(chunks, who):
    """What one replica is given that does everything at once."""
    found = []
    while (chunk := chunks.next(who)) is not None:
        found.append(chunk)
        assert chunks.done(who, chunk)
    return found


class Handing(RuleBasedStateMachine):
    """Replicas ask, are done, late and lost in any order, beside a plain account of it all."""

    def __init__(self):
        super().__init__()
        self.count, self.copies = 13, COPIES
        self.chunks = Chunks(self.count, copies=self.copies)
        self.held = {}  # by chunk: who is at it, as it is known
        self.late = []  # chunks that others were first with, which come nevertheless
        self.done = {}
        self.backups = 0

    @rule(who=st.sampled_from("abcd"))
    def asks(self, who):
        fresh = set(range(self.count)) - self.held.keys() - self.done.keys()
        chunk = self.chunks.next(who)
        if chunk in fresh:
            self.held[chunk] = [who]
            return
        assert not fresh
        open_ = [by for by in self.held.values() if who not in by and len(by) < self.copies]
        if chunk is None:
            assert not open_
            return
        self.backups += 1
        assert who not in self.held[chunk]
        assert len(self.held[chunk]) == min(map(len, open_)) < self.copies
        self.held[chunk].append(who)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def is_done(self, data):
        chunk = data.draw(st.sampled_from(sorted(self.held)))
        who = data.draw(st.sampled_from(self.held[chunk]))
        assert self.chunks.done(who, chunk)
        self.late += [(other, chunk) for other in self.held.pop(chunk) if other != who]
        self.done[chunk] = who

    @precondition(lambda self: self.late)
    @rule(data=st.data())
    def is_done_late(self, data):
        who, chunk = self.late.pop(data.draw(st.integers(0, len(self.late) - 1)))
        first = chunk not in self.done
        assert self.chunks.done(who, chunk) == first
        if first:  # what another had done first was lost
            self.late += [(other, chunk) for other in self.held.pop(chunk, []) if other != who]
            self.done[chunk] = who

    @rule(who=st.sampled_from("abcd"))
    def is_lost(self, who):
        self.chunks.lost(who)
        self.held = {chunk: [other for other in by if other != who] for chunk, by in self.held.items()}
        self.held = {chunk: by for chunk, by in self.held.items() if by}
        self.late = [one for one in self.late if one[0] != who]
        self.done = {chunk: by for chunk, by in self.done.items() if by != who}

    @invariant()
    def agrees(self):
        assert self.chunks.complete == (len(self.done) == self.count)
        assert self.chunks.taken == Counter(self.done.values())
        assert self.chunks.backups == self.backups

    def teardown(self):
        """One that comes when all others are lost can do it all."""
        for who in "abcd":
            self.is_lost(who)
        assert sorted(all_of(self.chunks, "new")) == list(range(self.count))
        assert self.chunks.complete


TestHanding = Handing.TestCase


@given(st.integers(0, 60), st.integers(1, 5), st.integers(1, 3), st.randoms(use_true_random=False))
def test_everything_is_done_exactly_once_whoever_asks(count, replicas, copies, chance):
    chunks, working, first = Chunks(count, copies=copies), {}, Counter()
    while not chunks.complete:
        who = str(chance.randrange(replicas))
        if who in working:
            chunk = working.pop(who)
            first[chunk] += chunks.done(who, chunk)
        elif (chunk := chunks.next(who)) is not None:
            working[who] = chunk
    assert first == Counter(range(count))
    assert sum(chunks.taken.values()) == count
    assert chunks.next("0") is None


def test_nothing_is_complete_at_once():
    assert Chunks(0).complete
    assert Chunks(0).next("a") is None
    assert not Chunks(1).complete


def test_one_replica_is_given_consecutive_chunks():
    assert all_of(Chunks(20), "a") == list(range(20))


def test_a_second_replica_begins_in_the_middle():
    """And a third in the middle of what is most."""
    chunks = Chunks(17, copies=1)
    assert [chunks.next(who) for who in "abababacac"] == [0, 9, 1, 10, 2, 11, 3, 6, 4, 7]
    assert [chunks.next(who) for who in "bbbbb"] == [12, 13, 14, 15, 16]
    assert [chunks.next(who) for who in "bcb"] == [5, 8, None]


@given(st.integers(2, 8), st.randoms(use_true_random=False))
@settings(max_examples=30)
def test_replicas_of_one_speed_have_long_runs(replicas, chance):
    """A few for each, of 32 chunks."""
    chunks, names = Chunks(32 * replicas, copies=1), [str(n) for n in range(replicas)]
    given_ = {name: [] for name in names}
    for _ in range(32):
        for name in chance.sample(names, replicas):
            given_[name].append(chunks.next(name))
    assert sorted(chunk for those in given_.values() for chunk in those) == list(range(32 * replicas))
    runs = sum(b != a + 1 for those in given_.values() for a, b in pairwise([-2, *those]))
    assert runs <= 5 * replicas


def test_backups_are_only_given_out_when_nothing_fresh_is_left():
    chunks = Chunks(3)
    assert [chunks.next("a"), chunks.next("b")] == [0, 2]
    assert (chunks.next("b"), chunks.backups) == (1, 0)
    assert (chunks.next("b"), chunks.backups) == (0, 1)


def test_a_backup_is_of_what_has_waited_longest_and_has_the_fewest_copies():
    chunks = Chunks(3, copies=3)
    assert [chunks.next(who) for who in "abc"] == [0, 2, 1]
    assert [chunks.next("d") for _ in range(4)] == [0, 2, 1, None]
    assert [chunks.next("a") for _ in range(3)] == [2, 1, None]
    assert chunks.backups == 5


def test_nobody_is_given_what_it_is_at():
    chunks = Chunks(1, copies=9)
    assert (chunks.next("a"), chunks.next("a"), chunks.next("b"), chunks.next("b")) == (0, None, 0, None)


@pytest.mark.parametrize("copies", [1, 2, 3])
def test_no_more_copies_than_are_allowed(copies):
    chunks = Chunks(1, copies=copies)
    assert [chunks.next(who) for who in "abcd"] == [0] * copies + [None] * (4 - copies)
    assert chunks.backups == copies - 1
    chunks.lost("a")
    assert [chunks.next(who) for who in "de"] == [0, None]


def test_who_is_first_counts():
    chunks = Chunks(2)
    assert [chunks.next(who) for who in "aba"] == [0, 1, 1]
    assert chunks.done("a", 1)
    assert not chunks.done("b", 1)
    assert not chunks.done("b", 1)
    assert chunks.taken == {"a": 1}
    assert not chunks.complete
    assert chunks.done("a", 0)
    assert chunks.complete


@pytest.mark.parametrize("chunk", [-1, 2, 100])
def test_a_chunk_that_is_not_there_does_not_count(chunk):
    chunks = Chunks(2)
    assert not chunks.done("a", chunk)
    assert chunks.taken == {}


def test_what_a_lost_replica_had_done_and_had_at_hand_comes_again():
    chunks = Chunks(6)
    assert [chunks.next(who) for who in "aab"] == [0, 1, 4]
    chunks.done("a", 0)
    chunks.done("b", 4)
    chunks.lost("a")
    assert chunks.taken == {"b": 1}
    assert [chunks.next("b") for _ in range(4)] == [1, 0, 5, 3]
    assert chunks.backups == 0


def test_what_another_has_at_hand_need_not_come_again():
    chunks = Chunks(1)
    assert [chunks.next(who) for who in "ab"] == [0, 0]
    chunks.lost("a")
    assert chunks.next("b") is None
    assert chunks.done("b", 0)


def test_losing_one_that_had_nothing_changes_nothing():
    chunks = Chunks(2)
    chunks.next("a")
    chunks.lost("b")
    assert (chunks.next("a"), chunks.backups) == (1, 0)


def test_what_is_lost_twice_comes_once():
    """Two had a chunk; the first was done with it and lost, then the second."""
    chunks = Chunks(1, copies=2)
    assert [chunks.next(who) for who in "ab"] == [0, 0]
    assert chunks.done("a", 0)
    chunks.lost("a")
    assert chunks.done("b", 0)
    chunks.lost("b")
    assert (chunks.next("c"), chunks.backups) == (0, 1)
    assert chunks.next("c") is None
    assert (chunks.next("d"), chunks.backups) == (0, 2)
    assert chunks.next("e") is None


def test_a_chunk_says_which_portions_it_has():
    assert Chunk(1, 7, 0, level=2, index=1, first=100, count=6).portions == range(104, 106)
    assert Chunk(1, 7, 0, level=0, index=3, first=0, count=6).portions == range(3, 4)


# Simulated: replicas that take so long for one chunk, and ask for the next at once.


def makespan(chunks, pace):
    """Until all are done, each replica going on as soon as it is done; pace: of each, seconds for a chunk.

    One that was given nothing does not ask again: nothing comes back while nobody is lost.
    """
    events, working, now = [(0.0, n) for n in range(len(pace))], {}, 0.0
    while not chunks.complete:
        now, n = heapq.heappop(events)
        if n in working:
            chunks.done(str(n), working.pop(n))
        chunk = chunks.next(str(n))
        if chunk is not None:
            working[n] = chunk
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


CREWS = pytest.mark.parametrize(("replicas", "slow"), [(4, 1), (2000, 1), (2000, 200)])


@CREWS
def test_small_chunks_and_backups_end_soon(replicas, slow):
    count, pace = CHUNKS * replicas, paces(replicas, slow)
    assert makespan(Chunks(count), pace) <= 1.3 * ideal(count, pace)


@CREWS
def test_whole_shares_without_backups_wait_for_the_slowest(replicas, slow):
    pace = paces(replicas, slow)
    chunks = Chunks(replicas, copies=1)
    assert makespan(chunks, pace) >= 3 * ideal(replicas, pace)
    assert chunks.backups == 0


def test_small_chunks_alone_and_backups_alone_help_less_than_both():
    pace = [16.0, 1.0, 1.0, 1.0]
    small, small_alone = makespan(Chunks(4 * CHUNKS), pace), makespan(Chunks(4 * CHUNKS, copies=1), pace)
    backups_alone, neither = makespan(Chunks(4), pace) * CHUNKS, makespan(Chunks(4, copies=1), pace) * CHUNKS
    assert (small, small_alone, backups_alone, neither) == (21, 32, 32, 256)


def test_one_that_stands_still_holds_nobody_up():
    pace = [1.0, 1.0, 1.0, 1e9]
    assert makespan(Chunks(64), pace) <= 1.1 * ideal(64, pace)
