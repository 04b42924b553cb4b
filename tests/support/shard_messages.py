"""What workers say to a shard of two slices, of machines 0 and 2, in float64; and such a shard."""

import torch

from cutset.ps.optimizers.standard import SGD
from cutset.ps.server.serving import ServingConfig
from cutset.ps.server.shard import Shard
from cutset.ps.slices.push_payload import GradientPacker
from cutset.ps.slices.slicing import ParameterSlice
from cutset.runtime.channel.message import Message

SLICES = [ParameterSlice(0, 0, 0, 3, 0), ParameterSlice(0, 2, 16, 18, 2)]


def vector(*numbers):
    return torch.tensor(numbers, dtype=torch.float64)


def put(*numbers, machine=0):
    return Message("put", edge=machine, tensors=(vector(*numbers),), sender=f"worker-0.{machine}")


def fetch(min_version=0, machine=0, sender="worker-0.0"):
    return Message("fetch", edge=machine, body={"min_version": min_version, "min_step": 0, "replica": 0}, sender=sender)


def attach_fetch(push, **body):
    """The push, with a fetch."""
    asked = {"min_version": 0, "min_step": 0, "replica": 0, "step": 3, **body}
    return Message(push.kind, push.step, 0, push.edge, {**push.body, "fetch": asked}, push.tensors, push.sender)


def push(number, *numbers, base=0, machine=0, sender="worker-0.0", step=7):
    return Message(
        "push", step, 0, machine, {"base": base, "number": number, "replica": 0}, (vector(*numbers),), sender
    )


def make_compressed_push(how, *numbers):
    """A first push of these numbers, or of 1, 2, 3, as a compression makes it."""
    made = GradientPacker(how).pack(vector(*(numbers or (1.0, 2.0, 3.0))))
    return Message(
        "push", 7, 0, 0, {"base": 0, "number": 1, "replica": 0, **made.body_fields}, made.tensors, "worker-0.0"
    )


def shard_with_values(optimizer=None):
    shard = Shard(0, SLICES, ServingConfig(optimizer or SGD(1.0)))
    assert plain(shard.handle(put(0.0, 10.0, 20.0))) == [("worker-0.0", "put_ack", {}, [])]
    return shard


def plain(replies):
    """(peer, kind, body, values) of each reply."""
    return [(peer, m.kind, m.body, [t.tolist() for t in m.tensors]) for peer, m in replies]
