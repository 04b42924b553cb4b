"""Parameters in shared memory that the workers of all replicas of one host update themselves, without a lock (Hogwild).

`SharedBuffer` is the shard's end for the flat buffer of one machine, `SharedBuffers` those of a shard, and a worker has
`SharedParameters` of its machine. The shard creates the memory and keeps its slices there, so it answers fetches and
writes checkpoints as always. A worker counts its updates in a row of its own, so no count is lost although nobody
waits. Updates themselves may be lost where two workers write an element at once (Niu et al., "Hogwild!", NIPS 2011).
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
import torch

from ...errors import NetworkError
from ...runtime.channel.message import Message
from ...runtime.held_memory import return_free_memory
from ...runtime.worker.flat_gradient import FlatGradient
from ..optimizers.optimizer import Optimizer, Update
from ..optimizers.sparse_update import apply_lazily
from ..slices.slice_state import SliceCounters, SliceState
from ..slices.staleness import StalenessHistogram
from .replies import Replies
from .shared_tensors import SharedTensorLocation, SharedTensors
from .slice_server import SliceServer

MAX_TAU = 255  # staleness is counted up to this; larger values count as this
VALUE, COUNTS, STATE = "value", "counts", "state."  # names of the shared tensors; a prefix for optimizer state


class SharedParameters:
    """A worker's view of its machine's shared parameters.

    values: the flat parameters [n] that all replicas read and write.
    """

    def __init__(self, reply: Mapping[str, Any], *, replica: int) -> None:
        """reply: the body of the shard's "shared_memory" message. OSError if the memory is not on this host."""
        memory = SharedTensors.attach(msgspec.convert(reply["location"], SharedTensorLocation))
        self.values = memory.tensors[VALUE]
        self._state = {n.removeprefix(STATE): t for n, t in memory.tensors.items() if n.startswith(STATE)}
        # By replica and tau; in numpy, since operators of torch take longer to start.
        self._counts = memory.tensors[COUNTS].view(-1, MAX_TAU + 1).numpy()
        self._base, self._replica = int(reply["version"]), replica

    @property
    def updates(self) -> int:
        """The updates that all replicas have made so far."""
        return int(self._counts.sum())

    def apply(self, optimizer: Optimizer, gradient: FlatGradient, seen: int, *, total: int = 0) -> None:
        """Update the parameters with a gradient; of sparse tables only the touched rows.

        seen: the number of updates when the gradient's step began, from which its staleness follows. total: updates of
        the whole run, 0 where that does not matter.
        """
        before = self.updates
        tau = before - seen
        done = self._base + before
        update = Update(done + 1, tau, self._replica, min(1.0, done / total) if total else 0.0)
        apply_lazily(optimizer, self.values, gradient, self._state, update)
        self._counts[self._replica, min(tau, MAX_TAU)] += 1


class SharedBuffer:
    """The shard's end of one machine's shared parameters.

    It moves the slices, which must make up the machine's flat buffer in their order, into shared memory.
    """

    def __init__(self, slice_states: Sequence[SliceState], replicas: int) -> None:
        self._slice_states = list(slice_states)
        self._base = min(state.version for state in slice_states)
        self._names: dict[int, str] = {}  # by replica, the worker that counts in its row
        size, first = sum(state.slice.size for state in slice_states), slice_states[0]
        states = {f"{STATE}{name}": (first.state[name].dtype, size) for name in _list_state(slice_states)}
        layout = {VALUE: (first.value.dtype, size), COUNTS: (torch.int64, replicas * (MAX_TAU + 1)), **states}
        self._memory = SharedTensors.create(layout)
        self._counts = self._memory.tensors[COUNTS].view(replicas, MAX_TAU + 1)
        start = 0
        for state in slice_states:  # one after the other, so that little is held twice
            span = slice(start, start + state.slice.size)
            state.share(self._memory.tensors[VALUE][span].copy_(state.value))
            for name, tensor in state.state.items():
                state.state[name] = self._memory.tensors[f"{STATE}{name}"][span].copy_(tensor)
            start = span.stop
        return_free_memory()

    def make_reply(self, client: str, replica: int, edge: int) -> tuple[str, Message]:
        """Make the message from which a worker makes its `SharedParameters`. ValueError if the replica has no row."""
        if replica >= len(self._counts):
            raise ValueError(f"is of replica {replica}; {len(self._counts)} share the parameters")
        self._names[replica] = client
        location = msgspec.to_builtins(self._memory.location, builtin_types=(bytes,))
        return client, Message("shared_memory", edge=edge, body={"location": location, "version": self._base})

    def count_updates(self, counters: Mapping[int, SliceCounters]) -> None:
        """Bring the versions of the slices, and their counters by slice number, up to date."""
        counts = self._counts.tolist()
        staleness = {name: StalenessHistogram() for name in self._names.values()}
        for replica, name in self._names.items():
            for tau, updates in enumerate(counts[replica]):
                staleness[name].add(tau, updates)
        updates = sum(map(sum, counts))
        for state in self._slice_states:
            state.version = self._base + updates
            one = counters[state.slice.number]
            one.pushes, one.staleness = updates, staleness


class SharedBuffers:
    """The shared buffers of one shard, by machine, created when the first worker of a machine asks."""

    def __init__(self, servers: Iterable[SliceServer], replicas: int) -> None:
        self._replicas = replicas
        self._counters: dict[int, SliceCounters] = {}  # by slice number
        self._servers: dict[int, list[SliceServer]] = defaultdict(list)  # by machine, in the order of the buffer
        for server in servers:
            self._servers[server.piece.machine].append(server)
            self._counters[server.piece.number] = server.counters
        self._buffers: dict[int, SharedBuffer] = {}  # by machine
        self._waiting: dict[int, list[Message]] = defaultdict(list)  # requests by machine

    def share(self, server: SliceServer, message: Message) -> Replies:
        """Handle a worker's request for the shared parameters of the machine to which the slice belongs."""
        server.parse_count(message, "replica")
        self._waiting[server.piece.machine].append(message)
        return self.answer_requests(server)

    def answer_requests(self, server: SliceServer) -> Replies:
        """Return the replies to the workers of the slice's machine that wait, once all its slices have values."""
        machine = server.piece.machine
        states = [other.slice_state for other in self._servers[machine] if other.slice_state is not None]
        if machine not in self._waiting or len(states) < len(self._servers[machine]):
            return []
        if machine not in self._buffers:
            self._buffers[machine] = SharedBuffer(states, self._replicas)
        buffer, replies = self._buffers[machine], []
        for message in self._waiting.pop(machine):
            try:
                replies.append(buffer.make_reply(message.sender, message.body["replica"], message.edge))
            except ValueError as error:
                raise server.protocol_error(message, str(error)) from error
        return replies

    def count_updates(self) -> None:
        """Take note of the updates that workers have made themselves."""
        for buffer in self._buffers.values():
            buffer.count_updates(self._counters)

    def __repr__(self) -> str:
        return f"SharedBuffers(machines={sorted(self._buffers)}, awaited={sorted(self._waiting)})"


def _list_state(slice_states: Sequence[SliceState]) -> list[str]:
    """Return the names of all slices' state. NetworkError E553 unless each has one element per parameter."""
    names = list(slice_states[0].state)
    for name in names:
        sizes = [len(state.state.get(name, ())) for state in slice_states]
        if sizes != [state.slice.size for state in slice_states]:
            raise NetworkError("E553", f"the optimizer's {name} has {sizes} elements in slices that are to be shared")
    return names
