"""A vector shard that a test sends one message after the other."""

import msgspec
import pytest
import torch

from cutset.ps.sandblaster.solver import Portions
from cutset.ps.sandblaster.vector_shard import VectorShard, slice_initial_values
from cutset.ps.slices.slicing import ParameterSlice
from cutset.runtime.channel.message import Message

SLICES = [ParameterSlice(1, 0, 2, 5, 0), ParameterSlice(1, 2, 0, 2, 2)]  # of machines 0 and 2
WHOLE = {0: torch.arange(8, dtype=torch.float64), 2: torch.tensor([-1.0, 10.0], dtype=torch.float64)}
INITIAL_VALUES = {0: [2.0, 3.0, 4.0], 2: [-1.0, 10.0]}
PORTIONS = Portions(10, 3)  # the last has one sample


class ScriptedShard:
    """A shard, and what it answers, as plain data."""

    def __init__(self, folder, *, epoch=1, number=0, slices=SLICES):
        self.folder, self.epoch = folder, epoch
        self.shard = VectorShard(1, slices, PORTIONS, slice_initial_values(WHOLE), folder)
        if epoch:
            assert self.roll_back(epoch, number) == [("coordinator", "rolled back", {"epoch": epoch}, [])]

    def say(self, sender, kind, body, *, edge=0, step=0, tensors=()):
        replies = self.shard.handle(Message(kind, step, 0, edge, body, tensors, sender))
        return [(to, m.kind, m.body, [tensor.tolist() for tensor in m.tensors]) for to, m in replies]

    def roll_back(self, epoch, number, sender="coordinator"):
        self.epoch = max(self.epoch, epoch)
        return self.say(sender, "roll back", {"epoch": epoch, "number": number})

    def operate(self, number, *batch, epoch=None, sender="coordinator"):
        body = {"epoch": epoch or self.epoch, "number": number, "batch": msgspec.to_builtins(batch)}
        return self.say(sender, "operate", body)

    def commit(self, number, keep=0, epoch=None):
        return self.say("coordinator", "commit", {"epoch": epoch or self.epoch, "number": number, "keep": keep})

    def point(self, number, place=0, *, edge=0, epoch=None, sender="worker-0.0", step=0):
        body = {"epoch": epoch or self.epoch, "number": number, "place": place}
        return self.say(sender, "point", body, edge=edge, step=step)

    def gradient(
        self, number, level, index, *scalar_operations, place=0, edge=0, epoch=None, sender="worker-0.0", tensors=None
    ):
        body = {"epoch": epoch or self.epoch, "number": number, "place": place, "level": level, "index": index}
        given = (torch.tensor(scalar_operations, dtype=torch.float64),) if tensors is None else tensors
        return self.say(sender, "gradient", body, edge=edge, tensors=given)

    def read(self, edge, sender="worker-0.0", step=0):
        return self.say(sender, "read", {}, edge=edge, step=step)

    @property
    def values(self):
        """The parameters by slice."""
        return {edge: self.read(edge)[0][3][0] for edge in INITIAL_VALUES}

    @property
    def vectors(self):
        """All vectors by slice and name."""
        return {number: dict(sorted(vectors.items())) for number, vectors in self.shard._vectors.items()}

    def operated(self, number, *partials, epoch=None, to="coordinator"):
        """The answer to a batch."""
        return (to, "operated", {"epoch": epoch or self.epoch, "number": number, "partials": list(partials)}, [])


def summed(to="worker-0.0"):
    return (to, "summed", {}, [])


@pytest.fixture
def scripted(tmp_path):
    return ScriptedShard(tmp_path / "batch")
