"""The entry of a worker that takes one step of a cut model and tells loss and gradients: for test_end_to_end."""

from typing import Any

import msgspec
from safetensors.torch import load_file

import cutset.models.tasks.locally_connected  # noqa: F401 - defines the operator of locally connected layers
from cutset.models.task import Data
from cutset.runtime.channel.channel import Channel
from cutset.runtime.channel.mailbox import Mailbox
from cutset.runtime.channel.message import LAUNCHER, Message
from cutset.runtime.hosts.heartbeat import RoleProgress
from cutset.runtime.worker.program import Program
from cutset.runtime.worker.worker import Worker


def step(channel: Channel, setup: dict[str, Any], progress: RoleProgress) -> float | None:
    """setup: program, the file of the state and the batch, peers, seed and step number."""
    worker = Worker(
        msgspec.msgpack.decode(setup["program"], type=Program),
        Mailbox(channel, timeout_s=30.0),
        setup["peers"],
        seed=setup["seed"],
    )
    tensors = load_file(setup["file"])
    worker.states.load(lambda name: tensors[name])
    batch = Data(*(tuple(tensors[name] for name in setup[kind]) for kind in ("inputs", "targets")))
    loss = worker.step(batch, setup["step"])
    held = [(name, box, piece.grad) for (name, box), piece in worker.states.pieces.items() if piece.grad is not None]
    boxes = [[name, box] for name, box, _ in held]
    channel.send(LAUNCHER, Message("gradients", body={"boxes": boxes}, tensors=tuple(g for _, _, g in held)))
    return loss
