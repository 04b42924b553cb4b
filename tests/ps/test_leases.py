"""Every batch is handed out once, whatever happens; what was lost is handed out again, and nothing is held twice."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cutset.errors import NetworkError
from cutset.tools.training.batch_leases import LEASE_S, NOTHING, Lease, Leases


def numbers(lease):
    return range(lease.first, lease.first + lease.count)


def all_of(leases, start, chunk=0):
    """Everything that one start is given if it goes on and does it all."""
    found = []
    while (lease := leases.ask(start, chunk, pace_s=1e-3)) not in (NOTHING, None):
        found += numbers(lease)
        chunk += 1
        leases.done(start, len(found))
    return found


def test_one_replica_is_given_all_in_order():
    leases = Leases(1000)
    assert all_of(leases, (0, 0)) == list(range(1000))
    assert leases.over
    assert leases.taken == {0: 1000}
    assert leases.repeated == {}


def test_ranges_are_large_first_and_single_at_the_end():
    leases, sizes = Leases(4000), []
    for chunk in range(1000):
        for replica in range(2):
            lease = leases.ask((replica, 0), chunk, pace_s=1e-6)
            sizes.append(lease.count)
        if not lease.count:
            break
    sizes = sizes[: sizes.index(0)]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] == 500  # an eighth of all, as the first to ask knows of no other
    assert sizes[1] == 218
    assert sizes[-10:] == [1] * 10
    assert len(sizes) < 130


def test_a_range_takes_no_longer_than_it_may():
    leases = Leases(10_000)
    assert leases.ask((0, 0), 0).count == 1  # nothing is known of its pace
    assert leases.ask((0, 0), 1, pace_s=LEASE_S / 7).count == 7
    assert leases.ask((0, 0), 2, pace_s=60.0).count == 1
    assert leases.ask((0, 0), 3, pace_s=0.0).count == (10_000 - 9) // 8


def test_a_question_has_one_answer():
    leases = Leases(100)
    first = leases.ask((0, 0), 0, pace_s=1e-3)
    assert leases.ask((1, 0), 0, pace_s=1e-3).first == first.count
    assert leases.ask((0, 0), 0, pace_s=5.0) == first
    all_of(leases, (1, 0), 1)
    assert leases.ask((0, 0), 1) == NOTHING
    leases.lost((1, 0))
    assert leases.ask((0, 0), 1) == NOTHING


def test_a_question_that_leaves_one_out_is_an_error():
    with pytest.raises(NetworkError, match=r"E580: replica 3 asks for its range 2 .* given 0"):
        Leases(10).ask((3, 1), 2)


def test_who_is_idle_waits_for_what_others_may_lose():
    leases = Leases(2)
    assert leases.ask((0, 0), 0) == Lease(0, 1)
    assert leases.ask((1, 0), 0) == Lease(1, 1)
    assert leases.ask((0, 0), 1) == NOTHING
    leases.done((0, 0), 1)
    assert leases.ask((0, 0), 2, idle=True) is None
    assert leases.lost((1, 0)) == 1
    assert leases.ask((0, 0), 2, idle=True) == Lease(1, 1)
    leases.done((0, 0), 2)
    assert leases.ask((0, 0), 3) == NOTHING
    assert leases.over
    assert leases.ask((0, 0), 4, idle=True) == NOTHING
    assert leases.ask((1, 1), 0) == NOTHING
    assert (leases.taken, leases.repeated) == ({0: 2}, {1: 1})


def test_who_leaves_is_given_nothing_more_and_waits_for_nobody():
    leases = Leases(100)
    held = leases.ask((1, 0), 0)
    leases.leave((1, 0))
    assert leases.ask((1, 0), 1) == NOTHING
    leases.done((1, 0), held.count)
    assert leases.ask((1, 0), 2, idle=True) == NOTHING
    assert all_of(leases, (0, 0)) == list(range(held.count, 100))
    assert leases.over


def test_what_was_done_is_not_taken_back():
    leases = Leases(800)
    (held,) = [leases.ask((0, 0), 0, pace_s=1e-6)]
    leases.done((0, 0), 30)
    leases.done((0, 0), 20)  # a later word of another machine
    assert leases.lost((0, 0)) == held.count - 30
    assert leases.ask((1, 0), 0, pace_s=1e-6).first == 30
    assert leases.taken == {0: 30}


def test_a_run_that_goes_on_begins_where_it_was():
    leases = Leases(50, first=20)
    assert all_of(leases, (0, 0)) == list(range(20, 50))
    assert Leases(20, first=20).over


EVENT = st.tuples(st.sampled_from(["ask", "ask", "ask", "done", "idle", "lose", "leave"]), st.integers(0, 3))


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 60), st.lists(EVENT, max_size=150), st.lists(st.floats(0, 1), min_size=1))
def test_nothing_is_held_twice_or_forgotten(batches, events, paces):
    """A model beside it: who holds which numbers undone, and which are done for good."""
    leases = Leases(batches)
    times, chunks = [0] * 4, [0] * 4
    held = [[] for _ in range(4)]  # undone, in order
    counts, done = [0] * 4, []

    def check():
        undone = [n for mine in held for n in mine]
        assert len(undone) == len(set(undone))
        assert not set(undone) & set(done)
        assert leases.left == batches - len(undone) - len(done)
        assert leases.over == (len(done) == batches)

    def take(replica, *, idle=False, pace_s=None):
        lease = leases.ask((replica, times[replica]), chunks[replica], idle=idle, pace_s=pace_s)
        if lease is not None:
            assert leases.ask((replica, times[replica]), chunks[replica]) == lease
            chunks[replica] += 1
            held[replica] += numbers(lease)
        return lease

    def finish(replica, count):
        done.extend(held[replica][:count])
        del held[replica][:count]
        counts[replica] += count
        leases.done((replica, times[replica]), counts[replica])

    def lose(replica):
        assert leases.lost((replica, times[replica])) == len(held[replica])
        held[replica].clear()
        times[replica] += 1
        chunks[replica] = counts[replica] = 0

    for at, (event, replica) in enumerate(events):
        match event:
            case "ask":
                take(replica, pace_s=paces[at % len(paces)])
            case "idle":
                finish(replica, len(held[replica]))
                take(replica, idle=True)
            case "done":
                finish(replica, len(held[replica]) // 2)
            case "lose":
                lose(replica)
            case "leave":
                leases.leave((replica, times[replica]))
        check()
    for replica in range(1, 4):
        lose(replica)
    lose(0)  # which may have been leaving
    while (lease := take(0)) != NOTHING:
        finish(0, lease.count)
    check()
    assert sorted(done) == list(range(batches))
    assert sum(leases.taken.values()) == batches


def finish_times(batches, paces_s):
    """When replicas of these paces end, and what each took: they ask one range ahead, as workers do."""
    leases, clock, known = Leases(batches), [0.0] * len(paces_s), [[] for _ in paces_s]
    chunks, took = [0] * len(paces_s), [0] * len(paces_s)
    going = set(range(len(paces_s)))
    while going:
        replica = min(going, key=lambda r: (clock[r], r))
        while len(known[replica]) < 2:
            pace_s = paces_s[replica] if took[replica] else None
            lease = leases.ask((replica, 0), chunks[replica], pace_s=pace_s)
            chunks[replica] += 1
            if lease == NOTHING:
                break
            known[replica].append(lease)
        if not known[replica]:
            going.remove(replica)
            continue
        lease = known[replica].pop(0)
        clock[replica] += lease.count * paces_s[replica]
        took[replica] += lease.count
        leases.done((replica, 0), took[replica])
    assert leases.over
    return clock, took


def test_a_replica_three_times_slower_takes_a_third_and_all_end_together():
    clock, took = finish_times(7000, [1e-3, 1e-3, 3e-3])
    assert took[0] + took[1] == pytest.approx(6000, rel=0.01)
    assert max(clock) - min(clock) <= 2 * 3e-3 + 1e-9  # what it had asked for ahead
    assert max(clock) == pytest.approx(3.0, rel=0.01)


def test_equal_replicas_share_evenly():
    _, took = finish_times(1000, [1e-2] * 4)
    assert took == [pytest.approx(250, abs=10)] * 4
