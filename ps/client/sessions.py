"""`Lines`: the mail between a client and its shards - what is sent, heard, kept in mind and said again."""

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from operator import ge

from ...errors import NetworkError
from ...runtime.launcher.assignment import LAUNCHER
from ...runtime.channel.channel import SilenceError, silence
from ...runtime.channel.mailbox import Key, Mailbox
from ...runtime.channel.message import Message
from .slice_session import Line

MOVED: Key = (LAUNCHER, "moved", 0, 0, 0)  # {"shard", "name"} of a shard that takes the place of one that was lost


class Lines:
    """All lines of a client. away: bytes that were put or pushed and are not acknowledged."""

    def __init__(
        self,
        mailbox: Mailbox,
        lines: Sequence[Line],
        *,
        redo_most: int,
        patience_s: float = 24 * 3600.0,
        retry_s: float = 15.0,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """redo_most: bytes of pushes that are kept until the shards have them on their disks. Others as of `Client`."""
        self.mailbox = mailbox
        self.away = 0
        self._redo_most = redo_most
        self._lines = list(lines)
        self._numbered = {line.piece.number: line for line in lines}
        self._patience_s = patience_s
        self._retry_s = retry_s
        self._clock = clock
        self._unsaved = 0  # pushes that were given up for a shard that cannot write
        self._repeats = 0
        self._steps = deque[tuple[int, list[int]]]()  # of pushes on their way, with the number of each line's last
        self._settled = 0

    def __iter__(self) -> Iterator[Line]:
        return iter(self._lines)

    def __len__(self) -> int:
        return len(self._lines)

    @property
    def name(self) -> str:
        """The worker's."""
        return self.mailbox.channel.name

    @property
    def first(self) -> Line:
        """That of the first slice."""
        return self._lines[0]

    @property
    def hurried(self) -> bool:
        """Whether so many pushes are kept that the shards should write soon."""
        return self._redo_bytes > self._redo_most // 2

    @property
    def full(self) -> bool:
        """Whether no more can be kept."""
        return self._redo_bytes > self._redo_most

    @property
    def settled(self) -> int:
        """All shards have acknowledged what was pushed of the steps before this one, as far as was heard so far."""
        self._settle()
        return self._settled

    def pushed(self, step: int) -> None:
        """All lines have pushed a step."""
        self._steps.append((step, [line.sent for line in self._lines]))
        self._settle()

    def send(self, line: Line, message: Message) -> Message:
        """Send a message of a line to its shard; as the channel keeps it."""
        line.bytes_out += message.bytes
        return self.mailbox.send(line.shard, message)

    def hear(self, wanted: Callable[[], list[Key]], *, patient: bool = False) -> Message | None:
        """The next of the wanted messages; None where something came unasked, which may have changed what is wanted.

        patient: whether it is others that are waited for, which may take long. After a silence everything unanswered is
        said again.
        """
        since: float | None = None
        most_s = self._patience_s if patient else self.mailbox.timeout_s
        while True:
            within_s = min(self._retry_s, self.mailbox.timeout_s)
            try:
                message = self.mailbox.wait([*wanted(), *self._tidings], timeout_s=within_s)
            except SilenceError as error:
                if not patient and within_s == most_s:
                    raise
                now = self._clock()
                since = now - within_s if since is None else since
                if now - since >= most_s:
                    state = " (it waits for other replicas)" if patient else ""
                    raise silence(self.name, most_s, state=state) from error
                self._say_again()
                continue
            if message.kind not in ("moved", "durable"):
                return message
            self._take_in(message)
            return None

    def collect(self) -> None:
        """Take note of the acknowledgements that have come."""
        for key in self._tidings:
            while (message := self.mailbox.take(key)) is not None:
                self._take_in(message)
        for line in self._lines:
            for key in line.awaited:
                while (message := self.mailbox.take(key)) is not None:
                    self._note(line, message)

    def note(self, message: Message) -> None:
        """An acknowledgement was heard."""
        self._note(self._numbered[message.edge], message)

    def holds(self, line: Line) -> None:
        """The shard has values: it says so, or has sent some, and then its word on that may have been lost."""
        self.away -= line.putting
        line.putting = 0

    def statistics(self) -> dict[str, int]:
        """Plain data: messages that were said again, and pushes that no disk has and that were not kept."""
        return {"repeats": self._repeats, "unsaved": self._unsaved}

    def __repr__(self) -> str:
        return f"Lines({self.name}, {len(self)}, away={self.away}, settled={self._settled})"

    def _settle(self) -> None:
        acknowledged = [line.acknowledged for line in self._lines]
        while self._steps and all(map(ge, acknowledged, self._steps[0][1])):
            self._settled = self._steps.popleft()[0] + 1

    @property
    def _redo_bytes(self) -> int:
        return sum(line.redo_bytes for line in self._lines)

    @property
    def _tidings(self) -> list[Key]:
        """What comes unasked."""
        return [MOVED, *((shard, "durable", 0, 0, 0) for shard in sorted({line.shard for line in self._lines}))]

    def _note(self, line: Line, message: Message) -> None:
        match message.kind:
            case "held":
                self.holds(line)
            case "left":
                line.leaving = False
            case "joined":
                line.joining, line.joined = None, message.body["step"]
            case "again" if message.body["attempt"] == line.attempt:
                self._repeat(line, line.again(message.body["number"]))
            case "pushed":
                number = message.body["number"]
                if number > line.sent:
                    told = f"{self.name}: {line.shard} acknowledges push {number}; the last was {line.sent}"
                    raise NetworkError("E552", told)
                self.away -= line.acknowledge(number)
                line.durable(message.body["durable"])

    def _take_in(self, message: Message) -> None:
        """News of a shard: another is in its place, or what it has on its disk."""
        body = message.body
        if message.kind == "moved":
            for line in [line for line in self._lines if line.piece.shard == body["shard"]]:
                self._repeat(line, line.anew(body["name"]))
            return
        for line in [line for line in self._lines if line.shard == message.sender]:
            number = body["numbers"].get(str(line.piece.number), 0)
            self.away -= line.acknowledge(number)  # what is on its disk has arrived, though that was not heard
            line.durable(number)
            while body["failing"] and self.hurried and line.redo and line.redo[0][0] <= line.acknowledged:
                line.durable(line.redo[0][0])  # it goes on without the promise that nothing is lost
                self._unsaved += 1

    def _say_again(self) -> None:
        """Repeat all that is unanswered: it, or the answer, was lost on the way."""
        for line in self._lines:
            if line.putting and line.put is not None:
                self._repeat(line, [line.put()])
            self._repeat(line, line.again(line.acknowledged) if line.sent > line.acknowledged else [])
            self._repeat(line, [line.asked] if line.asked is not None else [])
            self._repeat(line, [line.leave()] if line.leaving else [])
            self._repeat(line, [line.joining] if line.joining is not None else [])

    def _repeat(self, line: Line, messages: list[Message]) -> None:
        for message in messages:
            self._repeats += 1
            self.send(line, message)
