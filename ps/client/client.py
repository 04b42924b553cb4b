"""`Client`: a worker's view of the shards - put, fetch, push, wait. Fetches and pushes run while the worker computes.

The worker sees its own pushes (read your writes): with a local rate, the values that a fetch brings are those of the
shard plus the local steps of every gradient that they do not contain yet. So a lone replica is never behind itself.
Where pushes are compressed, what a shard is to contain is what it makes of a push (`packed.gradient`), and what that
has lost is a gradient like the others until a later push brings it: the values are those without compression.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from ...runtime.worker.flat_gradient import Gradient
from ...runtime.channel.mailbox import Key, Mailbox
from ...runtime.channel.message import Message
from ..slices.compression import AnyCompression
from .fetch import Fetching
from ..slices.slicing import Slice
from .slice_session import Line
from .sessions import Lines
from ..slices.push_payload import Packed, Packer
from ..slices.sparse_rows import Rows

WINDOW_BYTES = 32 << 20
REDO_BYTES = 64 << 20  # of pushes that are not on a shard's disk, which a client keeps before it waits
GIVEN_BYTES = 2 * REDO_BYTES  # of whole gradients that may be kept for one slice of them; beyond, slices are copied


class Client:
    """Moves the values of one machine's parameters to and from their shards."""

    def __init__(
        self,
        mailbox: Mailbox,
        slices: Sequence[Slice],
        values: Tensor,
        *,
        local_rate: float = 0.0,
        replica: int = 0,
        initial: bool = False,
        compression: AnyCompression | None = None,
        unacknowledged: int = 8,
        window_bytes: int = WINDOW_BYTES,
        patience_s: float = 24 * 3600.0,
        retry_s: float = 15.0,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Of the machine whose flat buffer is `values` [n], which fetches change in place and which needs no gradient.

        slices: those of this machine; they cover [0, n).
        local_rate: of the step that the worker takes itself with every gradient; 0 where it takes none.
        replica: the number of the worker's replica.
        initial: whether `values` are those that the shards begin with, so that they need not be fetched.
        compression: of pushes.
        unacknowledged: pushes of a slice in flight; with more, `push` waits.
        window_bytes: in flight at most each way, so that neither end ever holds a second copy of everything.
        patience_s: how long a fetch may wait for pushes of others (warm start); other waits end at the mailbox's.
        retry_s: silence after which everything unanswered is said again.
        """
        held = sum(piece.size for piece in slices)
        if held != values.numel():
            raise ValueError(f"slices of {held} elements for {values.numel()} values: {list(slices)}")
        lines = [Line(piece, Packer(compression), replica, initial=initial) for piece in slices]
        self.local_rate = local_rate
        self.replica = replica
        self.elsewhere: dict[str, dict[str, int]] = {}  # what `exchanged` has counted, by peer
        self._mailbox = mailbox
        self._lines = Lines(mailbox, lines, redo_most=REDO_BYTES, patience_s=patience_s, retry_s=retry_s, clock=clock)
        self._fetching = Fetching(
            self._lines, values, local_rate=local_rate, replica=replica, window_bytes=window_bytes
        )
        self._unacknowledged = unacknowledged
        self._window_bytes = window_bytes
        self._clock = clock
        self._pushes = 0
        self._blocked_s = {"fetch": 0.0, "push": 0.0}

    @property
    def values(self) -> Tensor:
        """The machine's flat buffer [n]."""
        return self._fetching.values

    @values.setter
    def values(self, values: Tensor) -> None:
        self._fetching.values = values

    @property
    def name(self) -> str:
        """The worker's."""
        return self._lines.name

    @property
    def fetching(self) -> bool:
        """Whether a fetch was asked for and is not installed yet."""
        return self._fetching.under_way

    @property
    def version(self) -> int:
        """Of the values as the last fetch brought them: the least of all slices."""
        return min((line.version for line in self._lines), default=0)

    @property
    def settled(self) -> int:
        """All shards have acknowledged what was pushed of the steps before this one, as far as was heard so far."""
        return self._lines.settled

    @property
    def in_flight(self) -> int:
        """Pushes that are not acknowledged yet, of the slice that has most of them."""
        return max((line.sent - line.acknowledged for line in self._lines), default=0)

    def put(self, version: int = 0, state: Mapping[str, Tensor] | None = None) -> None:
        """Give the shards values; one replica does. They keep them where they have none of this version or a later.

        version: updates that the values contain, 0 for the initial ones. state: what the rule remembers of them, by
        name, each [n]; where nothing is said, the rule begins.
        """
        names = sorted(state or {})
        flats = [self.values, *((state or {})[name] for name in names)]
        for line in self._lines:
            self._await_room(line, line.piece.size * self.values.element_size())
            line.put = lambda line=line: Message(
                "put",
                edge=line.piece.number,
                body={"version": version, "state": names},
                tensors=tuple(line.of(flat) for flat in flats),
                borrowed=True,
            )
            message = line.put()
            line.putting = message.bytes
            self._lines.away += line.putting
            self._lines.send(line, message)

    def fetch(self, at_least: int = 0, slowest: int = 0, *, changes: bool = False) -> None:
        """Ask all shards for the values; returns at once.

        Each shard answers once its slice has version `at_least` and every replica has pushed `slowest` steps. As many
        slices are asked for as the window has room for, the others as those arrive.
        changes: ask for what has changed since the last fetch alone, because the values are still what that one brought
        or what training begins with, but for steps of the local rate with gradients that were pushed or still will be.
        """
        self._fetching.begin(at_least, slowest, changes=changes)
        self._fetching.ask()

    def exchange(
        self,
        gradients: Tensor | Gradient,
        step: int,
        *,
        base: int | None = None,
        at_least: int = 0,
        slowest: int = 0,
        changes: bool = False,
        given: bool = False,
    ) -> None:
        """`push`, and `fetch` what that makes of the values: each slice is asked for along with its push.

        So both ways are in use at once, and no other push comes between, as long as there is room for the values. Some
        slices may be installed already when this returns, the others as always.
        """
        self._fetching.begin(at_least, slowest, changes=changes)
        self._fetching.behind = len(self._lines)
        self.push(gradients, step, base=base, given=given)

    def arrived(self, unpushed: Tensor | Gradient | None = None) -> bool:
        """Install the slices that have come; whether the fetch is complete. For `unpushed` see `wait`."""
        return self._fetching.arrived(unpushed)

    def wait(self, unpushed: Tensor | Gradient | None = None) -> None:
        """Install every slice of the fetch; returns at once where none is under way.

        unpushed: gradients [n] that were computed and not pushed yet; with a local rate their step is taken again.
        """
        start = self._clock()
        while self._fetching.awaited:
            message = self._lines.hear(lambda: self._fetching.awaited, patient=self._fetching.patient)
            if message is not None:
                self._fetching.receive(message, unpushed)
        self._blocked_s["fetch"] += self._clock() - start

    def push(self, gradients: Tensor | Gradient, step: int, *, base: int | None = None, given: bool = False) -> None:
        """Send `gradients` [n] to the shards, of the tables of a `Gradient` the rows that were touched.

        With a local rate, the caller has taken their step.
        base: the version that they were computed on, where that is not the one fetched. given: nobody will write to
        their memory again; without that they are copied.
        """
        self._lines.collect()
        self._pushes += 1
        kept = max((len(line.redo) for line in self._lines), default=0)
        given = given and (kept + 1) * self.values.nbytes <= GIVEN_BYTES
        for line in self._lines:
            packed = line.pack(gradients, given=given)
            self._await_room(line, sum(tensor.nbytes for tensor in packed.tensors))
            self._push(line, packed, step, base, self._fetching.along(line))
            if self._fetching.behind:
                self._fetching.behind -= 1
                self._fetching.ask()
                self._fetching.arrived()
        self._lines.pushed(step)

    def join(self, step: int) -> int:
        """Tell the shards that the replica takes part, with this step or a later one; the step that it takes.

        It goes on after those that it has pushed; where it was not there, it is as far as the slowest from now on.
        """
        for line in self._lines:
            self._lines.send(line, line.join(step))
        self._await(lambda: [line for line in self._lines if line.joining is not None])
        return max((line.joined for line in self._lines), default=step)

    def leave(self) -> None:
        """Tell the shards that the replica takes no more steps, and wait until they have all pushes on their disks."""
        for line in self._lines:
            self._lines.send(line, line.leave())
        self.drain()

    def tell(self, kind: str, body: dict[str, Any]) -> None:
        """Send a message of this kind to the shard that holds the first slice."""
        first = self._lines.first
        self._lines.send(first, Message(kind, edge=first.piece.number, body=body))

    def ask(self, kind: str, answer: str, body: dict[str, Any]) -> dict[str, Any]:
        """`tell`, and wait for the shard's answer, a message of another kind; its body."""
        self.tell(kind, body)
        return self._mailbox.wait([self._lines.first.key(answer)]).body

    def exchanged(self, peer: str, bytes_out: int, messages_out: int, seconds: float) -> None:
        """Count what the worker has sent to another elsewhere than here, and as long as it has waited there."""
        self._blocked_s["push"] += seconds
        self._mailbox.waited_s += seconds
        counts = self.elsewhere.setdefault(peer, dict.fromkeys(("bytes_in", "messages_in"), 0))
        counts["bytes_out"] = counts.get("bytes_out", 0) + bytes_out
        counts["messages_out"] = counts.get("messages_out", 0) + messages_out

    def drain(self) -> None:
        """Wait until all that was put or pushed is acknowledged."""
        self._await(lambda: [line for line in self._lines if line.unanswered])

    def statistics(self) -> dict[str, Any]:
        """Plain data: fetches, pushes, seconds spent waiting for either, the skew, and tensor bytes by shard."""
        shards = {line.shard: {"bytes_in": 0, "bytes_out": 0} for line in self._lines}
        for line in self._lines:
            shards[line.shard]["bytes_in"] += line.bytes_in
            shards[line.shard]["bytes_out"] += line.bytes_out
        blocked = {f"{what}_blocked_s": seconds for what, seconds in self._blocked_s.items()}
        counts = {"fetches": self._fetching.count, "pushes": self._pushes, **self._lines.statistics()}
        return {**counts, **blocked, "skew": self._fetching.skew, "shards": shards}

    def __repr__(self) -> str:
        versions: dict[str, list[int]] = {}
        for line in self._lines:
            versions.setdefault(line.shard, []).append(line.version)
        least = {shard: min(several) for shard, several in versions.items()}
        return f"Client({self.name}, versions={least}, fetching={self.fetching}, in_flight={self.in_flight})"

    def _push(
        self, line: Line, packed: Packed | Rows, step: int, base: int | None, fetch: Message | None = None
    ) -> None:
        base = line.version if base is None else base
        message = line.push(packed, step, base, hurry=self._lines.hurried, fetch=fetch)
        message = self._lines.send(line, message)
        line.keep(message)
        self._lines.away += message.bytes
        if self.local_rate == 0.0:
            return
        line.version += 1  # the caller's local step
        if line.fetching and fetch is None:
            line.later.append((line.sent, packed.kept(message.tensors)))

    def _await_room(self, line: Line, size: int) -> None:
        """Wait until one more message of `size` bytes may be in flight: of this slice, and of the bytes of all."""

        def wanted() -> list[Line]:
            if line.sent - line.acknowledged >= self._unacknowledged:
                return [line]
            if self._lines.away and self._lines.away + size > self._window_bytes:
                return [other for other in self._lines if other.unanswered]
            return [other for other in self._lines if other.redo] if self._lines.full else []

        self._await(wanted)

    def _await(self, wanted: Callable[[], list[Line]]) -> None:
        """Wait for acknowledgements of the wanted lines until none are wanted."""
        if not wanted():
            return
        start = self._clock()
        self._lines.collect()
        while wanted():
            message = self._lines.hear(self._awaited)
            if message is not None and message.kind == "values":
                self._fetching.receive(message)
            elif message is not None:
                self._lines.note(message)
        self._blocked_s["push"] += self._clock() - start

    def _awaited(self) -> list[Key]:
        """The acknowledgements that are to come, and in an exchange values."""
        coming = self._fetching.awaited if self._fetching.behind else []
        return [*(key for line in self._lines for key in line.awaited), *coming]
