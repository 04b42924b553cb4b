"""Clients against real shards, pumped one message at a time so that every interleaving can be played."""

import torch

from cutset.ps.client.client import Client
from cutset.ps.optimizers.standard import SGD
from cutset.ps.server.serving import ServingConfig
from cutset.ps.server.shard import Shard
from cutset.ps.slices.slicing import slice_parameters, slices_of_machine, slices_of_shard
from cutset.runtime.channel.mailbox import Mailbox
from cutset.runtime.channel.memory_channel import MemoryNetwork

SIZE = 40


class Bench:
    """Shards whose messages are handled when the test says so, and the clients of machine 0 in some replicas."""

    def __init__(self, *, replicas=1, shards=2, optimizer=None, local_rate=None, copies=False, most=SIZE, **options):
        self.network = network = MemoryNetwork(copies=copies)
        optimizer = optimizer or SGD(0.5)
        slices = slice_parameters([SIZE], shards, align=8, max_elements=most)
        self.shards = [Shard(s, slices_of_shard(slices, s), ServingConfig(optimizer)) for s in range(shards)]
        self.channels = [network.channel(f"shard-{s}") for s in range(shards)]
        rate = optimizer.local_rate if local_rate is None else local_rate
        self.clients = []
        for r in range(replicas):
            mailbox = Mailbox(network.channel(f"worker-{r}.0"), timeout_s=0.01)
            values = torch.zeros(SIZE, dtype=torch.float64)
            self.clients.append(Client(mailbox, slices_of_machine(slices, 0), values, local_rate=rate, **options))

    def pump(self, shard=None, messages=None):
        """Let one shard, or all, handle so many messages, or all."""
        for index in range(len(self.shards)) if shard is None else [shard]:
            left = messages
            while left != 0 and (message := self.channels[index].poll()) is not None:
                for peer, reply in self.shards[index].handle(message):
                    self.channels[index].send(peer, reply)
                left = None if left is None else left - 1

    def staleness(self):
        """Of every push: tau."""
        slices = [piece for shard in self.shards for piece in shard.statistics()["slices"]]
        return [tau for piece in slices for part in piece["staleness"].values() for tau, _ in part["histogram"]]

    def values(self):
        return torch.cat([slice_state.value for shard in self.shards for slice_state in shard.slice_states()])


def ramp(scale=1.0):
    return torch.arange(SIZE, dtype=torch.float64) * scale
