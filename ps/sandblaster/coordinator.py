"""`Coordinator`: drives a solver over shards and replicas; it sees scalars alone, never a vector.

Dean et al., "Large Scale Distributed Deep Networks", NIPS 2012, section 4.2, and algorithm 7.2 of its supplement.
`handle` is the whole protocol, without I/O except for the log; coordinator_loop.py joins it to a channel. Messages, and
the answers:
  ask   {}                                             of machine 0 of a replica: "portions" with a `PortionGroup` once
                                                       there is one, or {over}
  done  {epoch, number, place, level, index, losses}   of each of its machines; losses of the portions by the machine
                                                       that has them: no answer
  lost  {names}                                        of the launcher: workers that are gone
  shard_replaced {shard, name}                         of the launcher: the role that takes the place of a shard
vector_shard.py describes the messages between coordinator and shards. Whether a shard or a coordinator is lost, there
is one way to recover: all shards are rolled back to the last commit, and the solver is replayed with the logged answers
up to there.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from ...errors import CheckpointError
from ...runtime.channel.message import LAUNCHER, Message
from ..server.replies import Replies
from .evaluation import Evaluation, begin_evaluation
from .recovery_log import RecoveryLog
from .solver import Iteration, Portions, SolverRun
from .vector_ops import Batch, Evaluate, scalar_operations

MAX_COMMIT_FRACTION = 0.05  # of the time of a run that may go into commits


class Coordinator:
    """The coordinator of one run.

    make_solver: begins a new run of the solver. machines: of a replica. single: give each replica one group of portions
    and do nothing twice, as a baseline to compare with.
    """

    def __init__(
        self,
        make_solver: Callable[[], SolverRun],
        portions: Portions,
        log: RecoveryLog,
        shards: Sequence[str],
        *,
        replicas: int = 1,
        machines: int = 1,
        single: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.stop_reason = ""  # why the solver stopped; empty while it runs
        self.iterations: list[Iteration] = []
        self._make_solver, self._portions, self._log = make_solver, portions, log
        self._shards = list(shards)
        self._replicas, self._machines, self._single = replicas, machines, single
        self._clock = clock
        self._solver: SolverRun = make_solver()
        self._number = 0  # of the present batch
        self._batch: Batch = []
        self._request: Message | None = None  # the last one to all shards
        self._awaited: set[str] = set()  # shards that have not answered it
        self._partials: dict[str, list[float]] = {}  # by shard
        self._evaluation: Evaluation | None = None
        self._asking = deque[Message]()  # replicas that wait for portions
        self._began = self._last_iteration = self._last_request = clock()
        self._commit_s = 0.0
        self._counts = {"round_trips": 0, "bytes": 0, "backups": 0}
        self._evaluations = self._samples = 0
        self._groups_finished: dict[str, int] = {}  # number of groups that each replica finished first
        self._groups_finished_before: dict[str, int] = {}  # up to the last iteration
        self._trips_before = self._bytes_before = 0

    @property
    def is_over(self) -> bool:
        """Whether the solver has stopped and all shards have its last commit."""
        return bool(self.stop_reason) and not self._awaited

    def start(self) -> Replies:
        """Proceed from what the log has: roll all shards back to the last commit."""
        epoch = self._log.begin_epoch()
        self._evaluation, self._request, self.stop_reason = None, None, ""
        self._partials = {}
        return self._send_to_shards("roll back", {"epoch": epoch, "number": self._log.committed})

    def handle(self, message: Message) -> Replies:
        """Take in one message; return the messages to send."""
        body, sender = message.body, message.sender
        match message.kind:
            case "ask":
                self._asking = deque(ask for ask in self._asking if ask.sender != sender)
                self._asking.append(message)
                return self._hand_out(1)
            case "done":
                return self._finish_group(message)
            case "lost" if sender == LAUNCHER:
                return self._remove_workers(body["names"])
            case "shard_replaced" if sender == LAUNCHER:
                if self._shards[body["shard"]] == body["name"]:
                    return []
                self._shards[body["shard"]] = body["name"]
                return self.start()
        if body.get("epoch") != self._log.epoch or sender not in self._awaited:
            return []
        match message.kind:
            case "rolled back" if self._has_requested("roll back"):
                return self._receive(sender, self._replay)
            case "operated" if self._has_requested("operate") and body["number"] == self._number:
                self._partials[sender] = body["partials"]
                return self._receive(sender, self._answer_batch)
            case "committed" if self._has_requested("commit") and body["number"] == self._number:
                return self._receive(sender, self._end_commit)
        return []

    def resend(self) -> Replies:
        """Return the messages that are still unanswered, to be sent again after a long silence."""
        return [(shard, self._request) for shard in sorted(self._awaited) if self._request is not None]

    def statistics(self) -> dict[str, Any]:
        """Return plain data about the run.

        Of the whole run: evaluations, samples, and how often all were rolled back. Of this coordinator: round trips to
        the shards, bytes to and from them, groups finished first by replica ("taken"), groups handed out twice
        ("backups"), and seconds in commits.
        """
        counts = {"evaluations": self._evaluations, "samples": self._samples, "rolled_back": self._log.epoch - 1}
        return {**self._counts, **counts, "taken": self._groups_finished, "commit_s": self._commit_s}

    def __repr__(self) -> str:
        return f"Coordinator(number={self._number}, awaits={sorted(self._awaited)}, {self._evaluation})"

    # Messages to all shards

    def _has_requested(self, kind: str) -> bool:
        """Return whether this was the last request; a repeated answer must not count for a later request."""
        return self._request is not None and self._request.kind == kind

    def _send_to_shards(self, kind: str, body: dict[str, Any]) -> Replies:
        """Return one request to all shards, whose answers are awaited."""
        self._request = Message(kind, body=body)
        self._awaited = set(self._shards)
        self._last_request = self._clock()
        self._counts["bytes"] += len(msgspec.msgpack.encode(body)) * len(self._shards)
        return [(shard, self._request) for shard in self._shards]

    def _receive(self, shard: str, proceed: Callable[[], Replies]) -> Replies:
        """Note the answer of a shard, and proceed when all have answered."""
        self._awaited.discard(shard)
        return proceed() if not self._awaited else []

    # The solver

    def _replay(self) -> Replies:
        """All shards are rolled back: replay the solver with the logged answers."""
        self._solver = self._make_solver()
        self._number = self._log.committed
        self._evaluations = self._samples = 0
        replies: Replies = []
        answers = deque(self._log.answers)
        try:
            item = next(self._solver)
            while answers or isinstance(item, Iteration):
                if isinstance(item, Iteration):
                    replies += self._report(item, replayed=True)
                    item = next(self._solver)
                    continue
                if len(scalar_operations(item)) != len(answers[0]):
                    raise self._other_run()
                self._count(item)
                item = self._solver.send(answers.popleft())
        except StopIteration as stop:
            if answers:
                raise self._other_run() from None
            return [*replies, *self._stop(stop.value)]
        return [*replies, *self._proceed(item)]

    def _other_run(self) -> CheckpointError:
        facts = f"{self._log.path} is the recovery log of a run with other options ({self._log.committed} answers)"
        return CheckpointError("E812", facts, fix="the same options, with as many iterations or more")

    def _count(self, batch: Batch) -> None:
        """Count the samples that a batch evaluates, and one evaluation for all of them."""
        evaluated = [self._portions.count_samples(one.first, one.last) for one in batch if isinstance(one, Evaluate)]
        self._samples += sum(evaluated)
        self._evaluations += bool(evaluated)

    def _proceed(self, item: Batch | Iteration) -> Replies:
        """Report iterations until the solver requests a batch."""
        replies: Replies = []
        while isinstance(item, Iteration):
            replies += self._report(item)
            if self._is_commit_due():
                return [*replies, *self._begin_commit()]
            try:
                item = next(self._solver)
            except StopIteration as stop:
                return [*replies, *self._stop(stop.value)]
        return [*replies, *self._begin_batch(item)]

    def _begin_batch(self, batch: Batch) -> Replies:
        self._number += 1
        self._count(batch)
        self._batch, self._partials = batch, {}
        self._counts["round_trips"] += 1
        epoch, number = self._log.epoch, self._number
        body = {"epoch": epoch, "number": number, "batch": msgspec.to_builtins(batch)}
        replies = self._send_to_shards("operate", body)
        self._evaluation = begin_evaluation(epoch, number, batch, replicas=self._replicas, single=self._single)
        return [*replies, *self._hand_out()]

    def _answer_batch(self) -> Replies:
        """All shards have carried out the batch: send the solver its scalars, unless losses are still to come."""
        evaluation = self._evaluation
        rows = [self._partials[shard] for shard in self._shards]
        self._counts["bytes"] += sum(len(msgspec.msgpack.encode(row)) for row in rows)
        scalars = scalar_operations(self._batch)
        answers = [one.combine_partials(row[n] for row in rows) for n, one in enumerate(scalars)]
        if evaluation is not None:
            if not evaluation.queue.is_complete:
                return []
            self._counts["backups"] += evaluation.queue.backups
            for replica, count in evaluation.queue.groups_finished.items():
                self._groups_finished[replica] = self._groups_finished.get(replica, 0) + count
            answers = evaluation.fill_in_losses(answers, self._portions)
            self._evaluation = None
        self._log.append_answers(self._number, answers)
        try:
            item = self._solver.send(answers)
        except StopIteration as stop:
            return self._stop(stop.value)
        return self._proceed(item)

    def _stop(self, reason: str) -> Replies:
        self.stop_reason = reason
        if self._log.committed < self._number:
            return self._begin_commit()
        return self._release()

    def _release(self) -> Replies:
        """Let all workers go, and tell the launcher which shards have the last commit."""
        self._awaited = set()
        return [*self._hand_out(), (LAUNCHER, Message("over", body={"shards": list(self._shards)}))]

    def _report(self, iteration: Iteration, *, replayed: bool = False) -> Replies:
        """Tell the launcher of an iteration that is new here: its round trips, bytes and groups; all backups so far."""
        if self.iterations and iteration.number <= self.iterations[-1].number:
            return []
        now = self._clock()
        self.iterations.append(iteration)
        trips, size = self._counts["round_trips"], self._counts["bytes"]
        body = {
            **msgspec.to_builtins(iteration),
            "seconds": now - self._last_iteration,
            "round_trips": trips - self._trips_before,
            "bytes": size - self._bytes_before,
            "backups": self._counts["backups"],
            "taken": {
                who: count - self._groups_finished_before.get(who, 0) for who, count in self._groups_finished.items()
            },
            "replayed": replayed,
        }
        self._groups_finished_before = dict(self._groups_finished)
        self._last_iteration, self._trips_before, self._bytes_before = now, trips, size
        return [(LAUNCHER, Message("iteration", body=body))]

    # Commits

    def _is_commit_due(self) -> bool:
        if self._log.committed == self._number:
            return False
        return self._commit_s <= MAX_COMMIT_FRACTION * (self._clock() - self._began)

    def _begin_commit(self) -> Replies:
        body = {"epoch": self._log.epoch, "number": self._number, "keep": self._log.committed}
        return self._send_to_shards("commit", body)

    def _end_commit(self) -> Replies:
        self._commit_s += self._clock() - self._last_request
        self._log.append_commit(self._number)
        if self.stop_reason:
            return self._release()
        try:
            return self._proceed(next(self._solver))
        except StopIteration as stop:
            return self._stop(stop.value)

    # Portions

    def _hand_out(self, latest: int | None = None) -> Replies:
        """Answer the replicas that ask for portions, or the latest of them, as far as there are portions."""
        replies: Replies = []
        if latest is not None:
            self._asking.rotate(latest)
        # "for all modelReplicas (loop is parallel and asynchronous): if modelReplicaAvailable"
        for _ in range(len(self._asking) if latest is None else latest):
            ask = self._asking.popleft()
            body = self._choose_portions(ask.sender.partition(".")[0])
            if body is None:
                self._asking.append(ask)
            else:
                # "ProcessPortion(modelReplica)"
                replies.append((ask.sender, Message("portions", ask.step, body=body)))
        return replies

    def _choose_portions(self, replica: str) -> dict[str, Any] | None:
        if self.is_over:
            return {"over": True}
        group = None if self._evaluation is None else self._evaluation.hand_out(replica)
        return None if group is None else msgspec.to_builtins(group)

    def _finish_group(self, message: Message) -> Replies:
        body, evaluation = message.body, self._evaluation
        if (body["epoch"], body["number"]) != (self._log.epoch, self._number) or evaluation is None:
            return []
        place, index, losses = body["place"], body["index"], body["losses"]
        if not evaluation.finish(message.sender, place, index, losses, machines=self._machines):
            return []
        return self._answer_batch() if evaluation.queue.is_complete and not self._awaited else []

    def _remove_workers(self, names: list[str]) -> Replies:
        self._asking = deque(ask for ask in self._asking if ask.sender not in names)
        if self._evaluation is not None:
            for replica in {name.partition(".")[0] for name in names}:
                self._evaluation.remove_replica(replica)
        return self._hand_out()
