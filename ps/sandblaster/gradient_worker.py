"""`GradientWorker`: one machine's part of a replica that computes gradients of portions for the coordinator.

Machine 0 of a replica, the leader, asks the coordinator for groups of portions and tells the other machines. Each
machine fetches its slices of the point from the shards, adds up the gradients of its portions, and sends the sum to the
shards; then it tells the coordinator. The worker is the replica's side of algorithm 7.2 of the supplement of Dean et
al., "Large Scale Distributed Deep Networks", NIPS 2012.
"""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from torch import Tensor

from ...runtime.channel.mailbox import Mailbox, MessageKey
from ...runtime.channel.message import LAUNCHER, Message
from ...runtime.worker.flat_gradient import FlatGradient
from ..slices.slicing import ParameterSlice
from .solver import Portions
from .tree_sum import TreeSum
from .work_queue import PortionGroup

PEER_TIMEOUT_S = 7 * 24 * 3600.0  # for an answer; the launcher finds a dead or hanging peer long before

# Messages of the launcher with the {"shard", "name"} or the {"name"} of the role that replaces one that was lost.
SHARD_REPLACED: MessageKey = (LAUNCHER, "shard_replaced", 0, 0, 0)
COORDINATOR_REPLACED: MessageKey = (LAUNCHER, "coordinator_replaced", 0, 0, 0)

Compute = Callable[[int, int], float | None]
"""Add the gradient of a portion, at a step, to the worker's gradient; return the portion's mean loss if it is known."""


class GradientWorker:
    """The worker of the machine whose parameters are `values` [n].

    slices: of this machine; they cover [0, n). leader: the name of machine 0, if this is another machine. followers:
    the names of the other machines, if this is machine 0. progress: is called with the number of portions done before
    each portion, and with None before the worker waits for others, so that neither counts as being stuck.
    """

    def __init__(
        self,
        mailbox: Mailbox,
        slices: Sequence[ParameterSlice],
        values: Tensor,
        gradient: FlatGradient,
        compute: Compute,
        portions: Portions,
        *,
        coordinator: str,
        leader: str = "",
        followers: Sequence[str] = (),
        progress: Callable[[int | None], object] = lambda done: None,
    ) -> None:
        self.portions_done = 0
        self.bytes_in = self.bytes_out = 0
        self._mailbox, self._slices = mailbox, list(slices)
        self.values, self._gradient, self._compute, self._portions = values, gradient, compute, portions
        self._coordinator, self._leader, self._followers = coordinator, leader, followers
        self._progress = progress
        self._shards = {piece.shard: f"shard-{piece.shard}" for piece in slices}  # names by number
        self._requests = 0  # the number of the last request, which its answers repeat
        self._groups = 0  # received so far
        self._asked: tuple[str, int] | None = None  # whom for portions, and the number of that request
        self._unconfirmed: dict[int, tuple[ParameterSlice, int]] = {}  # gradients on their way, by slice

    def run(self) -> None:
        """Work until the coordinator says that the run is over."""
        while (group := self._receive_group()) is not None:
            # "if (!hasParametersForStep): parameters ← GetParametersFromParamServer()"
            place = {name: getattr(group, name) for name in ("epoch", "number", "place")}
            is_wanted = self._fetch("point", "point", place)
            if not is_wanted and self._is_alone:
                continue
            total, losses = self._compute_group(group)
            # "if (modelReplicaWorkDone and timeToSendGradients): SendGradients(modelReplica)"
            self._push(group, total)
            body = {**msgspec.to_builtins(group), "losses": None if None in losses else losses}
            self._mailbox.send(self._coordinator, Message("done", body=body))

    def fetch_parameters(self) -> None:
        """Fetch the parameters as they are."""
        self._fetch("read", "values", {})

    def wait_for_launcher(self, kind: str) -> dict[str, Any]:
        """Wait for a message of the launcher; return its body."""
        return self._wait_for((LAUNCHER, kind, 0, 0, 0)).body

    def _receive_group(self) -> PortionGroup | None:
        """Receive the next group of portions, of which the leader tells the others; None if the run is over."""
        self._groups += 1
        key = (self._leader, "portions", self._groups, 0, 0)
        message = self._wait_for(key) if self._leader else self._wait_for_portions()
        for name in self._followers:
            self._mailbox.send(name, Message("portions", self._groups, body=message.body))
        return None if message.body.get("over") else msgspec.convert(message.body, PortionGroup)

    @property
    def _is_alone(self) -> bool:
        """Whether no other machine has to do the same."""
        return not self._leader and not self._followers

    def _wait_for(self, key: MessageKey) -> Message:
        while (message := self._receive([key])) is None:
            pass
        return message

    def _ask_for_portions(self) -> None:
        """Ask the coordinator for portions, unless it was asked already."""
        if not self._asked or self._asked[0] != self._coordinator:
            self._requests += 1
            self._asked = self._coordinator, self._requests
            self._mailbox.send(self._coordinator, Message("ask", self._requests))

    def _wait_for_portions(self) -> Message:
        """Return the coordinator's answer; a coordinator that replaces it is asked again."""
        while True:
            self._ask_for_portions()
            assert self._asked is not None
            coordinator, number = self._asked
            message = self._receive([(coordinator, "portions", number, 0, 0)])
            if message is not None:
                self._asked = None
                return message

    def _fetch(self, kind: str, answer: str, body: dict[str, Any]) -> bool:
        """Have the shards fill `values`; return whether all did, False if a request was stale."""
        self._requests += 1
        all_known = True
        awaited = {piece.number: piece for piece in self._slices}

        def send(pieces: Sequence[ParameterSlice]) -> None:
            for piece in pieces:
                message = Message(kind, self._requests, edge=piece.number, body=body)
                self._mailbox.send(self._shards[piece.shard], message)

        send(self._slices)
        while awaited:
            names = dict(self._shards)
            keys = [(names[piece.shard], answer, self._requests, 0, n) for n, piece in awaited.items()]
            message = self._receive(keys)
            if message is not None:
                piece = awaited.pop(message.edge)
                self.bytes_in += message.bytes
                all_known = all_known and bool(message.tensors)
                if message.tensors:
                    self.values[piece.start : piece.stop].copy_(message.tensors[0])
            send([piece for piece in awaited.values() if self._shards[piece.shard] != names[piece.shard]])
        return all_known

    def _compute_group(self, group: PortionGroup) -> tuple[Tensor, list[float | None]]:
        """Return the gradient summed over the samples of the portions [n], and the portions' mean losses."""
        numbers, losses = group.portions, list[float | None]()
        accrued = TreeSum(len(numbers))
        for position, portion in enumerate(numbers):
            if position == len(numbers) - 1 and not self._leader:
                self._ask_for_portions()  # so that the next group is there when this one is done
            self._progress(self.portions_done)
            self._gradient.zero()
            # "data ← GetDataPortion(portion); gradient ← ComputeGradient(parameters, data)"
            losses.append(self._compute(portion, self.portions_done))
            # "localAccruedGradients ← localAccruedGradients + gradient"
            accrued.add(0, position, self._gradient.flat * self._portions.count_samples(portion, portion + 1))
            self.portions_done += 1
        total = accrued.total
        assert total is not None
        return total, losses

    def _push(self, group: PortionGroup, total: Tensor) -> None:
        """Send the sum to the shards, once they have confirmed the sum before."""
        while self._unconfirmed:
            keys = [(self._shards[p.shard], "summed", step, 0, n) for n, (p, step) in self._unconfirmed.items()]
            message = self._receive(keys)
            if message is not None:
                del self._unconfirmed[message.edge]
        self._requests += 1
        for piece in self._slices:
            body = msgspec.to_builtins(group)
            tensors = (total[piece.start : piece.stop],)
            message = Message("gradient", self._requests, edge=piece.number, body=body, tensors=tensors)
            self.bytes_out += message.bytes
            self._mailbox.send(self._shards[piece.shard], message)
            self._unconfirmed[piece.number] = piece, self._requests

    def _receive(self, keys: Sequence[MessageKey]) -> Message | None:
        """Return the next of these messages; None if a role was replaced, so that requests must be sent again."""
        self._progress(None)
        message = self._mailbox.wait([*keys, SHARD_REPLACED, COORDINATOR_REPLACED], timeout_s=PEER_TIMEOUT_S)
        if message.kind == "shard_replaced" and message.sender == LAUNCHER:
            shard = message.body["shard"]
            self._shards[shard] = message.body["name"]
            # What was sent to the lost shard belongs to an epoch that is over.
            self._unconfirmed = {n: one for n, one in self._unconfirmed.items() if one[0].shard != shard}
            return None
        if message.kind == "coordinator_replaced":
            self._coordinator = message.body["name"]
            return None
        return message
