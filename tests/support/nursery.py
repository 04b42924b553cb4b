"""Forks the processes of the exactly-once tests: shards that can be killed, and clients that push integers.

Run as a program, it reads lines of JSON, each the parts of one process, and writes the process's number. It imports
torch once, and has no thread when it forks.
"""

import faulthandler
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
from post import Post

from cutset.ps.checkpoint.journal import Journal, JournalConfig
from cutset.ps.checkpoint.shard_file import read_shard
from cutset.ps.client.client import Client
from cutset.ps.optimizers.standard import SGD
from cutset.ps.server.replies import Replies
from cutset.ps.server.serve_loop import serve
from cutset.ps.server.serving import ServingConfig
from cutset.ps.server.shard import Shard
from cutset.ps.slices.slicing import slice_parameters, slices_of_shard
from cutset.runtime.channel.mailbox import Mailbox
from cutset.runtime.channel.message import Message

SIZE, SHARDS = 64, 2
SLICES = slice_parameters([SIZE], SHARDS, align=1, max_elements=16)
INTERVAL_S = 0.02  # between two journals


class Forgetful(Shard):
    """Takes every push for a new one: what the numbers are for."""

    def handle(self, message: Message) -> Replies:
        """A push comes with the number that is expected, and is acknowledged under its own."""
        slice_state, number = self._slice_servers[message.edge].slice_state, message.body.get("number")
        if message.kind == "leave":
            message.body["number"] = 0  # what was lost is not missed
        if message.kind != "push" or slice_state is None:
            return super().handle(message)
        message.body["number"] = slice_state.applied.get(message.sender, 0) + 1
        replies = super().handle(message)
        for reply in [reply for _, reply in replies if reply.kind == "push_ack"]:
            reply.body["number"] = number
        return replies


def shard(folder: Path, name: str, index: int, dedupe: bool) -> None:
    """Serve until killed."""
    journal = Journal(JournalConfig(str(folder), interval_s=INTERVAL_S), index)
    kind = Shard if dedupe else Forgetful
    more: dict[str, Any] = {}
    if journal.path.exists():
        contents = read_shard(journal.path)
        journal.restore_from(contents.slice_states)
        more = {"restored": contents.slice_states, "clocks": contents.clocks}
    served = kind(index, slices_of_shard(SLICES, index), ServingConfig(SGD(1.0)), journal=journal, **more)
    post = Post(name, folder)
    post.send("launcher", Message("serving", body={"shard": index, "name": name}))
    serve(served, post)


def client(folder: Path, name: str, replica: int, pushes: int, seed: int, loss: float) -> None:
    """Push 1, 2, 3, ... times 1000 to the power of the replica; the first puts zeros."""
    post = Post(name, folder, loss=loss, twice=loss, seed=f"{seed} {name}")
    values = torch.zeros(SIZE, dtype=torch.float64)
    one = Client(Mailbox(post, timeout_s=120.0), SLICES, values, replica=replica, retransmit_s=0.05)
    if replica == 0:
        one.put()
    one.fetch()
    one.wait()
    for number in range(pushes):
        one.push(torch.full((SIZE,), gradient(number), dtype=torch.float64), number)
        post.send("launcher", Message("pushed", number))
    one.leave()
    post.send("launcher", Message("done", body=one.statistics()))
    post.close()


def gradient(number: int) -> float:
    """Of a push: an integer that says which it was."""
    return float(number % 97 + 1)


def main() -> None:
    """Fork what stdin asks for."""
    torch.set_num_threads(1)
    for line in sys.stdin:
        asked = json.loads(line)
        pid = os.fork()
        if not pid:
            faulthandler.register(signal.SIGUSR1)  # shows where it is, if it hangs
            sys.stdin.close()
            os.dup2(2, 1)
            {"shard": shard, "client": client}[asked.pop("kind")](Path(asked.pop("folder")), **asked)
            os._exit(0)
        sys.stdout.write(f"{pid}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
