"""`SliceServer`: one slice as its shard serves it - values, who has pushed what, and which fetches wait."""

import math
from collections.abc import Callable, Mapping

import msgspec
import torch
from torch import Tensor

from ...errors import NetworkError
from ...runtime.channel.message import Message
from ..optimizers.optimizer import Update
from ..slices.push_payload import FACTORS, FETCH, SKIPPED, parse_payload
from ..slices.slice_state import SliceCounters, SliceState
from ..slices.slicing import ParameterSlice
from ..slices.sparse_rows import SparseRows, parse_rows
from ..slices.staleness import StalenessHistogram
from .durability import Durability
from .gradient_aggregator import GradientAggregator, PendingPush
from .key_value_store import KeyValueStore
from .pending_fetches import PendingFetch, PendingFetches
from .replies import Replies, protocol_error
from .serving import ServingConfig
from .step_clocks import StepClocks


class SliceServer:
    """Serves a slice. Its methods `put`, `fetch`, `push`, `join` and `leave` handle the messages of these kinds.

    slice_state: None until there are values. store: lets workers exchange addresses.
    """

    def __init__(
        self,
        shard: int,
        piece: ParameterSlice,
        serving: ServingConfig,
        durability: Durability,
        *,
        slice_state: SliceState | None = None,
        steps: Mapping[int, int] | None = None,
        copy: Callable[[Tensor], Tensor] = torch.clone,
    ) -> None:
        """slice_state, steps: the slice and the steps of the replicas, if they were read from a file.

        shard: its index. copy: see `Shard`.
        """
        if slice_state is not None:
            slice_state.value, slice_state.copy = copy(slice_state.value), copy
        self.shard, self.piece, self.slice_state = shard, piece, slice_state
        self.store = KeyValueStore()
        self.counters = SliceCounters()
        self.clocks = StepClocks(serving.replicas, steps)
        self._serving = serving
        self._optimizer = serving.optimizer.of_machine(piece.machine).at(piece.start, piece.stop)
        self._durability = durability
        self._copy = copy
        self._restored = slice_state is not None
        self._aggregator = GradientAggregator()
        self._fetches = PendingFetches(piece)
        self._leaving: dict[str, tuple[int, int]] = {}  # by client, its last push, and the journal that has the leave

    @property
    def version(self) -> int | None:
        """The version of the values; None if there are none."""
        return None if self.slice_state is None else self.slice_state.version

    @property
    def waiting(self) -> int:
        """The number of fetches that wait."""
        return len(self._fetches)

    def put(self, message: Message) -> Replies:
        """Take over values, unless the slice has their version or a later one."""
        version, names = message.body.get("version", 0), message.body.get("state", [])
        present = self.slice_state
        shapes, size = [list(t.shape) for t in message.tensors], self.piece.size
        if not isinstance(version, int) or not isinstance(names, list) or shapes != [[size]] * (1 + len(names)):
            facts = f"has tensors of shapes {shapes} for version {version!r} with {names!r}"
            raise self.protocol_error(message, f"{facts}; the slice is one of [{size}]")
        # A restarted replica does not know which of the initial values it had put.
        if present is None or present.version < version:
            self._durability.before_change(self.piece.number)
            value, states = self._copy(message.tensors[0]), [tensor.clone() for tensor in message.tensors[1:]]
            state = self._complete_state(value, dict(zip(names, states, strict=True)))
            self._fetches.change_log.add(version, None)
            applied, steps = ({}, {}) if present is None else (present.applied, present.steps)
            self.slice_state = SliceState(self.piece, value, state, version, applied, self._copy, steps)
        return [(message.sender, Message("put_ack", edge=self.piece.number)), *self.answer_fetches()]

    def _complete_state(self, value: Tensor, put: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the optimizer's state, of what was put as far as that is its own; what else it has begins anew.

        A run that resumes may have other options than the one before: a moving average, or momentum.
        """
        first = self._optimizer.init_state(value)
        if self._optimizer.compensates_delay:  # `on_fetch` adds what no first state has
            return {**first, **put}
        return {name: put.get(name, tensor) for name, tensor in first.items()}

    def fetch(self, message: Message) -> Replies:
        """Answer with the values, once they are as the fetch requires."""
        return self._add_fetch(message, self._parse_fetch(message))

    def push(self, message: Message) -> Replies:
        """Apply a gradient exactly once, however often its message arrives.

        The sequence number decides: the next one is applied, an earlier one only acknowledged again, and after a gap
        the client is asked to resend what was lost, on the way or with a shard that this one replaces - unless it says
        that it has given up what was before, as it does while no shard can write a journal.
        """
        if self.slice_state is None:
            raise self.protocol_error(message, "came before the initial values")
        slice_state, sender = self.slice_state, message.sender
        try:
            gradient = self._parse_gradient(slice_state, message)
        except ValueError as error:
            raise self.protocol_error(message, str(error)) from error
        number, replica = self.parse_count(message, "number"), self.parse_count(message, "replica")
        fetch = self._parse_attached_fetch(message)
        push = PendingPush(sender, number, message.step, replica, gradient, self._parse_factors(message))
        if flush := message.body.get("flush", 0) and self.parse_count(message, "flush"):
            self._durability.request_durable(self.piece.number, sender, flush)
        applied = slice_state.applied.get(sender, 0)
        last = max(applied, self._aggregator.last_number(sender))
        if number > last + 1 and not message.body.get("gap"):
            body = {"number": last, "attempt": message.body.get("attempt", 0)}
            resend = Message("resend", edge=self.piece.number, body=body)
            return [(sender, resend), *self._add_fetch(message, fetch)]
        if number > last:
            done = self._accept(slice_state, message, push)
        else:
            self.counters.duplicates += 1
            done = [push] if number <= applied else []
        return self._acknowledge_all(slice_state, done, self._add_fetch(message, fetch))

    def join(self, message: Message) -> Replies:
        """Let a replica take part from some step on; "join_ack" tells it which, if it wants to know."""
        replica = self.parse_count(message, "replica")
        if not message.body.get("wants_step"):
            self.clocks.set_step(replica, message.step)
            return self.answer_fetches()
        step = self.clocks.assign_step(replica, message.step)
        reply = Message("join_ack", edge=self.piece.number, body={"step": step})
        return [(message.sender, reply), *self.answer_fetches()]

    def leave(self, message: Message) -> Replies:
        """Let a replica leave, whose steps nobody waits for any more. `acknowledge_leaves` makes the reply."""
        self.clocks.remove(self.parse_count(message, "replica"))
        slice_state = self.slice_state
        done = self._update_from_aggregated(slice_state) if slice_state else []
        self._durability.before_change(self.piece.number)
        self._durability.request_flush()
        self._leaving[message.sender] = self.parse_count(message, "number"), self._durability.next_journal()
        return self._acknowledge_all(slice_state, done, self.answer_fetches()) if slice_state else []

    def acknowledge_leaves(self) -> Replies:
        """Return the replies to clients that have left, which a journal says, and whose pushes are all durable."""
        clients = [
            client
            for client, (number, journal) in self._leaving.items()
            if self._releasable_push(client) >= number and self._durability.has_journal(journal)
        ]
        for client in clients:
            del self._leaving[client]
        return [(client, Message("leave_ack", edge=self.piece.number)) for client in clients]

    def fence(self) -> int:
        """Bring all pushes to the disk; return the number of the journal that has them, and those of clients gone."""
        self._durability.before_change(self.piece.number)
        self._durability.request_flush()
        return self._durability.next_journal()

    def count_steps(self, client: str) -> int:
        """Return how many steps of a client the values contain, as it counts them."""
        return 0 if self.slice_state is None else self.slice_state.steps.get(client, 0)

    def answer_fetches(self) -> Replies:
        """Return the replies to the fetches that need wait no longer."""
        slice_state = self.slice_state
        if slice_state is None or not self.waiting or not self._durability.safe:
            return []
        ready = self._fetches.take_ready(slice_state, self.clocks)
        return [(fetch.client, self._make_values(slice_state, fetch)) for fetch in ready]

    def parse_count(self, message: Message, name: str) -> int:
        """Return a field of the message's body that must be a non-negative integer. NetworkError if it is not."""
        value = message.body.get(name)
        if not isinstance(value, int) or value < 0:
            raise self.protocol_error(message, f"has {name} = {value!r}, which is no count")
        return value

    def protocol_error(self, message: Message, facts: str) -> NetworkError:
        """Return the error of a message that breaks the protocol."""
        return protocol_error(self.shard, self.piece, message, facts)

    def __repr__(self) -> str:
        return f"SliceServer({self.piece}, version={self.version}, {self.clocks}, waiting={self.waiting})"

    def _parse_fetch(self, message: Message) -> PendingFetch:
        replica, min_version, min_step = (
            self.parse_count(message, name) for name in ("replica", "min_version", "min_step")
        )
        since = self.parse_count(message, "since") if "since" in message.body else None
        return PendingFetch(message.sender, message.step, replica, min_version, min_step, since)

    def _parse_attached_fetch(self, push: Message) -> PendingFetch | None:
        """Return the fetch that travels with a push, None if there is none."""
        body = push.body.get(FETCH)
        if body is None:
            return None
        if not isinstance(body, dict):
            raise self.protocol_error(push, f"brings {body!r} along, which is no fetch")
        fetch = msgspec.structs.replace(push, body=body, tensors=())
        return self._parse_fetch(msgspec.structs.replace(fetch, step=self.parse_count(fetch, "step")))

    def _add_fetch(self, message: Message, fetch: PendingFetch | None) -> Replies:
        """Add the fetch of a message, if it has one. Return the replies to all fetches that need wait no longer."""
        try:
            if fetch is not None:
                self._fetches.add(fetch)
        except ValueError as error:
            raise self.protocol_error(message, str(error)) from error
        return self.answer_fetches()

    def _parse_gradient(self, slice_state: SliceState, message: Message) -> Tensor | SparseRows:
        """Return the gradient of a push, [n] or rows. ValueError if it does not fit the slice."""
        if message.body.get(SKIPPED):
            return torch.empty(0)
        rows = parse_rows(message.body, message.tensors, self.piece, slice_state.value.dtype)
        if rows is not None:
            return rows
        return parse_payload(message.body, message.tensors).to_gradient(self.piece.size, slice_state.value.dtype)

    def _accept(self, slice_state: SliceState, message: Message, push: PendingPush) -> list[PendingPush]:
        """Apply or aggregate a push that was not seen before. Return the pushes to acknowledge now."""
        base = self.parse_count(message, "base")
        if base > slice_state.version and (self._serving.aggregate or not self._restored):
            raise self.protocol_error(message, f"builds on version {base}; the slice has {slice_state.version}")
        tau = max(0, slice_state.version - base)  # the staleness of the push
        self.clocks.record_push(push.replica, push.step)
        self.counters.pushes += 1
        if message.body.get(SKIPPED):
            self._durability.before_change(self.piece.number)
            slice_state.record_push(push.sender, push.number, push.step)
            return [push]
        self.counters.staleness.setdefault(push.sender, StalenessHistogram()).add(tau)
        if not self._serving.aggregate:
            self._apply(slice_state, push, self._next_update(slice_state, push, tau))
            return [push]
        if tau > 0:  # its update was made without it (Chen et al., 2016: the gradient of a backup worker is dropped)
            self.counters.late += 1
            self._durability.before_change(self.piece.number)
            slice_state.record_push(push.sender, push.number, push.step)
            return [push]
        self._aggregator.add(push)
        return self._update_from_aggregated(slice_state)

    def _update_from_aggregated(self, slice_state: SliceState) -> list[PendingPush]:
        """Make an update if enough aggregated pushes wait for it. Return the pushes to acknowledge."""
        enough = min(self._serving.aggregate, self.clocks.replicas)
        if len(self._aggregator.pushes) < max(1, enough):
            return []
        pushes, mean = self._aggregator.take(self.piece.size)
        update = self._next_update(slice_state, pushes[0])
        self._apply(slice_state, msgspec.structs.replace(pushes[0], gradient=mean), update)
        for push in pushes:
            slice_state.record_push(push.sender, push.number, push.step)
        return pushes

    def _next_update(self, slice_state: SliceState, push: PendingPush, tau: int = 0) -> Update:
        update = Update(slice_state.version + 1, tau, push.replica, self._serving.progress(slice_state.version))
        return update.at_factors(push.factors) if push.factors else update

    def _parse_factors(self, push: Message) -> tuple[float, ...]:
        factors = push.body.get(FACTORS)
        if factors is None:
            return ()
        # Where replicas make the updates, the shard has no groups, and no rate.
        groups = self._optimizer.groups
        fits = isinstance(factors, list) and factors and (groups == 1 or len(factors) in {1, groups})
        if fits and all(isinstance(factor, float) and 0 <= factor < math.inf for factor in factors):
            return tuple(factors)
        raise self.protocol_error(push, f"has {FACTORS} = {factors!r}, which are no factors of rates")

    def _apply(self, slice_state: SliceState, push: PendingPush, update: Update) -> None:
        self._durability.before_change(self.piece.number)
        optimizer, gradient, change_log = self._optimizer, push.gradient, self._fetches.change_log
        if isinstance(gradient, SparseRows):
            numbers, values = gradient.numbers, gradient.values
            slice_state.apply_rows(optimizer, numbers, values, update, worker=push.sender, step=push.step)
            change_log.add(slice_state.version, numbers)
        else:
            slice_state.apply(optimizer, gradient, update, worker=push.sender, step=push.step)
            change_log.add(slice_state.version, None)
        slice_state.record_push(push.sender, push.number, push.step)
        self.counters.updates += 1
        self.counters.rates += optimizer.rate(update)

    def _acknowledge_all(self, slice_state: SliceState, pushes: list[PendingPush], replies: Replies) -> Replies:
        """Add the acknowledgements of pushes to the replies with values, which acknowledge what they contain."""
        answered = {client for client, _ in replies}
        return [*(self._acknowledge(slice_state, one) for one in pushes if one.sender not in answered), *replies]

    def _acknowledge(self, slice_state: SliceState, push: PendingPush) -> tuple[str, Message]:
        durable = self._durability.durable_push(self.piece.number, push.sender, push.number)
        body = {"version": slice_state.version, "number": push.number, "durable": durable}
        return push.sender, Message("push_ack", edge=self.piece.number, body=body)

    def _releasable_push(self, client: str) -> int:
        """Return the number of the client's last push that it need not keep any more."""
        applied = 0 if self.slice_state is None else self.slice_state.applied.get(client, 0)
        return self._durability.releasable_push(self.piece.number, client, applied)

    def _make_values(self, slice_state: SliceState, fetch: PendingFetch) -> Message:
        optimizer = self._optimizer
        if optimizer.compensates_delay:  # `on_fetch` may change its state
            self._durability.before_change(self.piece.number)
        optimizer.on_fetch(slice_state.value, slice_state.state, fetch.replica)
        applied = slice_state.applied.get(fetch.client, 0)
        durable = self._durability.durable_push(self.piece.number, fetch.client, applied)
        reply = self._fetches.make_reply(fetch, slice_state, durable=durable)
        self.counters.fetches += 1
        self.counters.bytes_out += reply.bytes
        return reply
