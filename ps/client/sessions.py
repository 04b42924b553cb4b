"""`Sessions`: all messages between a client and its shards, delivered exactly once over a network that may lose them.

What makes delivery exact: every push has a sequence number per client and slice, so a shard applies it once however
often it arrives; a retry (`_retransmit`) repeats what was not answered in time; the replay buffer of each session keeps
pushes until they are durable; and when the launcher announces a replaced shard, its sessions replay to the new one.
"""

import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Sequence
from operator import ge
from typing import Any

from ...errors import NetworkError
from ...runtime.channel.channel import SilenceError, silence_error
from ...runtime.channel.mailbox import Mailbox, MessageKey, describe_keys
from ...runtime.channel.message import LAUNCHER, Message
from .replay_limit import REPLAY_BYTES
from .slice_session import SliceSession

# What shards send to a client unasked or in answer, and the launcher of a shard that another role replaces.
KINDS = ("values", "put_ack", "push_ack", "leave_ack", "join_ack", "resend", "durable", "shard_replaced")
ROUNDING_S = 1e-6  # by which what was waited for in parts may be less than the whole


class Sessions:
    """The sessions of a client, one per slice, in the order of the slices.

    bytes_in_flight: bytes of put and pushed tensors that the shards have not acknowledged.
    """

    def __init__(
        self,
        mailbox: Mailbox,
        sessions: Sequence[SliceSession],
        *,
        max_replay_bytes: int,
        peer_timeout_s: float = 24 * 3600.0,
        retransmit_s: float = 15.0,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """max_replay_bytes: limit of the replay buffers together. For the other arguments see `Client`."""
        self.mailbox = mailbox
        self.bytes_in_flight = 0
        self._max_replay_bytes = max_replay_bytes
        self._expected_bytes = min(REPLAY_BYTES, max_replay_bytes)  # in the replay buffers, until a journal has them
        self._sessions = list(sessions)
        self._by_slice = {session.piece.number: session for session in sessions}
        self._peer_timeout_s = peer_timeout_s
        self._retransmit_s = retransmit_s
        self._clock = clock
        self._unsaved = 0  # pushes dropped from the replay buffer although no shard could write them
        self._resent = 0
        self._replay_bytes = 0  # of all sessions
        self._kept_bytes = Counter[int]()  # the same by shard
        sizes = Counter[int]()
        for session in self._sessions:
            sizes[session.piece.shard] += session.piece.size
        self._shares = {shard: size / sizes.total() for shard, size in sizes.items()}
        self._arrived = mailbox.divert(KINDS)
        self._values: dict[int, Message] = {}  # by slice, those of the current fetch that were not taken yet
        self._steps = deque[tuple[int, list[int]]]()  # steps not yet durable, with the last push of each session
        self._durable_step = 0
        self._answering = set[str]()  # shards that have answered something since a wait last looked

    def __iter__(self) -> Iterator[SliceSession]:
        return iter(self._sessions)

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def name(self) -> str:
        """The name of the worker."""
        return self.mailbox.channel.name

    @property
    def first(self) -> SliceSession:
        """The session of the first slice."""
        return self._sessions[0]

    @property
    def needs_flush(self) -> bool:
        """Whether the replay buffers are more than half full, so that the shards should write their journals."""
        return self._replay_bytes > self._max_replay_bytes // 2

    def choose_flush(self, session: SliceSession, size: int) -> int:
        """Return the number of the push that shall be durable soon, where one more of `size` bytes follows; 0 for none.

        It is in the older half of what is kept for the shard, where that is more than half of its share of what is
        expected. A shard need not write its journal again for a push that is in the one which it is writing, so it
        writes one for each half of its share.
        """
        if self._replay_bytes + size > self._max_replay_bytes:
            return session.sent + 1  # as the next one waits
        shard, kept = session.piece.shard, session.sent + 1 - session.durable
        is_half_full = self._kept_bytes[shard] + size > self._shares[shard] * self._expected_bytes / 2
        return session.durable + kept // 2 if is_half_full else 0

    @property
    def is_full(self) -> bool:
        """Whether the replay buffers are full, so that pushes must wait."""
        return self._replay_bytes > self._max_replay_bytes

    @property
    def durable_step(self) -> int:
        """The step before which every push is durable on its shard, as far as messages were handled."""
        self._advance_durable_step()
        return self._durable_step

    def record_step(self, step: int) -> None:
        """Record that all sessions have pushed a step."""
        self._steps.append((step, [session.sent for session in self._sessions]))
        self._advance_durable_step()

    def send(self, session: SliceSession, message: Message) -> Message:
        """Send a message to the session's shard. Return it as the channel keeps it, with copies of borrowed tensors."""
        session.bytes_out += message.bytes
        return self.mailbox.send(session.shard, message)

    def record_push(self, session: SliceSession, message: Message) -> None:
        """Keep a push that was just sent, until it is durable, and count its bytes.

        Where more is kept than expected, journals take longer than half of that: from then on twice as much is kept.
        """
        session.record_push(message)
        self.bytes_in_flight += message.bytes
        self._count_replay(session, message.bytes)
        if self._replay_bytes > self._expected_bytes:
            self._expected_bytes = min(2 * self._expected_bytes, self._max_replay_bytes)

    def wait_while(
        self,
        is_blocked: Callable[[], bool],
        wanted: Callable[[], list[MessageKey]],
        *,
        waits_for_peers: bool = False,
    ) -> None:
        """Handle what arrives as long as something blocks; `take_values` returns the values among it.

        is_blocked: looks again whether it does; it may send. wanted: returns the keys of what is waited for, which an
        error names. waits_for_peers: whether that depends on other replicas, so that the long `peer_timeout_s` applies.

        What a shard has not answered is sent to it again after each `retransmit_s` in which it has answered nothing,
        whatever else arrives meanwhile. SilenceError once a shard has been so silent for as long as the timeout.
        """
        timeout_s = self._peer_timeout_s if waits_for_peers else self.mailbox.timeout_s
        look_s = min(self._retransmit_s, self.mailbox.timeout_s)
        silent_since: dict[str, float] = {}  # by shard
        looked_at, is_silent, connections = self._clock(), False, ""
        self._answering.clear()
        while is_blocked():
            now = self._clock()
            if is_silent or now - looked_at >= look_s:
                self.collect_arrived()  # a process that was stopped has answers that it has not seen
                unanswered = {session.shard for session in self._sessions if session.is_unanswered}
                silent_since = {shard: silent_since.get(shard, looked_at) for shard in unanswered - self._answering}
                self._answering.clear()
                looked_at = now
                if silent_since and now - min(silent_since.values()) >= timeout_s - ROUNDING_S:
                    raise self._silence_error(silent_since, timeout_s, wanted(), connections, waits_for_peers)
                self._retransmit(silent_since)
            try:
                self.mailbox.wait_next(timeout_s=looked_at + look_s - now)
                is_silent, connections = False, ""
            except SilenceError as error:  # although by the clock it may be too early yet, by a rounding
                is_silent, connections = True, error.state
            self._handle_arrived()

    def collect_arrived(self) -> None:
        """Handle what has arrived, without waiting."""
        self.mailbox.collect()
        self._handle_arrived()

    def take_values(self) -> list[Message]:
        """Return the values of the current fetch that have arrived since this was called last."""
        values = list(self._values.values())
        self._values.clear()
        return values

    def acknowledge_put(self, session: SliceSession) -> None:
        """Record that the shard has values, as it has acknowledged the put or has sent values itself."""
        self.bytes_in_flight -= session.put_bytes
        session.put_bytes = 0

    def statistics(self) -> dict[str, int]:
        """Return plain data: repeats, the messages sent again; unsaved, the pushes given up while disks were full."""
        return {"repeats": self._resent, "unsaved": self._unsaved}

    def __repr__(self) -> str:
        progress = f"bytes_in_flight={self.bytes_in_flight}, durable_step={self._durable_step}"
        return f"Sessions({self.name}, {len(self)}, {progress})"

    def _advance_durable_step(self) -> None:
        durable = [session.durable for session in self._sessions]
        while self._steps and all(map(ge, durable, self._steps[0][1])):
            self._durable_step = self._steps.popleft()[0] + 1

    def _handle_arrived(self) -> None:
        while self._arrived:
            self._handle(self._arrived.popleft())

    def _handle(self, message: Message) -> None:
        match message.kind:
            case "shard_replaced" if message.sender == LAUNCHER:
                self._replace_shard(message.body["shard"], message.body["name"])
            case "durable":
                for session in self._sessions:
                    if session.shard == message.sender:
                        self._release_reported(session, message.body)
            case _:
                answered = self._by_slice.get(message.edge)
                if answered is not None and answered.shard == message.sender:  # not of a shard that was replaced
                    self._answering.add(message.sender)
                    self._handle_answer(answered, message)

    def _handle_answer(self, session: SliceSession, message: Message) -> None:
        body = message.body
        match message.kind:
            case "values":
                # Values that contain a push acknowledge it, too: the shard sends no other answer then.
                self._acknowledge(session, min(body["applied"], session.sent), body["durable"])
                if session.fetch_request is not None and session.fetch_request.step == message.step:
                    self._values[message.edge] = message
            case "push_ack":
                number = body["number"]
                if number > session.sent:
                    facts = f"{self.name}: {session.shard} acknowledges push {number}; the last was {session.sent}"
                    raise NetworkError("E552", facts)
                self._acknowledge(session, number, body["durable"])
            case "put_ack":
                self.acknowledge_put(session)
            case "leave_ack":
                session.is_leaving = False
            case "join_ack":
                session.join_request, session.join_step = None, body["step"]
            case "resend" if body["attempt"] == session.attempt:
                self._resend(session, session.resend_after(body["number"]))

    def _acknowledge(self, session: SliceSession, number: int, durable: int) -> None:
        """Record that a session's pushes up to a number have arrived, and that those up to another one are durable."""
        if number > session.acknowledged:
            self._answering.add(session.shard)  # also by a notice
        self.bytes_in_flight -= session.acknowledge(number)
        self._release_durable(session, durable)

    def _release_durable(self, session: SliceSession, number: int) -> None:
        self._count_replay(session, -session.release_durable(number))

    def _count_replay(self, session: SliceSession, size: int) -> None:
        self._replay_bytes += size
        self._kept_bytes[session.piece.shard] += size

    def _release_reported(self, session: SliceSession, body: dict[str, Any]) -> None:
        """Release the pushes that the shard's journal contains; with a failing disk, also those it cannot write."""
        number = body["numbers"].get(str(session.piece.number), 0)
        self._acknowledge(session, number, number)  # what is durable has arrived, even if its acknowledgement was lost
        buffer = session.replay_buffer
        while body["failing"] and self.needs_flush and buffer and buffer[0][0] <= session.acknowledged:
            self._release_durable(session, buffer[0][0])  # exactly-once does not hold for it while the disk is full
            self._unsaved += 1

    def _replace_shard(self, shard: int, name: str) -> None:
        """Go on with another role in place of the one that held a shard."""
        for session in self._sessions:
            if session.piece.shard == shard:
                self._answering.add(name)  # it is silent from now on only
                self._values.pop(session.piece.number, None)  # the other one is asked again
                self._resend(session, session.on_shard_replaced(name))

    def _silence_error(
        self,
        shards: Collection[str],
        timeout_s: float,
        wanted: list[MessageKey],
        connections: str,
        waits_for_peers: bool,
    ) -> SilenceError:
        state = (" (it waits for other replicas)" if waits_for_peers else "") + connections
        missing = f"answer of {', '.join(sorted(shards))}"
        return silence_error(self.name, timeout_s, missing=missing, state=f"{state}; wanted: {describe_keys(wanted)}")

    def _retransmit(self, shards: Collection[str]) -> None:
        """Retry: send these shards everything unanswered again, since it or its answer was lost on the way."""
        for session in self._sessions:
            if session.shard not in shards:
                continue
            if session.put_bytes and session.make_put is not None:
                self._resend(session, [session.make_put()])
            if session.sent > session.acknowledged:
                self._resend(session, session.resend_after(session.acknowledged))
            if session.fetch_request is not None:
                self._resend(session, [session.fetch_request])
            if session.is_leaving:
                self._resend(session, [session.make_leave()])
            if session.join_request is not None:
                self._resend(session, [session.join_request])

    def _resend(self, session: SliceSession, messages: list[Message]) -> None:
        for message in messages:
            self._resent += 1
            self.send(session, message)
