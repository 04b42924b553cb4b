"""Which global batch a worker computes at each step: round-robin over the replicas, or as batches are leased."""

import time
from collections import deque
from collections.abc import Callable, Collection
from typing import NamedTuple, Protocol

import msgspec

from ...models.task import Data
from ...runtime.channel.mailbox import Mailbox, MessageKey
from ...runtime.channel.message import LAUNCHER, Message
from ..job.process_specs import TrainingSpec
from ..samples.part_samples import PartEnd, locate_batch
from .batch_leases import MAX_LEASE_S, Lease
from .stream_progress import pack_data, unpack_data

FEW = 2  # batches that may be leased ahead, however long they last
REPLICA_TIMEOUT_S = 7 * 24 * 3600.0  # for other replicas to complete their part of the training


class BatchAssignment(Protocol):
    """Maps the steps of a worker to global batches. start_step: the step to begin with."""

    start_step: int

    def batch_at(self, step: int) -> int | None:
        """Return the global batch of a step, None after the last step."""

    def peek(self, step: int) -> int | None:
        """Return the global batch of a step to come, None where it is not known yet; it may be soon then."""

    def skips(self, step: int) -> Collection[int]:
        """Return the numbers of the slices that have the gradient of the step's batch already."""

    def count_reached(self, step: int) -> int:
        """Return about how many batches all replicas together have computed by the end of a step."""

    def end_after(self, step: int) -> None:
        """Have no batch after this step; to be called before a later one is computed."""

    def wait_for_more(self) -> bool:
        """After the last step, wait until it is known whether more steps follow, from the new `start_step` on."""


class RoundRobinBatches:
    """Replica r of n computes batches r, n + r, 2n + r, ..."""

    def __init__(self, training: TrainingSpec, replica: int = 0, start_step: int = 0) -> None:
        self.start_step = start_step
        self._training, self._replica = training, replica
        self._steps = training.steps

    def batch_at(self, step: int) -> int | None:
        """Return batch r + step * n."""
        return self._replica + step * self._training.replicas if step < self._steps else None

    def peek(self, step: int) -> int | None:
        """Return the batch of a step to come; all are known."""
        return self.batch_at(step)

    def skips(self, step: int) -> Collection[int]:
        """Return none: what a lost replica had pushed is lost with all others' steps, or counts."""
        return ()

    def count_reached(self, step: int) -> int:
        """Return the batches computed if all replicas have made as many steps as this one."""
        return (step + 1) * self._training.replicas

    def end_after(self, step: int) -> None:
        """Have no batch after this step."""
        self._steps = min(self._steps, step + 1)

    def wait_for_more(self) -> bool:
        """Return False: every replica has a fixed number of steps."""
        return False


class _HeldLease(NamedTuple):
    """A lease with the step of its first batch. begun: batches of all that were leased before. rest: its samples."""

    step: int
    lease: Lease
    begun: int
    rest: Data | None

    @property
    def stop(self) -> int:
        """The step after that of its last batch."""
        return self.step + self.lease.count


class LeasedBatches:
    """Computes what the launcher leases (lease_server.py).

    The next lease is requested while half of one is left, and before that where a look ahead finds too little to read.
    All machines of a replica make the same requests, and get the same answers.

    Args:
        start_step: the step to begin with, unless another machine of the replica named a different one before.
        acknowledged: returns the number of steps whose pushes are durable on the shards.
        in_order: whether batches are numbered in the order in which they are leased; those of a stream are not.
    """

    def __init__(
        self,
        mailbox: Mailbox,
        start_step: int,
        acknowledged: Callable[[], int],
        *,
        in_order: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._in_order = in_order
        self._ends: dict[int, int] = {}  # by track of a stream, how many batches it has
        self._mailbox, self._acknowledged, self._clock = mailbox, acknowledged, clock
        self._leases = deque[_HeldLease]()  # from the previous step on
        self._request = 0  # the number of the request that waits for an answer, or is made next
        self._is_waiting, self._is_open = False, True
        mailbox.send(LAUNCHER, Message("join", body={"step": start_step}))
        reply = mailbox.wait([(LAUNCHER, "joined", 0, 0, 0)])
        self.start_step = self._next = int(reply.body["step"])  # `_next`: the first step without a lease
        self._pace_from = (self.start_step, clock())
        self._pace_s: float | None = None
        self._step = self.start_step  # the last one whose batch was asked for

    def batch_at(self, step: int) -> int | None:
        """Return the batch leased for a step; wait for the answer if it is not known yet."""
        self._step = step
        while step >= self._next and self._is_open:
            self._request_lease()
            self._take_lease()
        if step >= self._next:
            return None
        while self._leases[0].stop < step:
            self._leases.popleft()
        last = self._leases[-1]
        if step - last.step >= last.lease.count // 2 and self._is_open:
            self._request_lease()
        return self._find_batch(step)

    def peek(self, step: int) -> int | None:
        """Return the batch of a step to come, where it is leased already; else ask for it, unless that is early.

        What a replica holds beyond half a lease is no more than what it computes in MAX_LEASE_S, as a lease is, or
        than FEW batches: of those that last longer, two processes read one each.
        """
        ahead = step - self._step
        is_soon = self._pace_s is not None and (ahead <= FEW or ahead * self._pace_s <= MAX_LEASE_S)
        if step >= self._next and self._is_open and is_soon:
            self._request_lease()
            answer = self._mailbox.take(self._answer_key)
            if answer is not None:
                self._add_answer(answer)
        return self._find_batch(step) if step < self._next else None

    def skips(self, step: int) -> Collection[int]:
        """Return those that got the gradient of the step's batch from a replica that was lost."""
        return self._find_lease(step).lease.skips

    def rest(self, step: int) -> Data | None:
        """Return the samples of a step, where they are what is left of parts."""
        return self._find_lease(step).rest

    def end_part(self, number: int, end: PartEnd) -> None:
        """Tell the launcher that the part of a batch ends before it, and do without what was leased beyond."""
        track = locate_batch(number)[0]
        self._ends[track] = end.batches
        ended = Message("part_ended", body={"track": track, "batches": end.batches})
        self._mailbox.send(LAUNCHER, pack_data(ended, end.rest))
        # Only then is the step, with all that follow, another batch for the launcher, too.
        self._mailbox.wait([(LAUNCHER, "end_known", track, 0, 0)])
        held, self._leases = self._leases, deque()
        self._next = held[0].step
        for one in held:
            self._add_lease(one.lease, one.begun, one.rest)

    def count_reached(self, step: int) -> int:
        """Return the batches up to that of this step, in the order in which they are leased."""
        held = self._find_lease(step)
        return (held.lease.first if self._in_order else held.begun) + step - held.step + 1

    def end_after(self, step: int) -> None:
        """Do nothing: the launcher leases no more."""

    def wait_for_more(self) -> bool:
        """Report that all leases are computed; wait until batches of a lost replica are free, or all are computed."""
        self._send({"idle": True, "acknowledged": self._next})
        self._is_open = True
        self.start_step = self._next  # the first step of the lease that may come
        self._take_lease(timeout_s=REPLICA_TIMEOUT_S)
        self._pace_from, self._step = (self.start_step, self._clock()), self.start_step
        return self._is_open

    def _find_batch(self, step: int) -> int:
        held = self._find_lease(step)
        return held.lease.first + step - held.step

    def _find_lease(self, step: int) -> _HeldLease:
        """Return the lease with the batch of a step."""
        return next(held for held in self._leases if held.step <= step < held.stop)

    def _add_lease(self, lease: Lease, begun: int, rest: Data | None) -> None:
        """Add a lease, without what lies beyond the end of its part."""
        track, first = locate_batch(lease.first)
        end = self._ends.get(track)
        if end is not None and first + lease.count > end:
            lease = lease.part(0, max(0, end - first))
        self._leases.append(_HeldLease(self._next, lease, begun, rest))
        self._next += lease.count

    def _request_lease(self) -> None:
        """Request the next lease while a step is prepared; the step before it is not complete yet."""
        if self._is_waiting:
            return
        done, now = max(self.start_step, self._step - 1), self._clock()
        done_before, then = self._pace_from
        if done > done_before:
            self._pace_s = (now - then) / (done - done_before)
            self._pace_from = (done, now)
        acknowledged = max(self.start_step, self._acknowledged())
        self._send({"idle": False, "acknowledged": acknowledged, "pace_s": self._pace_s})

    def _send(self, body: dict[str, bool | int | float | None]) -> None:
        self._is_waiting = True
        self._mailbox.send(LAUNCHER, Message("lease_request", edge=self._request, body=body))

    def _take_lease(self, timeout_s: float | None = None) -> None:
        """Wait for the answer to the request."""
        self._add_answer(self._mailbox.wait([self._answer_key], timeout_s=timeout_s))

    @property
    def _answer_key(self) -> MessageKey:
        return (LAUNCHER, "lease", 0, 0, self._request)

    def _add_answer(self, message: Message) -> None:
        self._is_waiting, self._request = False, self._request + 1
        lease = msgspec.convert(message.body, Lease)
        if not lease.count:
            self._is_open = False
            return
        self._add_lease(lease, message.body["begun"], unpack_data(message))
