"""A shard and its client hold no more after thousands of pushes than after hundreds, whatever the disk does."""

import gc
import time
import tracemalloc
from pathlib import Path

import pytest
import torch
from torch import Tensor

from cutset.ps.checkpoint import snapshot as snapshots
from cutset.ps.checkpoint.journal import Journal, JournalConfig
from cutset.ps.client.client import Client
from cutset.ps.optimizers.standard import Adagrad
from cutset.ps.server.serving import ServingConfig
from cutset.ps.server.shard import Shard
from cutset.ps.slices.slicing import slice_parameters
from cutset.runtime.channel.mailbox import Mailbox
from cutset.runtime.channel.message import Message

SIZE, PUSHES, MOST_BYTES = 64, 10_000, 100_000
SLICES = slice_parameters([SIZE], 1, align=1, max_elements=32)


class Post:
    """A worker's channel whose shard answers at once; every seventh push arrives twice."""

    name = "worker-0.0"

    def __init__(self, shard: Shard) -> None:
        self.shard, self.waiting, self.sent = shard, list[Message](), 0

    def send(self, peer: str, message: Message) -> Message:
        self.sent += 1
        for _ in range(2 if message.kind == "push" and self.sent % 7 == 0 else 1):
            again = Message(
                message.kind, message.step, message.micro, message.edge, dict(message.body), message.tensors, self.name
            )
            self._deliver(self.shard.handle(again))
        return message

    def empty(self, peer: str, size: int, dtype: torch.dtype) -> Tensor:
        return torch.empty(size, dtype=dtype)

    def receive(self, timeout_s: float | None = None) -> Message:
        while not self.waiting:
            self._deliver(self.shard.poll())
        return self.waiting.pop(0)

    def poll(self) -> Message | None:
        return self.waiting.pop(0) if self.waiting else None

    def statistics(self) -> dict[str, dict[str, int]]:
        return {}

    def _deliver(self, replies: list[tuple[str, Message]]) -> None:
        for peer, reply in [*replies, *self.shard.poll()]:
            if peer == self.name:
                body, tensors = dict(reply.body), tuple(tensor.clone() for tensor in reply.tensors)
                self.waiting.append(Message(reply.kind, reply.step, 0, reply.edge, body, tensors, "shard-0"))


def held(client: Client) -> int:
    """Bytes that Python holds once the disk has every push: how many wait for it at a moment goes up and down."""
    while client._sessions._replay_bytes:
        client.fetch()
        client.wait()
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


@pytest.mark.slow
@pytest.mark.parametrize("slow", [pytest.param(False, marks=pytest.mark.slow), True])
def test_memory_is_flat_over_thousands_of_pushes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slow: bool) -> None:
    if slow:
        write = snapshots.TensorWriter.write

        def late(self: snapshots.TensorWriter, *given: object, **more: object) -> None:
            time.sleep(0.02)  # the disk's
            write(self, *given, **more)  # type: ignore[arg-type]

        monkeypatch.setattr(snapshots.TensorWriter, "write", late)
    journal = Journal(JournalConfig(str(tmp_path), interval_s=0.05), 0)
    shard = Shard(0, SLICES, ServingConfig(Adagrad(0.01)), journal=journal)
    post = Post(shard)
    client = Client(Mailbox(post), SLICES, torch.zeros(SIZE))  # type: ignore[arg-type]
    client.put()
    client.fetch()
    client.wait()
    gradient = torch.ones(SIZE)
    tracemalloc.start()
    try:
        for step in range(PUSHES):
            client.push(gradient, step)
            if step % 4 == 0:
                client.fetch()
                client.wait()
            if step == PUSHES // 2:
                before = held(client)
        after = held(client)
    finally:
        tracemalloc.stop()
    client.drain()
    shard.close()
    assert after - before < MOST_BYTES
    assert shard.statistics()["slices"][0]["pushes"] == PUSHES * len(SLICES)
    assert shard.statistics()["slices"][0]["duplicates"] > PUSHES // 10
