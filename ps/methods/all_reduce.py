"""All-reduce: the replicas average their gradients among themselves, and each takes the same step.

Synchronous data parallelism on gloo, the engine of torch.distributed, by rings: Patarasuk and Yuan, "Bandwidth optimal
all-reduce algorithms for clusters of workstations", 2009. It equals one process with N times the batch. The shards hold
the values that a run begins with and those that it ends with, no more.

What gloo sends is neither encrypted nor signed, so it stays on the loopback of one host.
"""

import os
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor

from ...errors import Diverged, NetworkError, UsageError
from ...runtime.worker.flat_gradient import FlatGradient, SparseTable
from ..client.client import Client
from ..optimizers.registry import AnyOptimizer
from ..optimizers.sparse_update import apply_lazily
from ..slices.slice_state import is_finite
from .method import Method
from .training_loop import TrainingLoop

ALL_REDUCE_TIMEOUT_S = 600.0  # for a replica that tests meanwhile; the launcher finds a dead one long before
LOOPBACK = "127.0.0.1"


class AllReduce(Method, frozen=True, tag="allreduce"):
    """Replicas of one host average their gradients by gloo's ring all-reduce (Patarasuk and Yuan, 2009).

    When: for comparison with `sync` and with torch, on one host.

    No replica can go on without the gradients of all others, so the run ends with the first that is lost.
    """

    needs_all_replicas: ClassVar[bool] = True
    pushes_gradients: ClassVar[bool] = False

    def count_updates(self, steps: int, replicas: int) -> int:
        """Return one update for each step."""
        return steps

    def check(self, optimizer: AnyOptimizer, replicas: int, steps: int) -> None:
        """Raise UsageError if the optimizer compensates the delay of pushes."""
        self.demand_undelayed(optimizer)

    def train(self, loop: TrainingLoop[Any]) -> Iterator[int]:
        """Compute, average, step; at the end replica 0 gives the shards the parameters and the optimizer state."""
        client, worker, optimizer = loop.client, loop.worker, loop.optimizer
        client.fetch()
        client.wait()
        values, gradient = worker.values, loop.gradient
        state, number = loop.make_state(), client.version
        with GlooGroup(client, size=loop.replicas) as group:
            for step in loop.steps():
                gradient.zero()
                yield step
                group.average(gradient, step)
                number += 1
                apply_lazily(optimizer, values, gradient, state, loop.make_update(number, step))
                loop.finish_step(step)
        if not is_finite(values):
            facts = f"the parameters of {client.name} are not finite after its last step"
            raise Diverged("E704", facts, fix=f"lower the learning rate: --lr {optimizer.lr / 10:g}")
        if loop.replica == 0:
            client.put(number, state)
        client.drain()


class ShardStore(dist.Store):  # type: ignore[name-defined, misc]
    """The store by which gloo exchanges addresses: at the shard, over the encrypted connection to it."""

    def __init__(self, client: Client) -> None:
        super().__init__()
        self._client = client

    def set(self, key: str, value: bytes) -> None:
        self._client.notify("store_set", {"key": key, "value": bytes(value)})

    def get(self, key: str) -> bytes:
        value: bytes = self._client.request("store_get", "store_value", {"key": key})["value"]
        return value

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        for key in keys:
            self.get(key)


class GlooGroup:
    """A group of `size` replicas that average, as a context manager. A machine without parameters does nothing."""

    def __init__(self, client: Client, *, size: int) -> None:
        self._client, self._size = client, size
        self._is_idle = size == 1 or not client.values.numel()
        self._store = ShardStore(client)
        self._gloo: dist.ProcessGroupGloo | None = None
        self._next = ""  # the name of the next worker in the ring

    def __enter__(self) -> "GlooGroup":
        if not self._is_idle:
            self._meet()
            self._gloo = self._connect()
        return self

    def average(self, gradient: FlatGradient, step: int) -> None:
        """Replace a gradient by the mean over all replicas, which has the same bits in each.

        Its sparse tables travel whole; their touched rows are those that any replica has touched. Raises NetworkError
        if a replica is lost.
        """
        if self._gloo is None:
            return
        touched = [_mark_rows(gradient.rows(number), table) for number, table in enumerate(gradient.tables)]
        self._sum([gradient.flat, *touched], step)
        for number, marks in enumerate(touched):
            gradient.mark_rows(number, marks.nonzero().flatten())
        gradient.flat.div_(self._size)

    def _sum(self, tensors: list[Tensor], step: int) -> None:
        assert self._gloo is not None
        began = time.perf_counter()
        try:
            for tensor in tensors:
                self._gloo.allreduce([tensor]).wait()  # type: ignore[attr-defined]
        except RuntimeError as error:
            raise self._describe_loss(f"cannot average the gradients of step {step}", error) from error
        # Around the ring each part goes once to be added to and once as the sum.
        rounds = 2 * (self._size - 1)
        sent = sum(tensor.nbytes for tensor in tensors) * rounds // self._size
        self._client.count_peer_traffic(self._next, sent, rounds * len(tensors), time.perf_counter() - began)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave the group; unless there was an error, after the others, whose last average passes through here."""
        if self._gloo is not None and error is None:
            self._store.set(f"done {self._client.replica}", b"")
            self._store.wait([f"done {replica}" for replica in range(self._size)])
        self._gloo = None

    def _connect(self) -> "dist.ProcessGroupGloo":
        # torch has no public way to choose where gloo listens but an environment variable for the whole process.
        options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        options._devices = [dist.ProcessGroupGloo.create_device(hostname=LOOPBACK)]
        options._timeout = timedelta(seconds=ALL_REDUCE_TIMEOUT_S)
        try:
            return dist.ProcessGroupGloo(self._store, self._client.replica, self._size, options)
        except RuntimeError as error:
            raise self._describe_loss("cannot reach the other replicas", error) from error

    def _meet(self) -> None:
        """Learn the name of the next worker. Raises UsageError unless all replicas share one loopback device.

        Hosts are told apart by the boot id of the machine and the network name space.
        """
        host = f"{_read('/proc/sys/kernel/random/boot_id')} {os.readlink('/proc/self/ns/net')}".encode()
        own = self._client.replica
        self._store.set(f"host {own}", host)
        self._store.set(f"name {own}", self._client.name.encode())
        self._next = self._store.get(f"name {(own + 1) % self._size}").decode()
        for replica in range(self._size):
            if self._store.get(f"host {replica}") != host:
                facts = f"replica {replica} is not on the host of {self._client.name}, and allreduce is plain TCP"
                raise UsageError("E269", facts, fix="--method sync, which is encrypted")

    def _describe_loss(self, what: str, error: RuntimeError) -> NetworkError:
        reason = str(error).partition("\n")[0]
        fix = "see the logs of the other replicas: one of them was lost"
        return NetworkError("E554", f"{self._client.name} {what}: {reason}", fix=fix)

    def __repr__(self) -> str:
        return f"GlooGroup({self._client.name}, size={self._size}, connected={self._gloo is not None})"


def _mark_rows(rows: Tensor, table: SparseTable) -> Tensor:
    """Return 1 for each of these rows of a table and 0 for the others: int32 [rows]."""
    return torch.zeros(table.rows, dtype=torch.int32).index_fill_(0, rows, 1)


def _read(path: str) -> str:
    return Path(path).read_text().strip()
