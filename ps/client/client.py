"""`Client`: a worker's view of the shards - put, fetch, push, wait. Fetches and pushes run while the worker computes.

The worker sees its own pushes (read your writes): with a local rate, the values that a fetch brings are those of the
shard plus the local steps of every gradient that they do not contain yet, so a lone replica never lags behind itself.
With gradient compression, a push counts as what the shard reconstructs from it (`PushPayload.to_gradient`), and the
residual is one more gradient that the shard does not have yet: the values are those without compression.
"""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import Any

from torch import Tensor

from ...runtime.channel.mailbox import Mailbox, MessageKey
from ...runtime.channel.message import Message
from ...runtime.worker.flat_gradient import FlatGradient
from ..slices.compression import AnyCompression
from ..slices.push_payload import GradientPacker, PushPayload
from ..slices.slicing import ParameterSlice
from ..slices.sparse_rows import SparseRows
from .fetcher import Fetcher
from .replay_limit import DONATED_BYTES, REPLAY_BYTES
from .sessions import Sessions
from .slice_session import SliceSession
from .window import choose_window_bytes


class Client:
    """Moves the values and gradients of one machine's parameters to and from the shards that hold them."""

    def __init__(
        self,
        mailbox: Mailbox,
        slices: Sequence[ParameterSlice],
        values: Tensor,
        *,
        local_rate: float = 0.0,
        replica: int = 0,
        initial: bool = False,
        compression: AnyCompression | None = None,
        unacknowledged: int = 8,
        window_bytes: int = 0,
        replay_bytes: int = REPLAY_BYTES,
        peer_timeout_s: float = 24 * 3600.0,
        retransmit_s: float = 15.0,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Create the client of the machine whose flat buffer is `values` [n]; fetches change it in place.

        slices: those of this machine; they cover [0, n).
        local_rate: rate of the plain step that the worker takes itself with every gradient; 0 for none.
        replica: the number of the worker's replica.
        initial: whether the shards begin with the same `values`, so that these need not be fetched.
        compression: how gradients are compressed for pushes.
        unacknowledged: pushes of one slice in flight at most; with more, `push` waits.
        window_bytes: in flight each way at most; 0: as many as suit shards and slices, see window.py.
        replay_bytes: of pushes that are not durable, at most, see replay_limit.py.
        peer_timeout_s: how long a fetch may wait for pushes of other replicas; other waits use the mailbox's timeout.
        retransmit_s: silence of a shard after which everything that it has not answered is sent again.

        Raises ValueError if the slices do not have n elements.
        """
        size = sum(piece.size for piece in slices)
        if size != values.numel():
            raise ValueError(f"slices of {size} elements for {values.numel()} values: {list(slices)}")
        self.local_rate = local_rate
        self.replica = replica
        self.factors: Sequence[float] = ()  # of the learning rate, by the user; they travel with each push
        self.peer_traffic: dict[str, dict[str, int]] = {}  # what `count_peer_traffic` has counted, by peer
        self._mailbox, self._donated_bytes = mailbox, max(DONATED_BYTES, replay_bytes)
        self._sessions = Sessions(
            mailbox,
            [SliceSession(piece, GradientPacker(compression), replica, initial=initial) for piece in slices],
            max_replay_bytes=replay_bytes,
            peer_timeout_s=peer_timeout_s,
            retransmit_s=retransmit_s,
            clock=clock,
        )
        shards, largest = len({piece.shard for piece in slices}), max((piece.size for piece in slices), default=0)
        window = window_bytes or choose_window_bytes(shards, largest * values.element_size())
        self._fetcher = Fetcher(self._sessions, values, local_rate=local_rate, replica=replica, window_bytes=window)
        self._unacknowledged, self._window_bytes = unacknowledged, window
        self._clock, self._pushes = clock, 0
        self._blocked_s = {"fetch": 0.0, "push": 0.0}

    @property
    def values(self) -> Tensor:
        """The machine's flat buffer [n]."""
        return self._fetcher.values

    @values.setter
    def values(self, values: Tensor) -> None:
        self._fetcher.values = values

    @property
    def name(self) -> str:
        """The name of the worker."""
        return self._sessions.name

    @property
    def is_fetching(self) -> bool:
        """Whether a fetch was requested and is not completely installed."""
        return self._fetcher.is_active

    @property
    def version(self) -> int:
        """The lowest version of any slice of the local values."""
        return min((session.version for session in self._sessions), default=0)

    @property
    def durable_step(self) -> int:
        """The step before which every push is durable on its shard, as far as messages were handled."""
        return self._sessions.durable_step

    @property
    def slices(self) -> list[ParameterSlice]:
        """The slices of the machine."""
        return [session.piece for session in self._sessions]

    @property
    def in_flight(self) -> int:
        """Unacknowledged pushes of the slice that has most of them."""
        return max((session.sent - session.acknowledged for session in self._sessions), default=0)

    def put(self, version: int = 0, state: Mapping[str, Tensor] | None = None) -> None:
        """Send the local values to the shards, which keep them unless they have this version or a later one.

        One replica does this. version: updates that the values contain, 0 for initial values. state: tensors [n] of
        optimizer state by name; without them the optimizer starts afresh.
        """
        names = sorted(state or {})
        memory = [(state or {})[name] for name in names]
        for session in self._sessions:
            self._await_room(session, session.piece.size * self.values.element_size())
            session.make_put = lambda session=session: Message(
                "put",
                edge=session.piece.number,
                body={"version": version, "state": names},
                tensors=tuple(session.slice_of(flat) for flat in (self.values, *memory)),  # wherever they are by then
                borrowed=True,
            )
            message = session.make_put()
            session.put_bytes = message.bytes
            self._sessions.bytes_in_flight += session.put_bytes
            self._sessions.send(session, message)

    def fetch(self, min_version: int = 0, min_step: int = 0, *, changed_only: bool = False) -> None:
        """Request the values from all shards, without waiting for them.

        Each shard answers once its slice has version `min_version` and every replica has pushed `min_step` steps. As
        many slices are requested as the window has room for, the others as those arrive.

        changed_only: request only what has changed since the last fetch. The local values must be those that the last
        fetch brought, or the initial ones, except for local steps with gradients that were or will be pushed.
        """
        self._fetcher.begin(min_version, min_step, changed_only=changed_only)
        self._fetcher.request_more()

    def exchange(
        self,
        gradients: Tensor | FlatGradient,
        step: int,
        *,
        base: int | None = None,
        min_version: int = 0,
        min_step: int = 0,
        changed_only: bool = False,
        donate: bool = False,
        skipped: Collection[int] = (),
    ) -> None:
        """Push, and fetch the values that result: each slice is requested in the message of its push.

        So both directions are in use at once, and no other push comes in between, as long as the window has room. Some
        slices may be installed when this returns, the others as after `fetch`.
        """
        self._fetcher.begin(min_version, min_step, changed_only=changed_only)
        self._fetcher.unpushed_count = len(self._sessions)
        self.push(gradients, step, base=base, donate=donate, skipped=skipped)

    def install_arrived(self, unpushed: Tensor | FlatGradient | None = None) -> bool:
        """Install the slices that have arrived. Return whether the fetch is complete. For `unpushed` see `wait`."""
        return self._fetcher.install_arrived(unpushed)

    def wait(self, unpushed: Tensor | FlatGradient | None = None) -> None:
        """Wait until every slice of the fetch is installed; return at once if there is no fetch.

        unpushed: gradients [n] that were computed and not pushed yet; with a local rate their step is taken again.
        """
        if not self._fetcher.is_active:
            return
        start = self._clock()
        self._sessions.wait_while(
            lambda: not self._fetcher.install_arrived(unpushed),
            lambda: self._fetcher.awaited_keys,
            waits_for_peers=self._fetcher.waits_for_peers,
        )
        self._blocked_s["fetch"] += self._clock() - start

    def push(
        self,
        gradients: Tensor | FlatGradient,
        step: int,
        *,
        base: int | None = None,
        donate: bool = False,
        skipped: Collection[int] = (),
    ) -> None:
        """Send `gradients` [n] to the shards; of the sparse tables of a `FlatGradient` only the touched rows.

        With a local rate, the caller has already taken the step.

        base: the version that they were computed on, by default the one fetched. donate: the caller gives their memory
        away for good; otherwise it is copied. skipped: slices, by number, that have the gradients of these steps.
        """
        self._sessions.collect_arrived()
        self._pushes += 1
        kept = max((len(session.replay_buffer) for session in self._sessions), default=0)
        donate = donate and (kept + 1) * self.values.nbytes <= self._donated_bytes
        make = self._mailbox.channel.empty
        for session in self._sessions:
            is_skipped = session.piece.number in skipped
            payload = PushPayload(skipped=True) if is_skipped else session.pack(gradients, donate=donate, make=make)
            size = sum(tensor.nbytes for tensor in payload.tensors)
            self._await_room(session, size)
            self._push(session, payload, size, step, base, self._fetcher.attach_to_push(session))
            if self._fetcher.unpushed_count:
                self._fetcher.unpushed_count -= 1
                self._fetcher.request_more()
                self._fetcher.install_arrived()
        self._sessions.record_step(step)

    def join(self, step: int) -> int:
        """Tell the shards that the replica takes part from this step on. Return the step that it may take.

        That is never before the steps that it has pushed; a replica that is new to the shards joins the slowest.
        """
        for session in self._sessions:
            self._sessions.send(session, session.make_join(step))
        for session in self._sessions:
            self._await(partial(attrgetter("is_joining"), session))
        return max((session.join_step for session in self._sessions), default=step)

    def leave(self) -> None:
        """Tell the shards that the replica takes no more steps, and wait until all its pushes are durable."""
        for session in self._sessions:
            self._sessions.send(session, session.make_leave())
        self.drain()

    def residuals(self) -> dict[str, Tensor]:
        """Return what compression has withheld of each slice so far [slice], by the slice's number."""
        packers = {str(session.piece.number): session.packer for session in self._sessions}
        return {number: packer.residual for number, packer in packers.items() if packer.residual is not None}

    def restore_residuals(self, residuals: Mapping[str, Tensor]) -> None:
        """Withhold what `residuals` returned before the worker was restarted."""
        for session in self._sessions:
            session.packer.residual = residuals.get(str(session.piece.number))

    def notify(self, kind: str, body: dict[str, Any]) -> None:
        """Send a message of this kind to the shard that holds the first slice."""
        first = self._sessions.first
        self._sessions.send(first, Message(kind, edge=first.piece.number, body=body))

    def request(self, kind: str, reply_kind: str, body: dict[str, Any]) -> dict[str, Any]:
        """Send as `notify` does, and wait for the shard's reply of another kind. Return the body of the reply."""
        self.notify(kind, body)
        return self._mailbox.wait([self._sessions.first.key(reply_kind)]).body

    def count_peer_traffic(self, peer: str, bytes_out: int, messages_out: int, seconds: float) -> None:
        """Add to the statistics what the worker sent to a peer by other means, and how long it waited there."""
        self._blocked_s["push"] += seconds
        self._mailbox.waited_s += seconds
        counts = self.peer_traffic.setdefault(peer, dict.fromkeys(("bytes_in", "messages_in"), 0))
        counts["bytes_out"] = counts.get("bytes_out", 0) + bytes_out
        counts["messages_out"] = counts.get("messages_out", 0) + messages_out

    def collect_acknowledgements(self) -> None:
        """Handle the acknowledgements that have arrived, without waiting, so that their pushes cost no more memory."""
        self._sessions.collect_arrived()

    def drain(self) -> None:
        """Wait until everything that was put or pushed is acknowledged."""
        while session := next((one for one in self._sessions if one.is_unacknowledged), None):
            self._await(partial(attrgetter("is_unacknowledged"), session))  # meanwhile another shard may be replaced

    def statistics(self) -> dict[str, Any]:
        """Return plain data: fetches, pushes, seconds spent waiting for either, the skew, and tensor bytes by shard."""
        shards = {session.shard: {"bytes_in": 0, "bytes_out": 0} for session in self._sessions}
        for session in self._sessions:
            shards[session.shard]["bytes_in"] += session.bytes_in
            shards[session.shard]["bytes_out"] += session.bytes_out
        blocked = {f"{kind}_blocked_s": seconds for kind, seconds in self._blocked_s.items()}
        counts = {"fetches": self._fetcher.count, "pushes": self._pushes, **self._sessions.statistics()}
        return {**counts, **blocked, "skew": self._fetcher.skew, "shards": shards}

    def __repr__(self) -> str:
        versions: dict[str, int] = {}
        for session in self._sessions:
            versions[session.shard] = min(versions.get(session.shard, session.version), session.version)
        return f"Client({self.name}, versions={versions}, fetching={self.is_fetching}, in_flight={self.in_flight})"

    def _push(
        self,
        session: SliceSession,
        payload: PushPayload | SparseRows,
        size: int,
        step: int,
        base: int | None,
        fetch: Message | None = None,
    ) -> None:
        base = session.version if base is None else base
        flush, factors = self._sessions.choose_flush(session, size), self.factors
        message = session.make_push(payload, step, base, flush=flush, factors=factors, fetch=fetch)
        message = self._sessions.send(session, message)
        self._sessions.record_push(session, message)
        if self.local_rate == 0.0 or (isinstance(payload, PushPayload) and payload.skipped):
            return
        session.version += 1  # the caller's local step
        if session.fetch_request is not None and fetch is None:
            session.unfetched_pushes.append((session.sent, payload.with_owned(message.tensors)))

    def _await_room(self, session: SliceSession, size: int) -> None:
        """Wait until one more message of `size` bytes may be in flight, for this slice and for all together."""

        def is_blocked() -> bool:
            in_flight = self._sessions.bytes_in_flight
            is_window_full = in_flight > 0 and in_flight + size > self._window_bytes
            return (
                session.sent - session.acknowledged >= self._unacknowledged
                or is_window_full
                or self._sessions.is_full  # until some pushes are durable
            )

        self._await(is_blocked)

    def _await(self, is_blocked: Callable[[], bool]) -> None:
        """Handle what arrives until nothing blocks; in an exchange, install the values among it."""
        if is_blocked():
            start = self._clock()
            self._sessions.wait_while(self._fetcher.installing(is_blocked), self._list_awaited_keys)
            self._blocked_s["push"] += self._clock() - start

    def _list_awaited_keys(self) -> list[MessageKey]:
        """Return the mailbox keys of the acknowledgements that are due, and in an exchange of the values."""
        values_keys = self._fetcher.awaited_keys if self._fetcher.unpushed_count else []
        return [*(key for session in self._sessions for key in session.awaited_keys), *values_keys]
