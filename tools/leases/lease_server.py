"""`LeaseServer`: answers workers that ask for batches, and takes back what a lost replica has not computed.

Messages of a worker, and the replies:

  join           {step}                         "joined" {step}: where the replica's own count of steps begins, which is
                                                the step that the first of its machines named
  lease_request  {idle, acknowledged, pace_s}   "lease" {first, count}; the edge is the number of the request

  part_ended     {track, batches, inputs, names}, "end_known", when that counts for all that follows; the tensors are
                 tensors                          what is left of a part of a stream (stream_progress.py)

A lease of what is left of parts brings those samples along. acknowledged: steps, by the replica's own count, whose
pushes are durable on the shards. A lease may name slices that have its batches already, in "skips". See batch_leases.py
for the rest, and fences.py for what a lost replica had.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from ...runtime.channel.message import Message
from ..job.job import Job
from ..job.stream_position import StreamPosition
from ..samples.part_order import PartCounts
from .batch_leases import BatchLeases, ReplicaStart
from .part_leases import PartLeases
from .stream_progress import StreamProgress


def make_lease_server(job: Job) -> "LeaseServer":
    """Return what leases the batches of a run."""
    training = job.training
    if not training.parts:
        first = training.start_step * training.replicas
        return LeaseServer(BatchLeases(training.batches, first=first), job.machines)
    position = job.stream or StreamPosition(training.parts, training.batch)
    remaining = {int(track): spans for track, spans in (position.remaining or {}).items()}
    leases = PartLeases(training.parts, training.epochs, remaining)
    what = f"the train data of task {job.task_name}"
    counts = PartCounts(training.parts, training.samples or None, what)
    stream = StreamProgress(leases, counts, training.batch, what, rests=position.rests)
    return LeaseServer(leases, job.machines, stream=stream)


class WorkerId(NamedTuple):
    """A worker, whatever its incarnation."""

    replica: int
    machine: int


@dataclass
class _Member:
    """One start of a replica. acknowledged: steps by machine. begun: batches of all before each of its leases."""

    start: ReplicaStart
    start_step: int = 0
    acknowledged: dict[int, int] = field(default_factory=dict)
    begun: dict[int, int] = field(default_factory=dict)  # by request: all its machines must get the same


@dataclass(frozen=True)
class _LeaseRequest:
    """A request that is not answered yet."""

    sender: str
    member: _Member
    number: int
    idle: bool
    pace_s: float | None


class LeaseServer:
    """Leases batches to replicas of `machines` workers each. stream: what is known of the parts of a stream."""

    def __init__(self, leases: BatchLeases, machines: int, *, stream: StreamProgress | None = None) -> None:
        self.leases, self._stream = leases, stream
        self._machines = machines
        self._members: dict[int, _Member] = {}  # by replica
        self._lost: dict[ReplicaStart, _Member] = {}  # of which it is not known yet what the slices have
        self._requests: list[_LeaseRequest] = []
        self._waiting: list[_LeaseRequest] = []  # requests that could not be answered yet
        self._replies: list[tuple[str, Message]] = []

    @property
    def all_done(self) -> bool:
        """Whether all batches are computed."""
        return self.leases.all_done

    def register(self, replica: int, incarnation: int) -> None:
        """Add a replica that is being started."""
        self._members[replica] = _Member((replica, incarnation))

    def handle(self, sender: str, worker: WorkerId, message: Message) -> None:
        """Take a request into account; `take_replies` returns the reply when there is one."""
        member = self._members[worker.replica]
        if message.kind == "join":
            if not member.acknowledged:
                member.start_step = int(message.body["step"])
            member.acknowledged[worker.machine] = member.start_step
            self._replies.append((sender, Message("joined", body={"step": member.start_step})))
            return
        if message.kind == "part_ended" and self._stream is not None:
            self._stream.end_part(message)
            self._replies.append((sender, Message("end_known", step=message.body["track"])))
            self._requests, self._waiting = [*self._waiting, *self._requests], []
            return
        self.acknowledge(worker, message.body["acknowledged"])
        pace_s = _read_pace(message.body)
        self._requests.append(_LeaseRequest(sender, member, message.edge, bool(message.body["idle"]), pace_s))

    def acknowledge(self, worker: WorkerId, step: int) -> None:
        """Note that the shards have all that a worker pushed in the steps before this one."""
        member = self._members[worker.replica]
        member.acknowledged[worker.machine] = max(step, member.acknowledged.get(worker.machine, 0))
        if len(member.acknowledged) == self._machines:
            self.leases.complete(member.start, min(member.acknowledged.values()) - member.start_step)

    def take_replies(self) -> list[tuple[str, Message]]:
        """Return what can be answered now: names of workers and the replies."""
        if self._waiting and (self.leases.free_batches or self.leases.all_done):
            self._requests, self._waiting = [*self._waiting, *self._requests], []
        requests, self._requests = self._requests, []
        for request in requests:
            lease = self.leases.lease(request.member.start, request.number, pace_s=request.pace_s, idle=request.idle)
            if lease is None:
                self._waiting.append(request)
                continue
            begun = request.member.begun.setdefault(request.number, self.leases.begun - lease.count)
            body = {**msgspec.to_builtins(lease), "begun": begun}
            reply = Message("lease", edge=request.number, body=body)
            self._replies.append((request.sender, reply if self._stream is None else self._stream.attach_rest(reply)))
        replies, self._replies = self._replies, []
        return replies

    def end_early(self, multiple_of: int) -> None:
        """Lease no more batches than are needed for all that are leased to be a multiple of a number."""
        self.leases.end_early(multiple_of)
        self._requests, self._waiting = [*self._waiting, *self._requests], []

    @property
    def position(self) -> StreamPosition | None:
        """Where the run is in its stream, None where samples are numbered."""
        return None if self._stream is None else self._stream.position()

    def retire(self, replica: int) -> None:
        """Lease nothing more to a replica, which computes what it has and ends."""
        self.leases.retire(self._members[replica].start)
        self._requests, self._waiting = [*self._waiting, *self._requests], []

    def lose(self, replica: int) -> ReplicaStart | None:
        """Forget a lost replica; return which start of it that was, if it had batches that may be complete or not.

        Those are nobody's until `reclaim`.
        """
        member = self._members.pop(replica)
        self._requests = [request for request in self._requests if request.member is not member]
        self._waiting = [request for request in self._waiting if request.member is not member]
        self.leases.retire(member.start)
        if not self.leases.has_unfinished(member.start):
            return None
        self._lost[member.start] = member
        return member.start

    def reclaim(self, start: ReplicaStart, steps: Mapping[int, int]) -> int:
        """Take back the batches of a lost start that some slices lack; return their number.

        steps: by slice, of how many steps the slice has the gradients, by the replica's own count.
        """
        first = self._lost.pop(start).start_step
        return self.leases.reclaim(start, {number: max(0, step - first) for number, step in steps.items()})

    def statistics(self) -> dict[str, Any]:
        """Return the number of batches, and by replica those it computed and those that others computed."""
        completed = {str(replica): count for replica, count in sorted(self.leases.completed.items())}
        recomputed = {str(replica): count for replica, count in sorted(self.leases.recomputed.items())}
        return {"batches": self.leases.batches, "completed": completed, "recomputed": recomputed}

    def __repr__(self) -> str:
        return f"LeaseServer({self.leases}, {len(self._requests) + len(self._waiting)} requests wait)"


def _read_pace(body: dict[str, Any]) -> float | None:
    """Return the seconds of a batch in a message, None if they make no sense."""
    value = body.get("pace_s")
    return value if isinstance(value, float) and math.isfinite(value) and value >= 0 else None
