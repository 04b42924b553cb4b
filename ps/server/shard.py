"""`Shard`: one parameter server. `handle` is its whole protocol, without I/O or a clock (serve_loop.py has both).

The `edge` of a message is the number of the slice that it is about. The messages of clients, and the replies:
  put     {version, state} values [n], states    "put_ack"; ignored if the slice has that version or a later one
  fetch   {min_version, min_step, replica}       "values" {version, applied, durable} values [n], once the slice has
                                                 that version and every replica has pushed so many steps
          {..., since}                           the same, but only what has changed since that version: no tensors with
                                                 {unchanged}, or rows int32 [r] and values [r, width] with {width}
  push    {base, number, replica} gradient [n]   "push_ack" {version, number, durable}, after the update; or "resend"
                                                 {number, attempt} if pushes after that number were lost
          {..., flush}                           the same; the push of this number, unless 0, shall soon be durable
          {..., fetch: {..., step}} gradient     "values" as for that fetch, before any other push; where they can be
                                                 sent at once, in place of "push_ack"
          {..., compression} tensors             the same; the gradient is compressed (push_payload.py)
          {..., width} rows [r], values [r, w]   the same; the gradient of these rows of a sparse table (sparse_rows.py)
          {..., rate}                            the same; the learning rate is multiplied by this, as no schedule says
          {..., skipped}                         the same; nothing is applied, as the slice has the gradient already
  join    {replica, wants_step}                  "join_ack" {step}: the message's step or a later one, which the replica
                                                 may take; without wants_step no reply, it takes the message's step
          {..., gap} gradient                    the same; the client has given up the pushes before this one
  leave   {replica, number}                      "leave_ack" once it and its pushes are durable; it takes no more steps
  store_set {key, value}                         no reply; the first value of a key stays (key_value_store.py)
  store_get {key}                                "store_value" {key, value}, once the key is set
  share_memory {replica}                         "shared_memory" {where, version}, once all slices of the machine have
                                                 values: workers then update them in place (shared_parameters.py)
The launcher sends "checkpoint" {number} and "recovery_point" {number}, to be made when it is due, and receives
"checkpoint_saved", "checkpoint_missed" and so on, or "write_failed". Clients receive "durable" {numbers, failing} after
each journal. The launcher sends "fence" {client} when a client is lost, of which nothing more is taken; "fenced"
{client, steps} says, once that is durable, by slice how many of its steps the values contain.
base: the version of the values that the gradient was computed on, for accumulated gradients the last of them. number:
the sequence number 1, 2, 3, ... of a push, for each client and slice; a repeated one is acknowledged and not applied.
applied: the number of the client's last push that the values contain, and so acknowledge. durable: that of the last
one in the journal.
"""

from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import torch
from torch import Tensor

from ...errors import NetworkError
from ...runtime.channel.message import LAUNCHER, Message
from ..checkpoint.journal import CHECKPOINT, RECOVERY_POINT, Journal
from ..checkpoint.snapshot import Clocks
from ..slices.slice_state import SliceState, sum_counters
from ..slices.slicing import ParameterSlice, format_ranges
from ..slices.staleness import find_quantiles
from .durability import Durability
from .replies import Replies, protocol_error
from .serving import ServingConfig
from .shared_parameters import SharedBuffers
from .slice_server import SliceServer


class Shard:
    """Holds slices of the parameters and applies an optimizer to them."""

    def __init__(
        self,
        index: int,
        slices: Iterable[ParameterSlice],
        serving: ServingConfig,
        *,
        journal: Journal | None = None,
        restored: Iterable[SliceState] = (),
        clocks: Clocks | None = None,
        copy: Callable[[Tensor], Tensor] = torch.clone,
    ) -> None:
        """journal: writes the shard to disk; without one every push counts as durable at once.

        restored, clocks: slices, and the steps of the replicas, that were read from a file; such slices need no "put".
        copy: copies values into memory from which they can be sent, as `Channel.copy` does.
        """
        self.index = index
        self.serving = serving
        self.optimizer = serving.optimizer
        pieces, steps = list(slices), clocks or {}
        states = {state.slice.number: state for state in restored}
        self._durability = Durability(journal, (piece.number for piece in pieces))
        self._slice_servers = {
            piece.number: SliceServer(
                index,
                piece,
                serving,
                self._durability,
                slice_state=states.get(piece.number),
                steps=steps.get(piece.number),
                copy=copy,
            )
            for piece in pieces
        }
        self._shared_buffers = SharedBuffers(self._slice_servers.values(), serving.replicas)
        self._fenced: dict[str, int] = {}  # by client of which nothing is taken, the journal that has all it pushed
        self._unanswered_fences: list[str] = []

    def handle(self, message: Message) -> Replies:
        """Handle one message. Return the replies to it and to fetches that waited for it.

        NetworkError E550 if the message breaks the protocol; Diverged if values cease to be finite.
        """
        if message.sender == LAUNCHER and message.kind == CHECKPOINT:
            self._durability.request_checkpoint(int(message.body["number"]))
            return []
        if message.sender == LAUNCHER and message.kind == RECOVERY_POINT:
            self._durability.request_recovery_point(int(message.body["number"]))
            return []
        if message.sender == LAUNCHER and message.kind == "kept":
            self._durability.confirm(message.body["failure"])
            return []
        if message.sender == LAUNCHER and message.kind == "fence":
            return self._fence(str(message.body["client"]))
        if message.sender in self._fenced:
            return []
        server = self._slice_servers.get(message.edge)
        if server is None:
            facts = f"names slice {message.edge}; this shard has {format_ranges(self._slice_servers)}"
            raise protocol_error(self.index, None, message, facts)
        server.counters.bytes_in += message.bytes
        self._durability.add_client(message.sender)
        match message.kind:
            case "put":
                return [*server.put(message), *self._shared_buffers.answer_requests(server)]
            case "fetch":
                self._shared_buffers.count_updates()
                return server.fetch(message)
            case "push":
                return server.push(message)
            case "join":
                return server.join(message)
            case "leave":
                return [*server.leave(message), *self._acknowledge_leaves()]
            case "store_set" | "store_get":
                return self._access_store(server, message)
            case "share_memory":
                return self._shared_buffers.share(server, message)
        raise server.protocol_error(message, "is of an unknown kind")

    def poll(self) -> Replies:
        """Go on with what is being written, and return the messages about it.

        To be called after each message, and now and then while none arrives.
        """
        servers = self._slice_servers
        states = [server.slice_state for server in servers.values() if server.slice_state is not None]
        if len(states) < len(servers):
            return []
        self._shared_buffers.count_updates()
        was_safe = self._durability.safe
        clocks = {number: server.clocks.steps for number, server in servers.items()}
        replies = self._add_leaves(self._durability.poll(states, self.optimizer, clocks))
        if self._durability.safe and not was_safe:
            replies += [reply for _, server in sorted(servers.items()) for reply in server.answer_fetches()]
        return replies

    def close(self) -> Replies:
        """Wait for what is being written, and return the messages about it."""
        return self._add_leaves(self._durability.close())

    @property
    def busy(self) -> bool:
        """Whether something is being written, so that `poll` should be called again soon."""
        return self._durability.busy

    def slice_states(self) -> list[SliceState]:
        """Return every slice with its values, for a checkpoint. NetworkError E551 if one was never put."""
        self._shared_buffers.count_updates()
        states = [(number, server.slice_state) for number, server in sorted(self._slice_servers.items())]
        missing = [number for number, state in states if state is None]
        if missing:
            machines = sorted({self._slice_servers[number].piece.machine for number in missing})
            raise NetworkError("E551", f"shard-{self.index} never got initial values of machines {machines}")
        return [state for _, state in states if state is not None]

    def statistics(self) -> dict[str, Any]:
        """Return plain data: the shard's index, its optimizer, and for every machine its slices and their counters.

        version: the lowest of a machine's slices. Counts are sums over slices, so a push counts once for each.
        """
        self._shared_buffers.count_updates()
        machines = sorted({server.piece.machine for server in self._slice_servers.values()})
        slices = [self._summarize_machine(machine) for machine in machines]
        return {"shard": self.index, "optimizer": msgspec.to_builtins(self.optimizer), "slices": slices}

    def status(self) -> dict[str, Any]:
        """Return plain data on how the work goes: counts of a slice that has most, and how stale all pushes were."""
        self._shared_buffers.count_updates()
        counters = [server.counters for server in self._slice_servers.values()]
        staleness, unsaved_s = sum_counters(counters).staleness, self._durability.unsaved_s
        return {
            "updates": max((one.updates for one in counters), default=0),
            "pushes": max((one.pushes for one in counters), default=0),
            "late": max((one.late for one in counters), default=0),
            "staleness": find_quantiles(staleness.values()),
            "unsaved_s": None if unsaved_s is None else round(unsaved_s, 3),
        }

    def __repr__(self) -> str:
        versions = {piece["machine"]: piece["version"] for piece in self.statistics()["slices"]}
        waiting = sum(server.waiting for server in self._slice_servers.values())
        return f"Shard({self.index}, {self.optimizer}, versions={versions}, waiting={waiting})"

    def _summarize_machine(self, machine: int) -> dict[str, Any]:
        servers = [server for server in self._slice_servers.values() if server.piece.machine == machine]
        versions = [server.version for server in servers if server.version is not None]
        return {
            "shard": self.index,
            "machine": machine,
            "start": min(server.piece.start for server in servers),
            "stop": max(server.piece.stop for server in servers),
            "slices": len(servers),
            "version": min(versions) if len(versions) == len(servers) else None,
            "clock_gap": max(server.clocks.gap for server in servers),
            **sum_counters(server.counters for server in servers).statistics(),
        }

    def _access_store(self, server: SliceServer, message: Message) -> Replies:
        try:
            return server.store.set(message) if message.kind == "store_set" else server.store.get(message)
        except ValueError as error:
            raise server.protocol_error(message, str(error)) from error

    def _add_leaves(self, replies: Replies) -> Replies:
        """Add the replies to clients that wait to leave to the messages about what was written, if there are any."""
        return [*replies, *(self._acknowledge_leaves() if replies else []), *self._answer_fences()]

    def _fence(self, client: str) -> Replies:
        self._fenced[client] = max(server.fence() for server in self._slice_servers.values())
        self._unanswered_fences.append(client)
        return self._answer_fences()

    def _answer_fences(self) -> Replies:
        """Return the replies to fences that are durable, with all that was pushed before them."""
        durable = [client for client in self._unanswered_fences if self._durability.has_journal(self._fenced[client])]
        self._unanswered_fences = [client for client in self._unanswered_fences if client not in durable]
        counts = {
            client: {str(number): server.count_steps(client) for number, server in self._slice_servers.items()}
            for client in durable
        }
        bodies = [{"client": client, "steps": steps} for client, steps in counts.items()]
        return [(LAUNCHER, Message("fenced", body=body)) for body in bodies]

    def _acknowledge_leaves(self) -> Replies:
        return [reply for server in self._slice_servers.values() for reply in server.acknowledge_leaves()]
