"""Every batch is handed out once, whatever happens; what was lost is handed out again, and nothing is held twice."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cutset.errors import NetworkError
from cutset.tools.leases.batch_leases import MAX_LEASE_S, NO_BATCHES, BatchLeases, Lease


def numbers(lease):
    return range(lease.first, lease.first + lease.count)


def all_of(leases, start, number=0):
    """Everything that one start is given if it goes on and does it all."""
    found = []
    while (lease := leases.lease(start, number, pace_s=1e-3)) not in (NO_BATCHES, None):
        found += numbers(lease)
        number += 1
        leases.complete(start, len(found))
    return found


def test_one_replica_gets_all_batches_in_order():
    leases = BatchLeases(1000)
    assert all_of(leases, (0, 0)) == list(range(1000))
    assert leases.all_done
    assert leases.completed == {0: 1000}
    assert leases.recomputed == {}


def test_leases_are_large_first_and_single_at_the_end():
    leases, sizes = BatchLeases(4000), []
    for number in range(1000):
        for replica in range(2):
            lease = leases.lease((replica, 0), number, pace_s=1e-6)
            sizes.append(lease.count)
        if not lease.count:
            break
    sizes = sizes[: sizes.index(0)]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] == 500  # an eighth of all, as the first to ask knows of no other
    assert sizes[1] == 218
    assert sizes[-10:] == [1] * 10
    assert len(sizes) < 130


def test_a_lease_lasts_no_longer_than_the_limit():
    leases = BatchLeases(10_000)
    assert leases.lease((0, 0), 0).count == 1  # nothing is known of its pace
    assert leases.lease((0, 0), 1, pace_s=MAX_LEASE_S / 7).count == 7
    assert leases.lease((0, 0), 2, pace_s=60.0).count == 1
    assert leases.lease((0, 0), 3, pace_s=0.0).count == (10_000 - 9) // 8


def test_a_request_has_one_answer():
    leases = BatchLeases(100)
    first = leases.lease((0, 0), 0, pace_s=1e-3)
    assert leases.lease((1, 0), 0, pace_s=1e-3).first == first.count
    assert leases.lease((0, 0), 0, pace_s=5.0) == first
    all_of(leases, (1, 0), 1)
    assert leases.lease((0, 0), 1) == NO_BATCHES
    leases.reclaim((1, 0))
    assert leases.lease((0, 0), 1) == NO_BATCHES


def test_a_skipped_request_is_an_error():
    with pytest.raises(NetworkError, match=r"E580: replica 3 makes its request 2 .* 0 were answered"):
        BatchLeases(10).lease((3, 1), 2)


def test_an_idle_replica_waits_for_batches_that_others_may_lose():
    leases = BatchLeases(2)
    assert leases.lease((0, 0), 0) == Lease(0, 1)
    assert leases.lease((1, 0), 0) == Lease(1, 1)
    assert leases.lease((0, 0), 1) == NO_BATCHES
    leases.complete((0, 0), 1)
    assert leases.lease((0, 0), 2, idle=True) is None
    assert leases.reclaim((1, 0)) == 1
    assert leases.lease((0, 0), 2, idle=True) == Lease(1, 1)
    leases.complete((0, 0), 2)
    assert leases.lease((0, 0), 3) == NO_BATCHES
    assert leases.all_done
    assert leases.lease((0, 0), 4, idle=True) == NO_BATCHES
    assert leases.lease((1, 1), 0) == NO_BATCHES
    assert (leases.completed, leases.recomputed) == ({0: 2}, {1: 1})


def test_a_retired_replica_gets_nothing_more_and_waits_for_nobody():
    leases = BatchLeases(100)
    held = leases.lease((1, 0), 0)
    leases.retire((1, 0))
    assert leases.lease((1, 0), 1) == NO_BATCHES
    leases.complete((1, 0), held.count)
    assert leases.lease((1, 0), 2, idle=True) == NO_BATCHES
    assert all_of(leases, (0, 0)) == list(range(held.count, 100))
    assert leases.all_done


def test_completed_batches_are_not_reclaimed():
    leases = BatchLeases(800)
    (held,) = [leases.lease((0, 0), 0, pace_s=1e-6)]
    leases.complete((0, 0), 30)
    leases.complete((0, 0), 20)  # a later word of another machine
    assert leases.reclaim((0, 0)) == held.count - 30
    assert leases.lease((1, 0), 0, pace_s=1e-6).first == 30
    assert leases.completed == {0: 30}


def test_a_resumed_run_leases_from_where_it_was():
    leases = BatchLeases(50, first=20)
    assert all_of(leases, (0, 0)) == list(range(20, 50))
    assert BatchLeases(20, first=20).all_done


EVENT = st.tuples(st.sampled_from(["ask", "ask", "ask", "done", "idle", "lose", "leave"]), st.integers(0, 3))


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 60), st.lists(EVENT, max_size=150), st.lists(st.floats(0, 1), min_size=1))
def test_no_batch_is_leased_twice_or_forgotten(batches, events, paces):
    """A model beside it: who holds which numbers undone, and which are done for good."""
    leases = BatchLeases(batches)
    incarnations, requests = [0] * 4, [0] * 4
    held = [[] for _ in range(4)]  # undone, in order
    counts, done = [0] * 4, []

    def check():
        undone = [n for mine in held for n in mine]
        assert len(undone) == len(set(undone))
        assert not set(undone) & set(done)
        assert leases.free_batches == batches - len(undone) - len(done)
        assert leases.all_done == (len(done) == batches)

    def take(replica, *, idle=False, pace_s=None):
        lease = leases.lease((replica, incarnations[replica]), requests[replica], idle=idle, pace_s=pace_s)
        if lease is not None:
            assert leases.lease((replica, incarnations[replica]), requests[replica]) == lease
            requests[replica] += 1
            held[replica] += numbers(lease)
        return lease

    def finish(replica, count):
        done.extend(held[replica][:count])
        del held[replica][:count]
        counts[replica] += count
        leases.complete((replica, incarnations[replica]), counts[replica])

    def lose(replica):
        assert leases.reclaim((replica, incarnations[replica])) == len(held[replica])
        held[replica].clear()
        incarnations[replica] += 1
        requests[replica] = counts[replica] = 0

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
                leases.retire((replica, incarnations[replica]))
        check()
    for replica in range(1, 4):
        lose(replica)
    lose(0)  # which may have been leaving
    while (lease := take(0)) != NO_BATCHES:
        finish(0, lease.count)
    check()
    assert sorted(done) == list(range(batches))
    assert sum(leases.completed.values()) == batches


def finish_times(batches, paces_s):
    """When replicas of these paces end, and what each took: they ask one range ahead, as workers do."""
    leases, clock, known = BatchLeases(batches), [0.0] * len(paces_s), [[] for _ in paces_s]
    requests, took = [0] * len(paces_s), [0] * len(paces_s)
    going = set(range(len(paces_s)))
    while going:
        replica = min(going, key=lambda r: (clock[r], r))
        while len(known[replica]) < 2:
            pace_s = paces_s[replica] if took[replica] else None
            lease = leases.lease((replica, 0), requests[replica], pace_s=pace_s)
            requests[replica] += 1
            if lease == NO_BATCHES:
                break
            known[replica].append(lease)
        if not known[replica]:
            going.remove(replica)
            continue
        lease = known[replica].pop(0)
        clock[replica] += lease.count * paces_s[replica]
        took[replica] += lease.count
        leases.complete((replica, 0), took[replica])
    assert leases.all_done
    return clock, took


def test_a_replica_three_times_slower_takes_a_third_and_all_end_together():
    clock, took = finish_times(7000, [1e-3, 1e-3, 3e-3])
    assert took[0] + took[1] == pytest.approx(6000, rel=0.01)
    assert max(clock) - min(clock) <= 2 * 3e-3 + 1e-9  # what it had asked for ahead
    assert max(clock) == pytest.approx(3.0, rel=0.01)


def test_equal_replicas_share_evenly():
    _, took = finish_times(1000, [1e-2] * 4)
    assert took == [pytest.approx(250, abs=10)] * 4
