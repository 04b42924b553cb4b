"""`ElasticReplicas`: which replicas take part in a run, and which batches they compute where batches are leased.

Replicas may join and leave only where batches are leased; in a run by another method nothing changes here.
"""

import time
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import msgspec

from ...errors import CutsetError, UsageError
from ...ps.slices.slicing import slices_of_shard
from ...runtime.channel.message import Message
from ..hosts.run_hosts import RunHosts
from ..job.job import Job, most_roles
from ..job.stream_position import LOOP, LoopPosition, Position
from ..leases.fences import Fences
from ..leases.lease_server import LeaseServer, WorkerId, make_lease_server
from ..leases.scale_requests import ScaleLimits, ScaleRequests
from .supervision import OnNotice


class ElasticReplicas:
    """The replicas of one run.

    Args:
        hosts: where they run.
        on_notice: called with a sentence when a replica joins or leaves.
        requests: for more or fewer replicas.

    Attributes:
        start_s: when the run started.
        changes: replicas that joined or left: {"replica", "change", "at_s", "seconds"}, the seconds until it trained.
    """

    def __init__(self, job: Job, hosts: RunHosts, *, on_notice: OnNotice, requests: ScaleRequests | None) -> None:
        incarnations, self._training = job.config.restarts + 1, job.training
        self._on_notice, self._requests, self._method = on_notice, requests, job.method
        self._hosts = hosts
        self._requested: int | None = None  # until it is applied
        self._machines, self._incarnations = job.machines, incarnations
        self._has_script, self._loops = job.script is not None, dict(enumerate(job.loops))  # by replica
        self._lease_server: LeaseServer | None = None
        if job.leases_batches:
            self._lease_server = make_lease_server(job)
        self._slices, self._fences = job.slices, Fences(job.slices)
        self._departed: dict[int, set[str]] = {}  # replicas gone without a word, and shards that were informed
        at_once = (most_roles(job.config) - job.shards) // job.machines
        names = job.machines * incarnations
        self._membership = ReplicaMembership(job.replicas, at_once=at_once, names_per_replica=names)
        self._initial = list(self._membership.present)
        self.start_s = time.monotonic()
        self.changes: list[dict[str, Any]] = []

    @property
    def uses_leases(self) -> bool:
        """Whether batches are leased."""
        return self._lease_server is not None

    @property
    def position(self) -> Position | None:
        """Where the run is in its stream, or how the user's own loops go; None where steps say it all."""
        if self._has_script:
            return [self.loop_of(replica) for replica in range(self._training.replicas)]
        return None if self._lease_server is None else self._lease_server.position

    def loop_of(self, replica: int) -> LoopPosition:
        """Return how the loop of a replica goes through its data, as far as it is known."""
        return self._loops.get(replica, LoopPosition())

    def count_steps(self, done: Collection[int]) -> int | None:
        """Return the steps of each replica of a run whose end nobody knew, or over a stream; None for others.

        done: the steps of each, as it reported. Where the user keeps the loop they may differ: the mean is returned.
        """
        if self._has_script:
            return sum(done) // self._training.replicas
        if not self._training.parts:
            return None
        leased, before = self._lease_server, self._training.start_step
        return max(done, default=0) if leased is None else before + leased.leases.begun // self._training.replicas

    @property
    def replicas(self) -> list[int]:
        """The numbers of the replicas that take part."""
        return self._membership.present

    @property
    def replica_numbers(self) -> range:
        """The numbers that a replica of this run can ever have."""
        return self._membership.numbers if self.uses_leases else range(len(self._initial))

    def publish_limits(self) -> None:
        """Tell other processes of the user how many replicas they may request."""
        if self._requests is not None:
            max_replicas = self._membership.max_replicas if self.uses_leases else 0
            self._requests.publish_limits(ScaleLimits(self._method.name, len(self._membership.present), max_replicas))

    def register_start(self, replica: int, incarnation: int) -> None:
        """Note that a replica is being started."""
        if self._lease_server is not None:
            self._lease_server.register(replica, incarnation)

    def handle(self, worker: WorkerId, message: Message) -> None:
        """Take what a worker says about batches into account."""
        if message.kind in ("progress", "trained") and LOOP in message.body:
            self._loops[worker.replica] = msgspec.convert(message.body[LOOP], LoopPosition)
        if self._lease_server is None:
            return
        if message.kind in ("join", "lease_request", "part_ended"):
            self._lease_server.handle(message.sender, worker, message)
        elif message.kind == "progress" and "acknowledged" in message.body:
            self._lease_server.acknowledge(worker, message.body["acknowledged"])

    def end_early(self, replicas: int) -> int | None:
        """Lease no more batches; return how many there are then, a multiple of `replicas`, None without leases."""
        if self._lease_server is None:
            return None
        self._lease_server.end_early(replicas)
        return self._lease_server.leases.batches

    def handle_fenced(self, message: Message) -> None:
        """Take into account what a shard has of a lost replica; what some slices lack is leased again."""
        self._fences.handle(message)
        for start, steps in self._fences.take_complete():
            if self._lease_server is not None:
                self._lease_server.reclaim(start, steps)

    def take_replies(self) -> list[tuple[str, Message]]:
        """Return the replies to workers that asked for batches and can be answered now."""
        return [] if self._lease_server is None else self._lease_server.take_replies()

    def apply_request(self) -> list[tuple[int, dict[str, Any]]]:
        """Apply a request for more or fewer replicas, if there is one, and let replicas leave that shall.

        Return the replicas to start, each with the record to complete when it trains.
        """
        requested = self._take_request()
        if requested is None or self._lease_server is None or self._lease_server.all_done:
            return []
        try:
            joining, leaving = self._membership.resize(requested)
        except CutsetError as error:
            self._on_notice(error.facts)
            return []
        for replica in leaving:
            self._lease_server.retire(replica)
        for replica in [*joining, *leaving]:
            self._on_notice(f"replica {replica} {'joins' if joining else 'is asked to leave'}; replicas: {requested}")
        self.publish_limits()
        return [(replica, self._record_change(replica, "joined")) for replica in joining]

    def _take_request(self) -> int | None:
        """Return how many replicas there shall be from now on, None for as many as there are.

        Before there are more, machines are looked for that have been added since.
        """
        requested = None if self._requests is None else self._requests.take_request()
        if requested is not None:
            self._requested = requested
            if requested > len(self._membership.present):
                self._hosts.look_for_more()
        if self._requested is None or self._hosts.is_looking:
            return None
        requested, self._requested = self._requested, None
        return requested

    def handle_loss(self, replica: int, workers: Mapping[str, WorkerId]) -> bool:
        """Have the batches of a lost replica taken back; return whether it is still needed. workers: its, by name."""
        if self._lease_server is None:
            return True
        start = self._lease_server.lose(replica)
        if start is not None:
            self._fences.add(start, {name: worker.machine for name, worker in workers.items()})
        return not self._is_unneeded(replica)

    def drop(self, replica: int) -> None:
        """Note that a replica has gone without a word, for whose steps others may wait at the shards."""
        self.mark_left(replica)
        self._departed[replica] = set()

    @property
    def has_news_for_shards(self) -> bool:
        """Whether `tell_shards` may return something."""
        return not self._fences.is_empty or bool(self._departed)

    def tell_shards(self, shards: Mapping[int, str]) -> list[tuple[str, Message]]:
        """Return what shards, and those restarted since, are to be told of replicas that are lost or have gone.

        shards: the names of those that serve, by index.
        """
        messages = self._fences.take_messages(shards)
        for replica, informed in self._departed.items():
            for index, name in shards.items():
                if name not in informed:
                    informed.add(name)
                    body = {"replica": replica, "number": 0}
                    pieces = slices_of_shard(self._slices, index)
                    messages += [(name, Message("leave", edge=piece.number, body=body)) for piece in pieces]
        return messages

    def list_unneeded(self, starting: Iterable[int]) -> list[int]:
        """Return the replicas still starting that are no longer needed; the caller ends them."""
        if self._lease_server is None or not (self._lease_server.all_done or self._membership.leaving):
            return []
        return [replica for replica in starting if self._is_unneeded(replica)]

    def mark_training(self, record: dict[str, Any]) -> None:
        """Note that a replica trains whose start has this record."""
        if record in self.changes:
            self._on_notice(f"replica {record['replica']} trains, {record['seconds']:.1f} s after the request")

    def mark_left(self, replica: int) -> None:
        """Note that a replica no longer takes part."""
        self._membership.remove(replica)
        self._record_change(replica, "left")
        self._on_notice(f"replica {replica} has left")
        self.publish_limits()

    def is_leaving(self, replica: int) -> bool:
        """Return whether a replica was asked to leave."""
        return replica in self._membership.leaving

    def count_leases(self) -> int | None:
        """Return how many batches are leased and not known to be computed; None where batches are not leased."""
        return None if self._lease_server is None else self._lease_server.leases.unfinished

    def statistics(self) -> dict[str, Any]:
        """Return who joined and left, and where batches are leased, how many each replica computed."""
        leases = {} if self._lease_server is None else self._lease_server.statistics()
        return {**leases, "changes": self.changes}

    def _is_unneeded(self, replica: int) -> bool:
        """Return whether a replica need not train: all batches are computed, or it shall leave."""
        all_done = self._lease_server is not None and self._lease_server.all_done
        return replica > 0 and (all_done or self.is_leaving(replica))  # replica 0 also evaluates

    def _record_change(self, replica: int, change: str) -> dict[str, Any]:
        at_s = time.monotonic() - self.start_s
        self.changes.append({"replica": replica, "change": change, "at_s": at_s, "seconds": None})
        return self.changes[-1]


MAX_JOINS = 16  # replicas that may join in a run
MAX_RESERVED_NAMES = 1024  # channel names kept ready for replicas that join; each is a key on everyone's list


class ReplicaMembership:
    """Which replicas take part; at first replicas 0 to `replicas - 1`.

    Args:
        at_once: how many may take part at the same time.
        names_per_replica: channel names that each replica may need.

    Attributes:
        present: replicas that take part, without those that are leaving.
        leaving: replicas that were asked to leave and have not left.
        numbers: that a replica can ever have; a new replica never gets the number of another one.
    """

    def __init__(self, replicas: int, *, at_once: int, names_per_replica: int) -> None:
        self.present = list(range(replicas))
        self.leaving: set[int] = set()
        self._at_once = at_once
        joins = max(0, min(MAX_JOINS, MAX_RESERVED_NAMES // names_per_replica, at_once - 1))
        self.numbers = range(replicas + joins)
        self._next = replicas

    @property
    def max_replicas(self) -> int:
        """How many replicas may be requested now."""
        return min(self._at_once - len(self.leaving), len(self.present) + self.numbers.stop - self._next)

    def resize(self, replicas: int) -> tuple[list[int], list[int]]:
        """Resize to `replicas`; return (joining, leaving). The replicas that joined last leave first.

        Raises:
            UsageError: E274, if there cannot be so many.
        """
        if not 1 <= replicas <= self.max_replicas:
            facts = f"{replicas} replicas were requested; there can be 1 to {self.max_replicas} now"
            raise UsageError("E274", facts, fix=f"--replicas {min(max(replicas, 1), self.max_replicas)}")
        joining = list(range(self._next, self._next + max(0, replicas - len(self.present))))
        leaving = self.present[replicas:]
        self._next += len(joining)
        self.present = self.present[:replicas] + joining
        self.leaving |= set(leaving)
        return joining, leaving

    def remove(self, replica: int) -> None:
        """Note that a replica no longer takes part."""
        self.leaving.discard(replica)
        self.present = [other for other in self.present if other != replica]

    def __repr__(self) -> str:
        return f"ReplicaMembership({self.present}, leaving={sorted(self.leaving)})"
