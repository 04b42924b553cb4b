"""Every batch of every part counts once on every slice, though nobody knows where parts end, and replicas are lost."""

from dataclasses import dataclass, field

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cutset.models.task import Data
from cutset.runtime.channel.message import Message
from cutset.tools.leases.batch_leases import NO_BATCHES, Lease
from cutset.tools.leases.part_leases import OPEN, RESTS, PartLeases
from cutset.tools.leases.stream_progress import StreamProgress, pack_data
from cutset.tools.samples.part_order import PartCounts
from cutset.tools.samples.part_samples import locate_batch, number_batch

BATCH = 3
SLICES = range(2)


@dataclass
class Run:
    """Parts of some lengths in some epochs, and what two slices count of their samples."""

    lengths: list[int]
    epochs: int
    position: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    rests: dict[str, list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        remaining = {int(track): spans for track, spans in self.position.items()}
        self.leases = PartLeases(len(self.lengths), self.epochs, remaining)
        counts = PartCounts(len(self.lengths), sum(self.lengths), "the data")
        self.stream = StreamProgress(self.leases, counts, BATCH, "the data", rests=self.rests)
        self.counts = [dict[tuple[int, int], int]() for _ in SLICES]  # by slice: by track and place
        self.held: dict[tuple[int, int], list[tuple[Lease, Data | None]]] = {}
        self.requests: dict[tuple[int, int], int] = {}

    def take(self, start: tuple[int, int]) -> bool:
        """Lease once, and tell of the ends that are found; return whether there was something."""
        number = self.requests.get(start, 0)
        lease = self.leases.lease(start, number, pace_s=0.08, idle=True)
        if lease is None or lease == NO_BATCHES:
            return False
        self.requests[start] = number + 1
        reply = self.stream.attach_rest(Message("lease", body={"first": lease.first, "count": lease.count}))
        rest = Data(reply.tensors) if reply.tensors else None
        track, first = locate_batch(lease.first)
        if track != RESTS:
            length = self.lengths[track % len(self.lengths)]
            if first + lease.count > length // BATCH:
                places = torch.tensor([(track << 16) + place for place in range(length // BATCH * BATCH, length)])
                ended = Message("part_ended", body={"track": track, "batches": length // BATCH})
                self.stream.end_part(pack_data(ended, Data((places,)) if len(places) else None))
                lease = lease.part(0, max(0, min(lease.count, length // BATCH - first)))
        self.held.setdefault(start, []).append((lease, rest))
        return True

    def lose(self, start: tuple[int, int], pushed: list[int]) -> None:
        """pushed: to each slice, how many batches."""
        batches = [(lease, rest, n) for lease, rest in self.held.pop(start, []) for n in range(lease.count)]
        for number, count in enumerate(pushed):
            for lease, rest, n in batches[:count]:
                for sample in self.samples(lease.first + n, rest) if number not in lease.skips else ():
                    self.counts[number][sample] = self.counts[number].get(sample, 0) + 1
        self.leases.retire(start)
        self.leases.reclaim(start, {number: min(count, len(batches)) for number, count in enumerate(pushed)})

    def samples(self, number: int, rest: Data | None) -> list[tuple[int, int]]:
        if rest is not None:
            return [divmod(sample, 1 << 16) for sample in rest.inputs[0].tolist()]
        track, position = locate_batch(number)
        return [(track, position * BATCH + n) for n in range(BATCH)]

    def finish(self, starts: int) -> None:
        """Let new starts of replicas take all there is."""
        names = [(replica, 1000) for replica in range(starts)]
        while sum(self.take(start) for start in names):
            pass
        for start in names:
            self.lose(start, [1 << 20] * len(SLICES))

    def list_missing(self, counts: dict[tuple[int, int], int]) -> int:
        """Return how many samples were not counted; none was twice."""
        assert set(counts.values()) <= {1}
        return self.epochs * sum(self.lengths) - len(counts)


lengths = st.lists(st.integers(0, 20), min_size=1, max_size=4)
losses = st.lists(st.tuples(st.integers(0, 2), st.lists(st.integers(0, 9), min_size=2, max_size=2)), max_size=8)


@given(lengths, st.integers(1, 2), losses)
@settings(deadline=None, max_examples=150)
def test_every_sample_counts_once_on_every_slice(
    found: list[int], epochs: int, lost: list[tuple[int, list[int]]]
) -> None:
    run = Run(found, epochs)
    for incarnation, (replica, pushed) in enumerate(lost):
        for other in range(3):
            run.take((other, incarnation))
            run.take((replica, incarnation))
        run.lose((replica, incarnation), pushed)
        for other in {0, 1, 2} - {replica}:
            run.lose((other, incarnation), [1 << 20] * 2)
    run.finish(3)
    assert run.leases.all_done
    assert all(run.list_missing(counts) == epochs * sum(found) % BATCH for counts in run.counts)


@given(lengths, losses)
@settings(deadline=None, max_examples=150)
def test_a_run_that_resumes_goes_on_where_the_parts_were(found: list[int], lost: list[tuple[int, list[int]]]) -> None:
    """With other replicas, and one epoch more."""
    run = Run(found, 1)
    for incarnation, (replica, _) in enumerate(lost):
        run.take((replica, incarnation))
        run.take((replica, incarnation))
        run.lose((replica, incarnation), [1 << 20] * 2)
    position = run.stream.position()
    assert position.remaining is not None
    again = Run(found, 2, position.remaining, position.rests)
    again.counts = run.counts
    again.finish(2)
    assert all(again.list_missing(counts) == 2 * sum(found) % BATCH for counts in again.counts)


def test_a_replica_keeps_its_part_and_others_get_others() -> None:
    leases = PartLeases(3, 1, {})
    tracks = [[locate_batch(leases.lease((r, 0), n).first)[0] for r in range(3)] for n in range(2)]  # type: ignore[union-attr]
    assert tracks == [[0, 1, 2]] * 2
    leases.end(0, 2)
    assert leases.lease((0, 0), 2) == NO_BATCHES
    leases.retire((1, 0))
    assert leases.lease((0, 0), 3) == Lease(number_batch(1, 2), 1)


def track_of(leases: PartLeases, replica: int, number: int) -> int | None:
    lease = leases.lease((replica, 0), number)
    return None if lease in (None, NO_BATCHES) else locate_batch(lease.first)[0]  # type: ignore[union-attr]


def test_a_replica_reads_two_parts_in_turn_as_long_as_one_more_is_left_for_every_replica() -> None:
    """As one process reads a part, two read what a replica gets next."""
    leases = PartLeases(6, 1, {})
    found = [[track_of(leases, replica, number) for replica in range(2)] for number in range(4)]
    assert found == [[0, 1], [2, 3], [0, 1], [2, 3]], "[4 and 5 are left]"
    leases.end(0, 2)
    assert [track_of(leases, 0, number) for number in (4, 5)] == [2, 2]
    leases.end(2, 4)
    assert [track_of(leases, 0, number) for number in (6, 7)] == [4, 4]
    leases.end(4, 2)
    assert [track_of(leases, 0, number) for number in (8, 9)] == [5, 5]
    leases.end(5, 2)
    assert track_of(leases, 0, 10) is None
    assert [track_of(leases, 1, number) for number in (4, 5)] == [1, 3]


def test_a_part_that_is_left_in_pieces_is_read_in_its_order() -> None:
    """As a lost replica leaves it; and it counts once among those that are left."""
    leases = PartLeases(1, 1, {0: [(2, 1), (5, 1), (9, 100)]})
    found = [leases.lease((0, 0), number) for number in range(3)]
    assert [lease.first for lease in found if lease] == [2, 5, 9]
    leases = PartLeases(2, 1, {0: [(2, 1), (5, 1), (9, 100)]})
    assert [track_of(leases, 0, number) for number in range(3)] == [0, 0, 0]


def test_a_replica_reads_one_epoch_of_a_part_at_a_time() -> None:
    leases = PartLeases(2, 3, {})
    assert [track_of(leases, 0, number) for number in range(4)] == [0, 1, 0, 1]
    leases.end(0, 2)
    assert [track_of(leases, 0, number) for number in (4, 5, 6)] == [2, 1, 2]
    leases = PartLeases(1, 3, {})
    assert [track_of(leases, 0, number) for number in range(3)] == [0, 0, 0]


def test_several_read_a_part_where_there_are_fewer_than_replicas() -> None:
    leases = PartLeases(1, 1, {})
    found = [leases.lease((replica, 0), number) for number in range(2) for replica in range(2)]
    assert [lease.first for lease in found if lease] == [0, 1, 2, 3]


def test_after_an_early_end_nothing_is_leased_and_the_rest_of_the_stream_stays() -> None:
    leases = PartLeases(parts=2, epochs=1, remaining={})
    start = (0, 0)
    first = leases.lease(start, 0)
    assert first is not None
    leases.end_early(1)
    assert not leases.all_done
    assert leases.lease(start, 1) == NO_BATCHES
    leases.complete(start, first.count)
    assert leases.all_done
    assert leases.lease(start, 2, idle=True) == NO_BATCHES, "it ends"
    assert leases.list_remaining() == {0: [(first.count, OPEN - first.count)]}
