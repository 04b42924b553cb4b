"""`Sharing`: a machine's parameters in memory that the workers of all replicas write themselves, without a lock.

The shard has made the memory and holds its slices there, so it answers fetches and writes checkpoints as it always
does. A worker has a `Shared` of it. Who updates counts that in a row of its own: no count is lost, though nobody waits.
Updates themselves may be, where two write an element at once (Niu et al., 2011).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import torch
from torch import Tensor

from ...errors import NetworkError
from ...runtime.worker.flat_gradient import Gradient
from ...runtime.channel.message import Message
from ...runtime.channel.shared_tensors import SharedValues, Whereabouts
from ..slices.slice_state import Holding, Record
from ..optimizers.sparse_update import apply_lazily
from ..optimizers.optimizer import Rule, Update
from ..slices.staleness import Staleness

TAUS = 256  # kinds of staleness that are told apart; the last is "so much or more"
VALUE, COUNTS, STATE = "value", "counts", "state."


class Sharing:
    """The shard's end. It moves the holdings, which must make up a machine's buffer in their order, to the memory."""

    def __init__(self, holdings: Sequence[Holding], replicas: int) -> None:
        self._holdings = list(holdings)
        self._base = min(holding.version for holding in holdings)
        self._names: dict[int, str] = {}  # of the worker that each replica's row belongs to
        states = {f"{STATE}{name}": _joined(holdings, name) for name in holdings[0].state}
        counts = torch.zeros(replicas * TAUS, dtype=torch.int64)
        values = torch.cat([holding.value for holding in holdings])
        self._memory = SharedValues.made({VALUE: values, COUNTS: counts, **states})
        self._counts = self._memory.tensors[COUNTS].view(replicas, TAUS)
        start = 0
        for holding in holdings:
            span = slice(start, start + holding.slice.size)
            holding.value = self._memory.tensors[VALUE][span]
            holding.state = {name: self._memory.tensors[f"{STATE}{name}"][span] for name in holding.state}
            start = span.stop

    def answer(self, client: str, replica: int, edge: int) -> tuple[str, Message]:
        """What a worker has to know. ValueError where there is no row for its replica."""
        if replica >= len(self._counts):
            raise ValueError(f"is of replica {replica}; {len(self._counts)} share the parameters")
        self._names[replica] = client
        where = msgspec.to_builtins(self._memory.where, builtin_types=(bytes,))
        return client, Message("shared", edge=edge, body={"where": where, "version": self._base})

    def count(self, records: Mapping[int, Record]) -> None:
        """Tell the holdings, and their records by number of the slice, of the updates so far."""
        counts = self._counts.tolist()
        late = {name: Staleness() for name in self._names.values()}
        for replica, name in self._names.items():
            for tau, updates in enumerate(counts[replica]):
                late[name].add(tau, updates)
        updates = sum(map(sum, counts))
        for holding in self._holdings:
            holding.version = self._base + updates
            record = records[holding.slice.number]
            record.pushes, record.staleness = updates, late


class Shared:
    """A worker's end. values: the flat parameters [n] that all replicas read and write."""

    def __init__(self, told: Mapping[str, Any], *, replica: int) -> None:
        """told: the body of the shard's answer. OSError where the memory is not on this host."""
        memory = SharedValues.found(msgspec.convert(told["where"], Whereabouts))
        self.values = memory.tensors[VALUE]
        self._state = {n.removeprefix(STATE): t for n, t in memory.tensors.items() if n.startswith(STATE)}
        self._counts = memory.tensors[COUNTS].view(-1, TAUS)
        self._base, self._replica = int(told["version"]), replica

    @property
    def updates(self) -> int:
        """That all replicas have made so far."""
        return int(self._counts.sum())

    def apply(self, rule: Rule, gradient: Gradient, seen: int) -> None:
        """Change the parameters by a gradient, of tables the rows that were touched.

        seen: the updates that there were when its step began.
        """
        before = self.updates
        tau = before - seen
        update = Update(self._base + before + 1, tau, self._replica)
        apply_lazily(rule, self.values, gradient, self._state, update)
        self._counts[self._replica, min(tau, TAUS - 1)] += 1


def _joined(holdings: Sequence[Holding], name: str) -> Tensor:
    """The state of all holdings under a name. NetworkError where they do not have one element a parameter."""
    pieces = [holding.state.get(name, torch.empty(0)) for holding in holdings]
    if [len(piece) for piece in pieces] != [holding.slice.size for holding in holdings]:
        sizes = [len(piece) for piece in pieces]
        raise NetworkError("E553", f"the rule's {name} has {sizes} elements in slices that are to be shared")
    return torch.cat(pieces)
