"""`BatchCoordinator`: drives a batch method over shards and replicas, and sees numbers alone, never a vector.

Dean et al., "Large Scale Distributed Deep Networks", 2012, section 4.2. `handle` is all of it, without I/O but for the
log; coordinator_loop.py joins it to a channel. Messages, and the answers:
  ask   {}                                             of machine 0 of a replica: "chunk" with a `Chunk`, once there is
                                                       one, or {over}
  done  {epoch, number, place, level, index, losses}   of each of its machines; losses of the portions by whoever has
                                                       them: nothing
  lost  {names}                                        of the launcher: workers that are gone
  moved {shard, name}                                  of the launcher: who has the place of a shard
What goes on between it and the shards stands in vector_shard.py. However a shard or a coordinator is lost, there is one
way back: all shards are rolled back to the last commit, and the method runs again through the answers up to there.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from ...errors import CheckpointError, NetworkError
from ...runtime.launcher.assignment import LAUNCHER
from ...runtime.channel.message import Message
from ..server.replies import Replies
from .work_queue import COPIES, Chunk, Chunks
from .solver import Iteration, Portions, Steps
from .recovery_log import OperationLog
from .vector_ops import AnyOperation, Batch, Evaluate, numbers

CHUNKS = 16  # of a replica's share, at least, where there are so many portions
LEVEL_MOST = 4  # of a chunk: 16 portions
COMMIT_SHARE = 0.05  # of the time that may go into commits


class _Evaluation(msgspec.Struct):
    """The portions of a batch. level: of all chunks. places: of each chunk, its operation and its index there."""

    chunks: Chunks
    level: int
    places: list[tuple[int, int]]
    numbers: dict[tuple[int, int], int]  # of the chunks, by their places
    losses: dict[int, list[float]]  # by chunk
    told: dict[tuple[str, int], set[str]]  # by replica and chunk: machines that are done


class BatchCoordinator:
    """method: makes the steps of a new run of the method. machines: of a replica. single: the chunks of a batch are as
    many as replicas, and nothing is done twice, to compare with.
    """

    def __init__(
        self,
        method: Callable[[], Steps],
        portions: Portions,
        log: OperationLog,
        shards: Sequence[str],
        *,
        replicas: int = 1,
        machines: int = 1,
        single: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.why = ""  # it ended
        self.iterations: list[Iteration] = []
        self._method, self._portions, self._log = method, portions, log
        self._shards = list(shards)
        self._replicas, self._machines, self._single = replicas, machines, single
        self._clock = clock
        self._steps: Steps = method()
        self._number = 0
        self._batch: Batch = []
        self._sent: Message | None = None  # to all shards, to be said again after a silence
        self._awaited: set[str] = set()
        self._shares: dict[str, list[float]] = {}
        self._evaluation: _Evaluation | None = None
        self._asking = deque[Message]()
        self._began = self._last = clock()
        self._commit_s = 0.0
        self._since = clock()
        self._counts = {"round_trips": 0, "bytes": 0, "backups": 0}
        self._evaluations = self._samples = 0
        self._taken: dict[str, int] = {}  # chunks that each replica was first with
        self._taken_before: dict[str, int] = {}  # up to the last iteration
        self._trips_before = self._bytes_before = 0

    @property
    def over(self) -> bool:
        """Whether the method has ended and all shards have its last commit."""
        return bool(self.why) and not self._awaited

    def start(self) -> Replies:
        """Go on from what the log has: roll back."""
        epoch = self._log.back()
        self._evaluation, self._sent, self.why = None, None, ""
        self._shares = {}
        return self._all("roll back", {"epoch": epoch, "number": self._log.committed})

    def handle(self, message: Message) -> Replies:
        """Take in one message; what to send."""
        body, sender = message.body, message.sender
        match message.kind:
            case "ask":
                self._asking = deque(ask for ask in self._asking if ask.sender != sender)
                self._asking.append(message)
                return self._hand_out(1)
            case "done":
                return self._done(message)
            case "lost" if sender == LAUNCHER:
                self._asking = deque(ask for ask in self._asking if ask.sender not in body["names"])
                for replica in {name.partition(".")[0] for name in body["names"]} if self._evaluation else ():
                    assert self._evaluation is not None
                    self._evaluation.chunks.lost(replica)
                    self._evaluation.told = {k: v for k, v in self._evaluation.told.items() if k[0] != replica}
                return self._hand_out()
            case "moved" if sender == LAUNCHER:
                if self._shards[body["shard"]] == body["name"]:
                    return []
                self._shards[body["shard"]] = body["name"]
                return self.start()
        if body.get("epoch") != self._log.epoch or sender not in self._awaited:
            return []
        match message.kind:
            case "rolled back" if self._asked("roll back"):
                return self._arrived(sender, self._replayed)
            case "operated" if self._asked("operate") and body["number"] == self._number:
                self._shares[sender] = body["shares"]
                return self._arrived(sender, self._operated)
            case "committed" if self._asked("commit") and body["number"] == self._number:
                return self._arrived(sender, self._committed)
        return []

    def again(self) -> Replies:
        """Nothing was heard for long: say again what is not answered."""
        return [(shard, self._sent) for shard in sorted(self._awaited) if self._sent is not None]

    def statistics(self) -> dict[str, Any]:
        """Plain data: evaluations and samples of the whole run, and how often all went back.

        Of this coordinator: round trips to the shards, bytes to and from them, chunks by replica, those given to two.
        """
        counts = {"evaluations": self._evaluations, "samples": self._samples, "rolled_back": self._log.epoch - 1}
        return {**self._counts, **counts, "taken": self._taken, "commit_s": self._commit_s}

    def __repr__(self) -> str:
        return f"BatchCoordinator(number={self._number}, awaits={sorted(self._awaited)}, {self._evaluation})"

    def _asked(self, kind: str) -> bool:
        """Whether that is what all shards were asked last; an answer that was given twice is none to what came then."""
        return self._sent is not None and self._sent.kind == kind

    def _all(self, kind: str, body: dict[str, Any]) -> Replies:
        """One message to all shards, whose answers are awaited."""
        self._sent = Message(kind, body=body)
        self._awaited = set(self._shards)
        self._since = self._clock()
        self._counts["bytes"] += len(msgspec.msgpack.encode(body)) * len(self._shards)
        return [(shard, self._sent) for shard in self._shards]

    def _arrived(self, shard: str, then: Callable[[], Replies]) -> Replies:
        self._awaited.discard(shard)
        return then() if not self._awaited else []

    def _replayed(self) -> Replies:
        """All shards are rolled back: run the method again up to there."""
        self._steps = self._method()
        self._number = self._log.committed
        self._evaluations = self._samples = 0
        replies: Replies = []
        left = deque(self._log.answers)
        try:
            item = next(self._steps)
            while left or isinstance(item, Iteration):
                if isinstance(item, Iteration):
                    replies += self._told(item, replayed=True)
                    item = next(self._steps)
                    continue
                if len(numbers(item)) != len(left[0]):
                    raise self._other_run()
                self._count(item)
                item = self._steps.send(left.popleft())
        except StopIteration as stop:
            if left:
                raise self._other_run() from None
            return [*replies, *self._end(stop.value)]
        return [*replies, *self._take(item)]

    def _other_run(self) -> CheckpointError:
        facts = f"{self._log.path} has {self._log.committed} answers, which are not those to what this run asks for"
        return CheckpointError("E812", facts, fix="the same options, with as many iterations or more")

    def _count(self, batch: Batch) -> None:
        """Of samples that a batch looks at, and once of all that it does so at one point."""
        looked = [self._portions.within(one.first, one.last) for one in batch if isinstance(one, Evaluate)]
        self._samples += sum(looked)
        self._evaluations += bool(looked)

    def _take(self, item: Batch | Iteration) -> Replies:
        """What the method asks for or tells."""
        replies: Replies = []
        while isinstance(item, Iteration):
            replies += self._told(item)
            if self._wants_commit():
                return [*replies, *self._commit()]
            try:
                item = next(self._steps)
            except StopIteration as stop:
                return [*replies, *self._end(stop.value)]
        return [*replies, *self._operate(item)]

    def _operate(self, batch: Batch) -> Replies:
        self._number += 1
        self._count(batch)
        self._batch, self._shares = batch, {}
        self._counts["round_trips"] += 1
        plain = msgspec.to_builtins(batch)
        replies = self._all("operate", {"epoch": self._log.epoch, "number": self._number, "batch": plain})
        self._evaluation = self._opened(batch)
        return [*replies, *self._hand_out()]

    def _operated(self) -> Replies:
        evaluation = self._evaluation
        rows = [self._shares[shard] for shard in self._shards]
        self._counts["bytes"] += sum(len(msgspec.msgpack.encode(row)) for row in rows)
        answers = [one.joined(row[n] for row in rows) for n, one in enumerate(numbers(self._batch))]
        if evaluation is not None:
            if not evaluation.chunks.complete:  # their losses are still to come
                return []
            self._counts["backups"] += evaluation.chunks.backups
            for replica, count in evaluation.chunks.taken.items():
                self._taken[replica] = self._taken.get(replica, 0) + count
            answers = self._with_losses(answers, evaluation)
            self._evaluation = None
        self._log.answered(self._number, answers)
        return self._go_on(answers)

    def _go_on(self, answers: list[float]) -> Replies:
        try:
            item = self._steps.send(answers)
        except StopIteration as stop:
            return self._end(stop.value)
        return self._take(item)

    def _end(self, why: str) -> Replies:
        self.why = why
        if self._log.committed < self._number:
            return self._commit()
        return self._released()

    def _told(self, item: Iteration, *, replayed: bool = False) -> Replies:
        """Tell the launcher of an iteration that is new here: its round trips, bytes and chunks; all backups so far."""
        if self.iterations and item.number <= self.iterations[-1].number:
            return []
        now = self._clock()
        self.iterations.append(item)
        trips, size = self._counts["round_trips"], self._counts["bytes"]
        body = {
            **msgspec.to_builtins(item),
            "seconds": now - self._last,
            "round_trips": trips - self._trips_before,
            "bytes": size - self._bytes_before,
            "backups": self._counts["backups"],
            "taken": {who: count - self._taken_before.get(who, 0) for who, count in self._taken.items()},
            "replayed": replayed,
        }
        self._taken_before = dict(self._taken)
        self._last, self._trips_before, self._bytes_before = now, trips, size
        return [(LAUNCHER, Message("iteration", body=body))]

    def _wants_commit(self) -> bool:
        if self._log.committed == self._number:
            return False
        return self._commit_s <= COMMIT_SHARE * (self._clock() - self._began)

    def _commit(self) -> Replies:
        body = {"epoch": self._log.epoch, "number": self._number, "keep": self._log.committed}
        return self._all("commit", body)

    def _committed(self) -> Replies:
        self._commit_s += self._clock() - self._since
        self._log.commit(self._number)
        if self.why:
            return self._released()
        try:
            return self._take(next(self._steps))
        except StopIteration as stop:
            return self._end(stop.value)

    def _released(self) -> Replies:
        """All workers may leave; the launcher is told which shards are at the end."""
        self._awaited = set()
        return [*self._hand_out(), (LAUNCHER, Message("over", body={"shards": list(self._shards)}))]

    def _opened(self, batch: Batch) -> _Evaluation | None:
        """The chunks of what a batch evaluates."""
        asked = [(place, one) for place, one in enumerate(batch) if isinstance(one, Evaluate)]
        if not asked:
            return None
        count = sum(one.last - one.first for _, one in asked)
        level = max(0, min(LEVEL_MOST, int(math.log2(max(1, count / (CHUNKS * self._replicas))))))
        if self._single:
            level = max(0, math.ceil(math.log2(count / self._replicas)))
        level = min(level, *((one.last - one.first - 1).bit_length() for _, one in asked))  # a chunk is of one range
        places = [(place, i) for place, one in asked for i in range(-(-(one.last - one.first) // (1 << level)))]
        chunks = Chunks(len(places), copies=1 if self._single else COPIES)
        return _Evaluation(chunks, level, places, {place: n for n, place in enumerate(places)}, {}, {})

    def _hand_out(self, last: int | None = None) -> Replies:
        """Answer those who ask for chunks, or the last of them, as far as there are any."""
        replies: Replies = []
        if last is not None:
            self._asking.rotate(last)
        for _ in range(len(self._asking) if last is None else last):
            ask = self._asking.popleft()
            body = self._chunk_for(ask)
            if body is None:
                self._asking.append(ask)
            else:
                replies.append((ask.sender, Message("chunk", ask.step, body=body)))
        return replies

    def _chunk_for(self, ask: Message) -> dict[str, Any] | None:
        if self.over:
            return {"over": True}
        evaluation = self._evaluation
        if evaluation is None:
            return None
        chunk = evaluation.chunks.next(ask.sender.partition(".")[0])
        if chunk is None:
            return None
        place, index = evaluation.places[chunk]
        of = self._evaluate(place)
        here = Chunk(self._log.epoch, self._number, place, evaluation.level, index, of.first, of.last - of.first)
        return msgspec.to_builtins(here)  # type: ignore[no-any-return]

    def _done(self, message: Message) -> Replies:
        body, evaluation, replica = message.body, self._evaluation, message.sender.partition(".")[0]
        if (body["epoch"], body["number"]) != (self._log.epoch, self._number) or evaluation is None:
            return []
        chunk = evaluation.numbers[body["place"], body["index"]]
        if body["losses"] is not None:
            evaluation.losses.setdefault(chunk, body["losses"])
        machines = evaluation.told.setdefault((replica, chunk), set())
        machines.add(message.sender)
        if len(machines) < self._machines or not evaluation.chunks.done(replica, chunk):
            return []
        return self._operated() if evaluation.chunks.complete and not self._awaited else []

    def _with_losses(self, answers: list[float], evaluation: _Evaluation) -> list[float]:
        """The answers, with the mean losses of the portions where shards have none."""
        found: dict[int, list[float]] = {}
        for chunk, (place, index) in enumerate(evaluation.places):
            of = self._evaluate(place)
            those = Chunk(0, 0, place, evaluation.level, index, of.first, of.last - of.first).portions
            losses = evaluation.losses.get(chunk)
            if losses is None or len(losses) != len(those):
                raise NetworkError(
                    "E555", f"no machine has told the losses of portions {those} of batch {self._number}"
                )
            within = [self._portions.within(n, n + 1) for n in those]
            found.setdefault(place, []).extend(f * n for f, n in zip(losses, within, strict=True))
        giving: list[tuple[int, AnyOperation]] = [(n, one) for n, one in enumerate(self._batch) if one.number]
        whole = list(answers)
        for at, (place, one) in enumerate(giving):
            if isinstance(one, Evaluate):
                whole[at] = _sum(found[place]) / self._portions.within(one.first, one.last)
        return whole

    def _evaluate(self, place: int) -> Evaluate:
        operation = self._batch[place]
        assert isinstance(operation, Evaluate)
        return operation


def _sum(losses: list[float]) -> float:
    """Their sum, the same in any order; NaN or infinite where one of them is."""
    return math.fsum(losses) if all(map(math.isfinite, losses)) else sum(losses)
