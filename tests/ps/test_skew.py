"""Skew: how many versions the slices of a fetch lie apart."""

import torch

from cutset.ps.client.client import Client
from cutset.ps.optimizers.standard import SGD
from cutset.ps.slices.slicing import layout, of_machine, of_shard
from cutset.ps.methods.method import Serving
from cutset.ps.server.shard import Shard
from cutset.ps.slices.skew import Skew
from cutset.runtime.channel.mailbox import Mailbox
from cutset.runtime.channel.memory_channel import MemoryNetwork


def test_mean_and_most_of_all_fetches():
    skew = Skew()
    assert skew.statistics() == {"fetches": 0, "mean": 0.0, "max": 0}
    for versions in ([3, 3], [7, 4, 5], [2]):
        skew.add(versions)
    assert skew.statistics() == {"fetches": 3, "mean": 1.0, "max": 3}


def test_a_client_counts_what_its_shards_lay_apart():
    """Another client's push has reached one shard and not yet the other when the values are asked for."""
    network, slices = MemoryNetwork(), layout([64], 2)
    channels = {name: network.channel(name) for name in ("shard-0", "shard-1", "worker-0.0", "worker-1.0")}
    shards = [Shard(s, of_shard(slices, s), Serving(SGD(1.0), 2)) for s in range(2)]

    def serve(index, count):
        channel = channels[f"shard-{index}"]
        for _ in range(count):
            for peer, reply in shards[index].handle(channel.receive(5.0)):
                channel.send(peer, reply)

    first, other = (
        Client(Mailbox(channels[f"worker-{r}.0"]), of_machine(slices, 0), torch.zeros(64), replica=r) for r in range(2)
    )
    first.put()
    other.fetch()
    for index in range(2):
        serve(index, 2)
    other.wait()
    other.push(torch.ones(64), 0)
    serve(0, 1)
    first.fetch()
    serve(0, 1)
    # What the other pushed to this shard waits behind the fetch.
    held = channels["shard-1"].receive(5.0)
    assert held.kind == "push"
    serve(1, 1)
    first.wait()
    assert first.statistics()["skew"] == {"fetches": 1, "mean": 1.0, "max": 1}
    assert other.statistics()["skew"] == {"fetches": 1, "mean": 0.0, "max": 0}
