"""`Sessions`: all messages between a client and its shards, delivered exactly once over a network that may lose them.

What makes delivery exact: every push has a sequence number per client and slice, so a shard applies it once however
often it arrives; a retry (`_retransmit`) repeats what was not answered in time; the replay buffer of each session keeps
pushes until they are durable; and when the launcher announces a replaced shard, its sessions replay to the new one.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from operator import ge
from typing import Any

from ...errors import NetworkError
from ...runtime.channel.channel import SilenceError, silence_error
from ...runtime.channel.mailbox import Mailbox, MessageKey
from ...runtime.channel.message import LAUNCHER, Message
from .slice_session import SliceSession

SHARD_REPLACED: MessageKey = (LAUNCHER, "shard_replaced", 0, 0, 0)  # with the shard's index and the new role's name


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
        self._sessions = list(sessions)
        self._by_slice = {session.piece.number: session for session in sessions}
        self._peer_timeout_s = peer_timeout_s
        self._retransmit_s = retransmit_s
        self._clock = clock
        self._unsaved = 0  # pushes dropped from the replay buffer although no shard could write them
        self._resent = 0
        self._steps = deque[tuple[int, list[int]]]()  # steps not yet durable, with the last push of each session
        self._durable_step = 0

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
        """Whether the replay buffers are half full, so that the shards should write their journals soon."""
        return self._replay_bytes > self._max_replay_bytes // 2

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

    def receive_awaited(self, keys: Callable[[], list[MessageKey]], *, waits_for_peers: bool = False) -> Message | None:
        """Wait for one of the wanted messages. Return None after a notice, which may have changed what is wanted.

        waits_for_peers: whether the answer depends on other replicas, so that the long `peer_timeout_s` applies. After
        each `retransmit_s` of silence everything unanswered is sent again. SilenceError at the timeout.
        """
        silent_since: float | None = None
        timeout_s = self._peer_timeout_s if waits_for_peers else self.mailbox.timeout_s
        while True:
            within_s = min(self._retransmit_s, self.mailbox.timeout_s)
            try:
                message = self.mailbox.wait([*keys(), *self._notice_keys], timeout_s=within_s)
            except SilenceError as error:
                if not waits_for_peers and within_s == timeout_s:
                    raise
                now = self._clock()
                silent_since = now - within_s if silent_since is None else silent_since
                if now - silent_since >= timeout_s:
                    state = " (it waits for other replicas)" if waits_for_peers else ""
                    raise silence_error(self.name, timeout_s, state=state) from error
                self._retransmit()
                continue
            if message.kind not in ("shard_replaced", "durable"):
                return message
            self._handle_notice(message)
            return None

    def collect_arrived(self) -> None:
        """Handle the notices and acknowledgements that have arrived, without waiting."""
        self.mailbox.collect()
        for key in self._notice_keys:
            while (message := self.mailbox.take_collected(key)) is not None:
                self._handle_notice(message)
        for session in self._sessions:
            for key in session.awaited_keys:
                while (message := self.mailbox.take_collected(key)) is not None:
                    self._handle_reply(session, message)

    def handle_reply(self, message: Message) -> None:
        """Handle an acknowledgement, or a shard's request to send pushes again."""
        self._handle_reply(self._by_slice[message.edge], message)

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

    @property
    def _replay_bytes(self) -> int:
        return sum(session.replay_bytes for session in self._sessions)

    @property
    def _notice_keys(self) -> list[MessageKey]:
        """The mailbox keys of messages that arrive without a request."""
        shards = sorted({session.shard for session in self._sessions})
        return [SHARD_REPLACED, *((shard, "durable", 0, 0, 0) for shard in shards)]

    def _handle_reply(self, session: SliceSession, message: Message) -> None:
        match message.kind:
            case "put_ack":
                self.acknowledge_put(session)
            case "leave_ack":
                session.is_leaving = False
            case "join_ack":
                session.join_request, session.join_step = None, message.body["step"]
            case "resend" if message.body["attempt"] == session.attempt:
                self._resend(session, session.resend_after(message.body["number"]))
            case "push_ack":
                number = message.body["number"]
                if number > session.sent:
                    facts = f"{self.name}: {session.shard} acknowledges push {number}; the last was {session.sent}"
                    raise NetworkError("E552", facts)
                self.bytes_in_flight -= session.acknowledge(number)
                session.release_durable(message.body["durable"])

    def _handle_notice(self, message: Message) -> None:
        """Handle news of a shard: another role has replaced it, or its journal has been written."""
        if message.kind == "shard_replaced":
            for session in self._sessions:
                if session.piece.shard == message.body["shard"]:
                    self._resend(session, session.on_shard_replaced(message.body["name"]))
            return
        for session in self._sessions:
            if session.shard == message.sender:
                self._release_durable(session, message.body)

    def _release_durable(self, session: SliceSession, body: dict[str, Any]) -> None:
        """Release the pushes that the shard's journal contains; with a failing disk, also those it cannot write."""
        number = body["numbers"].get(str(session.piece.number), 0)
        # A push that is durable has arrived, even if its acknowledgement was lost.
        self.bytes_in_flight -= session.acknowledge(number)
        session.release_durable(number)
        buffer = session.replay_buffer
        while body["failing"] and self.needs_flush and buffer and buffer[0][0] <= session.acknowledged:
            session.release_durable(buffer[0][0])  # exactly-once does not hold for this push while the disk is full
            self._unsaved += 1

    def _retransmit(self) -> None:
        """Retry: send everything unanswered again, since it or its answer was lost on the way."""
        for session in self._sessions:
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
