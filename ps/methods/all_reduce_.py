"""`Group`: the workers of one machine of all replicas, joined by torch's gloo, who meet through a shard's board."""

import os
import time
from datetime import timedelta
from pathlib import Path
from types import TracebackType

import torch
import torch.distributed as dist
from torch import Tensor

from ...errors import NetworkError, UsageError
from ...runtime.worker.flat_gradient import Gradient, Table
from ..client.client import Client

WAIT_S = 600.0  # for a replica that tests meanwhile; the launcher finds a dead or hanging one long before
LOOPBACK = "127.0.0.1"


class Meeting(dist.Store):  # type: ignore[name-defined, misc]
    """What gloo learns of the others' addresses by: notes at the shard, over the encrypted connection to it."""

    def __init__(self, client: Client) -> None:
        super().__init__()
        self._client = client

    def set(self, key: str, value: bytes) -> None:
        self._client.tell("note", {"key": key, "value": bytes(value)})

    def get(self, key: str) -> bytes:
        value: bytes = self._client.ask("ask", "noted", {"key": key})["value"]
        return value

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        for key in keys:
            self.get(key)


class Group:
    """Averages over `size` replicas, while entered. A machine that trains nothing has nothing to average."""

    def __init__(self, client: Client, *, size: int) -> None:
        self._client, self._size = client, size
        self._alone = size == 1 or not client.values.numel()
        self._meeting = Meeting(client)
        self._gloo: dist.ProcessGroupGloo | None = None
        self._next = ""  # the worker that comes after this one in the ring

    def __enter__(self) -> "Group":
        if not self._alone:
            self._meet()
            self._gloo = self._joined()
        return self

    def average(self, gradient: Gradient, step: int) -> None:
        """Make a gradient the mean of all replicas', the same bits for each. NetworkError where one is lost.

        Its tables travel whole; their touched rows are those that any replica has touched.
        """
        if self._gloo is None:
            return
        touched = [_marked(gradient.rows(number), table) for number, table in enumerate(gradient.tables)]
        self._sum([gradient.flat, *touched], step)
        for number, marks in enumerate(touched):
            gradient.touch(number, marks.nonzero().flatten())
        gradient.flat.div_(self._size)

    def _sum(self, tensors: list[Tensor], step: int) -> None:
        assert self._gloo is not None
        began = time.perf_counter()
        try:
            for tensor in tensors:
                self._gloo.allreduce([tensor]).wait()  # type: ignore[attr-defined]
        except RuntimeError as error:
            raise self._lost(f"cannot average the gradients of step {step}", error) from error
        # Around the ring each part goes once to be added to and once as the sum.
        rounds = 2 * (self._size - 1)
        sent = sum(tensor.nbytes for tensor in tensors) * rounds // self._size
        self._client.exchanged(self._next, sent, rounds * len(tensors), time.perf_counter() - began)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Part. Who ends well waits for the others, whose last average it may have to pass on."""
        if self._gloo is not None and error is None:
            self._meeting.set(f"done {self._client.replica}", b"")
            self._meeting.wait([f"done {replica}" for replica in range(self._size)])
        self._gloo = None

    def _joined(self) -> "dist.ProcessGroupGloo":
        # torch has no public way to say where gloo listens but an environment variable for the whole process.
        options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        options._devices = [dist.ProcessGroupGloo.create_device(hostname=LOOPBACK)]
        options._timeout = timedelta(seconds=WAIT_S)
        try:
            return dist.ProcessGroupGloo(self._meeting, self._client.replica, self._size, options)
        except RuntimeError as error:
            raise self._lost("cannot reach the other replicas", error) from error

    def _meet(self) -> None:
        """Learn who comes next. UsageError unless all share the loopback: a machine's boot, and a name space of it."""
        here = f"{_read('/proc/sys/kernel/random/boot_id')} {os.readlink('/proc/self/ns/net')}".encode()
        own = self._client.replica
        self._meeting.set(f"host {own}", here)
        self._meeting.set(f"name {own}", self._client.name.encode())
        self._next = self._meeting.get(f"name {(own + 1) % self._size}").decode()
        for replica in range(self._size):
            if self._meeting.get(f"host {replica}") != here:
                facts = f"replica {replica} is not on the host of {self._client.name}, and allreduce is plain TCP"
                raise UsageError("E269", facts, fix="--method sync, which is encrypted")

    def _lost(self, what: str, error: RuntimeError) -> NetworkError:
        said = str(error).partition("\n")[0]
        fix = "see the logs of the other replicas: one of them was lost"
        return NetworkError("E554", f"{self._client.name} {what}: {said}", fix=fix)

    def __repr__(self) -> str:
        return f"Group({self._client.name}, size={self._size}, joined={self._gloo is not None})"


def _marked(rows: Tensor, table: Table) -> Tensor:
    """1 for each of these rows of a table, else 0: int32 [rows]."""
    return torch.zeros(table.rows, dtype=torch.int32).index_fill_(0, rows, 1)


def _read(path: str) -> str:
    return Path(path).read_text().strip()
