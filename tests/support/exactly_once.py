"""The harness of the exactly-once tests: shards are killed and replaced, clients' channels lose and repeat messages."""

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from nursery import SHARDS, SIZE, gradient
from post import Post

from cutset.ps.checkpoint.journal import journal_path
from cutset.ps.checkpoint.shard_file import read_shard
from cutset.ps.slices.slice_state import SliceState
from cutset.runtime.channel.message import Message

SUPPORT = Path(__file__).parent
CLIENTS, PUSHES, LOSS, KILLS = 3, 300, 0.05, 20
WITHIN_S = 120.0


class Family:
    """The forked processes of one run, and the launcher's end of the channel."""

    def __init__(self, folder: Path, nursery: "subprocess.Popen[str]", *, dedupe: bool) -> None:
        self.folder, self._nursery, self._dedupe = folder, nursery, dedupe
        self.post = Post("launcher", folder)
        self.names = [f"shard-{index}" for index in range(SHARDS)]
        self.times = [0] * SHARDS
        self.pids: dict[str, int] = {}
        self.clients: set[str] = set()
        self.done: dict[str, dict[str, int]] = {}
        self.pushed = 0

    def start(self, name: str, **parts: object) -> None:
        """Fork a process."""
        assert self._nursery.stdin is not None
        assert self._nursery.stdout is not None
        parts |= {"folder": str(self.folder), "name": name}
        self._nursery.stdin.write(json.dumps(parts) + "\n")
        self._nursery.stdin.flush()
        self.pids[name] = int(self._nursery.stdout.readline())

    def shard(self, index: int) -> None:
        """Start a shard, after the one that had its place."""
        self.start(self.names[index], kind="shard", index=index, dedupe=self._dedupe)
        self.await_kind("serving")

    def client(self, replica: int, pushes: int, *, seed: int, loss: float = LOSS, name: str = "") -> None:
        """Start a client."""
        name = name or f"worker-{replica}.0"
        self.clients.add(name)
        self.start(name, kind="client", replica=replica, pushes=pushes, seed=seed, loss=loss)

    def kill(self, name: str) -> None:
        """Nothing of it goes on."""
        os.kill(self.pids.pop(name), signal.SIGKILL)

    def replace(self, index: int) -> None:
        """Kill a shard, start another in its place, and tell the clients."""
        self.kill(self.names[index])
        self.times[index] += 1
        self.names[index] = f"shard-{index}+{self.times[index]}"
        self.shard(index)
        for client in self.clients - set(self.done):
            self.post.send(
                client, Message("shard_replaced", body={"shard": index, "name": self.names[index]}, sender="launcher")
            )

    def take(self, timeout_s: float) -> Message:
        """The next message, noted."""
        message = self.post.receive(timeout_s)
        if message.kind == "done":
            self.done[message.sender] = message.body
        self.pushed += message.kind == "pushed"
        return message

    def await_kind(self, kind: str) -> None:
        """Take in messages until one of a kind."""
        while self.take(WITHIN_S).kind != kind:
            pass

    def slice_states(self) -> list[SliceState]:
        """What the shards have on the disk."""
        return [
            slice_state
            for index in range(SHARDS)
            for slice_state in read_shard(journal_path(self.folder, index)).slice_states
        ]


@contextmanager
def family(folder: Path, *, dedupe: bool = True) -> Iterator[Family]:
    """The processes, which are killed in the end."""
    paths = os.pathsep.join([str(SUPPORT), *filter(None, [os.environ.get("PYTHONPATH")])])
    nursery = subprocess.Popen(
        [sys.executable, str(SUPPORT / "nursery.py")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": paths},
    )
    found = Family(folder, nursery, dedupe=dedupe)
    try:
        for index in range(SHARDS):
            found.shard(index)
        yield found
    finally:
        for name in list(found.pids):
            found.kill(name)
        found.post.close()
        nursery.communicate(timeout=30)


def summed(pushes: int) -> float:
    """What a client's pushes come to."""
    return -sum(gradient(number) for number in range(pushes))


def run(folder: Path, *, seed: int, dedupe: bool = True, kills: int = KILLS) -> tuple[Family, torch.Tensor]:
    """Clients push while shards are killed at random moments; the values at the end, from the disk."""
    chance = random.Random(seed)
    with family(folder, dedupe=dedupe) as found:
        for replica in range(CLIENTS):
            found.client(replica, PUSHES, seed=seed)
        total, killed = CLIENTS * PUSHES, 0
        moments = sorted(chance.randrange(total) for _ in range(kills))
        while len(found.done) < CLIENTS:
            while killed < kills and found.pushed >= moments[killed]:
                killed += 1
                found.replace(chance.randrange(SHARDS))
            if len(found.done) < CLIENTS:
                found.take(WITHIN_S)
        assert killed == kills
        values = torch.cat([slice_state.value for slice_state in found.slice_states()])
    return found, values


def check(folder: Path, seed: int) -> None:
    """Sums are exact, and messages were lost and said again."""
    found, values = run(folder, seed=seed)
    assert torch.equal(values, torch.full((SIZE,), CLIENTS * summed(PUSHES), dtype=torch.float64))
    assert all(statistics["repeats"] > 0 for statistics in found.done.values())
    assert sum(found.times) == KILLS
