"""Two channels of one host that know each other."""

from collections.abc import Callable

import torch

from cutset.runtime.channel.curve import make_keys
from cutset.runtime.channel.message import Message
from cutset.runtime.channel.shared_memory import MIN_SHARED_BYTES
from cutset.runtime.channel.zmq_channel import ZmqChannel

KEYS = make_keys(["a", "b"])
LARGE = torch.arange(MIN_SHARED_BYTES, dtype=torch.float32)
Opener = Callable[..., ZmqChannel]


def pair(opened: Opener, **of_b: int) -> tuple[ZmqChannel, ZmqChannel]:
    """Open channels a and b, introduced to each other. of_b: options of b."""
    a, b = opened("a"), opened("b", **of_b)
    for one, other in ((a, b), (b, a)):
        one.introduce({other.name: other.endpoint})
    return a, b


def to_and_fro(a: ZmqChannel, b: ZmqChannel, step: int) -> None:
    """A large tensor each way."""
    for one, other in ((a, b), (b, a)):
        one.send(other.name, Message("forward", step, tensors=(LARGE + step, torch.ones(3), torch.empty(0))))
        found = other.receive(10)
        assert (found.kind, found.step) == ("forward", step)
        assert torch.equal(found.tensors[0], LARGE + step)
        assert torch.equal(found.tensors[1], torch.ones(3))
