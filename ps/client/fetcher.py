"""`Fetcher`: requests the values of all slices from the shards and installs them in the worker's buffer.

With a local rate the worker has already taken steps with gradients that the fetched values may not contain; those steps
are taken again on the new values, so that the worker always sees its own pushes (read your writes).
"""

from collections import deque
from collections.abc import Callable
from typing import Any

from torch import Tensor

from ...runtime.channel.mailbox import MessageKey
from ...runtime.channel.message import Message
from ...runtime.worker.flat_gradient import FlatGradient
from ..slices.sparse_rows import SparseRows, descend, install_rows, parse_rows
from ..slices.staleness import VersionSkew
from .sessions import Sessions
from .slice_session import SliceSession


class Fetcher:
    """The fetches of one client, one after the other.

    values: the flat buffer [n] of the machine, which fetches change in place. unpushed_count: in an exchange, how many
    sessions have yet to push; a slice is requested only with its push or after it. count: fetches so far.
    """

    def __init__(
        self, sessions: Sessions, values: Tensor, *, local_rate: float, replica: int, window_bytes: int
    ) -> None:
        """Take the same arguments as `Client`."""
        self.values = values
        self.unpushed_count = 0
        self.count = 0
        self._sessions = sessions
        self._local_rate = local_rate
        self._replica = replica
        self._window_bytes = window_bytes
        self._min_version = 0  # the version that the shards wait for
        self._min_step = 0  # the steps of every replica that the shards wait for
        self._changed_only = False
        self._to_request = deque[SliceSession]()
        self._requested: dict[int, SliceSession] = {}  # by slice number
        self._requested_bytes = 0
        self._skew = VersionSkew()

    @property
    def is_active(self) -> bool:
        """Whether a fetch has begun and is not completely installed."""
        return bool(self._requested or self._to_request)

    @property
    def waits_for_peers(self) -> bool:
        """Whether the shards answer only after pushes of other replicas."""
        return self._min_version > 0 or self._min_step > 0

    @property
    def awaited_keys(self) -> list[MessageKey]:
        """The mailbox keys of the values that were requested."""
        return [session.values_key for session in self._requested.values()]

    def begin(self, min_version: int, min_step: int, *, changed_only: bool) -> None:
        """Begin a fetch without requesting anything yet. RuntimeError if the last one is not complete."""
        if self.is_active:
            raise RuntimeError(f"{self._sessions.name} fetches while a fetch is under way; wait for it first")
        self.count += 1
        self._min_version, self._min_step, self._changed_only = min_version, min_step, changed_only
        self._to_request.extend(self._sessions)

    def request_more(self) -> None:
        """Request slices as long as the window has room for their values."""
        while len(self._to_request) > self.unpushed_count:
            session = self._to_request[0]
            message = self._next_request()
            if message is None:
                return
            self._sessions.send(session, message)

    def attach_to_push(self, session: SliceSession) -> Message | None:
        """Return the request of this slice, to travel with its push; None if another is next or the window is full."""
        return self._next_request() if self.unpushed_count and self._to_request[0] is session else None

    def _next_request(self) -> Message | None:
        """Make the request of the next slice; None if the window has no room for its values."""
        session = self._to_request[0]
        body = {"min_version": self._min_version, "min_step": self._min_step, "replica": self._replica}
        if self._changed_only and session.fetched_version is not None:
            body["since"] = session.fetched_version
        size = session.expected_bytes if "since" in body else session.piece.size * self.values.element_size()
        if self._requested and self._requested_bytes + size > self._window_bytes:
            return None
        self._to_request.popleft()
        self._requested_bytes += size
        session.fetch_bytes = size
        self._requested[session.piece.number] = session
        session.fetch_request = Message("fetch", step=self.count, edge=session.piece.number, body=body)
        return session.fetch_request

    def install_arrived(self, unpushed: Tensor | FlatGradient | None = None) -> bool:
        """Install the slices that have arrived. Return whether the fetch is complete. unpushed: see `Client.wait`."""
        self._sessions.collect_arrived()
        while arrived := self._sessions.take_values():
            for message in arrived:
                self._install(message, unpushed)
            self.request_more()
            self._sessions.collect_arrived()
        return not self.is_active

    def installing(self, is_blocked: Callable[[], bool]) -> Callable[[], bool]:
        """Return `is_blocked` so that each call during an exchange installs the slices that have arrived, too."""

        def install_and_look() -> bool:
            if self.unpushed_count:
                self.install_arrived()
            return is_blocked()

        return install_and_look

    @property
    def skew(self) -> dict[str, Any]:
        """Plain data: how far apart the versions of the slices of one fetch were."""
        return self._skew.statistics()

    def __repr__(self) -> str:
        return f"Fetcher({self.count}, {len(self._to_request)} to request, {len(self._requested)} requested)"

    def _install(self, message: Message, unpushed: Tensor | FlatGradient | None) -> None:
        session = self._requested.pop(message.edge)
        session.fetch_request = session.make_put = None
        self._sessions.acknowledge_put(session)  # a shard that sends values has them, even if its put_ack was lost
        session.bytes_in += message.bytes
        self._requested_bytes -= session.fetch_bytes
        session.expected_bytes, session.fetched_version = message.bytes, message.body["version"]
        if not self.is_active:
            self._skew.add([one.fetched_version for one in self._sessions if one.fetched_version is not None])
        values = session.slice_of(self.values)
        rows = parse_rows(message.body, message.tensors, session.piece, values.dtype)
        unchanged = message.body.get("unchanged", False)
        if rows is not None:
            install_rows(values, rows)
        elif not unchanged:
            values.copy_(message.tensors[0])
        own = self._take_missing_gradients(session, message.body["applied"])
        session.version = message.body["version"] + len(own)
        if self._local_rate == 0.0 or unchanged:
            return
        if session.packer.residual is not None:  # what compression has withheld so far
            own.append(session.packer.residual)
        if unpushed is not None:
            own.append(session.slice_of(unpushed.flat if isinstance(unpushed, FlatGradient) else unpushed))
        for gradient in own:
            descend(values, gradient, self._local_rate, among=rows)

    def _take_missing_gradients(self, session: SliceSession, applied: int) -> list[Tensor | SparseRows]:
        """Return the gradients that were pushed since the request and that the fetched values do not contain.

        A shard handles the messages of one sender in order, so the values contain what was pushed before the request,
        unless it was lost and is still to be sent again. A fetch that waited at the shard also contains later pushes,
        up to number `applied`.
        """
        size, dtype = session.piece.size, self.values.dtype
        own = [payload.to_gradient(size, dtype) for number, payload in session.unfetched_pushes if number > applied]
        session.unfetched_pushes.clear()
        return own
