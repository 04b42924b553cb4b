"""A client sees all of its own gradients, once, whatever arrives when."""

import torch
from client_bench import SIZE, Bench, ramp
from hypothesis import given
from hypothesis import strategies as st

from cutset.ps.client.client import Client
from cutset.ps.optimizers.standard import SGD, Adagrad
from cutset.ps.server.serving import ServingConfig
from cutset.ps.server.shard import Shard
from cutset.ps.slices.compression import Int8, Threshold, TopK
from cutset.ps.slices.slicing import slice_parameters, slices_of_machine, slices_of_shard
from cutset.runtime.channel.mailbox import Mailbox
from cutset.runtime.channel.memory_channel import MemoryNetwork


def test_later_pushes_and_unpushed_gradients_are_applied_again():
    bench = Bench()
    [client] = bench.clients
    client.put()
    bench.pump()
    client.fetch()
    client.values.sub_(ramp(), alpha=0.5)
    client.push(ramp(), 0)
    bench.pump()
    client.wait(unpushed=ramp(10.0))
    torch.testing.assert_close(client.values, ramp(-5.5))
    client.push(ramp(10.0), 1)
    bench.pump()
    assert bench.staleness() == [0, 0]


def test_without_a_local_rate_nothing_is_applied_again_and_own_pushes_are_stale():
    bench = Bench(optimizer=Adagrad(0.5))
    [client] = bench.clients
    client.put()
    client.fetch()
    client.push(ramp(), 0)
    bench.pump()
    client.wait(unpushed=ramp())
    assert torch.equal(client.values, torch.zeros_like(client.values))
    client.push(ramp(), 1)
    bench.pump()
    assert set(bench.staleness()) == {0, 1}


def test_a_fetch_that_waited_at_the_shard_contains_later_pushes():
    bench = Bench()
    [client] = bench.clients
    client.put()
    client.fetch(min_version=2)
    for step in range(3):
        client.values.sub_(ramp(), alpha=0.5)
        client.push(ramp(), step)
    bench.pump()
    client.wait()
    torch.testing.assert_close(client.values, ramp(-1.5))


actions = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["push", "exchange", "accrue", "fetch", "arrived"]), st.integers(0, 1)),
        st.tuples(st.sampled_from(["pump"]), st.integers(0, 1), st.integers(1, 3)),
    ),
    max_size=40,
)


@given(actions, st.sampled_from([None, Int8(), Threshold(0.5), TopK(0.2)]))
def test_a_lone_client_always_sees_all_its_gradients(script, compression):
    bench = Bench(unacknowledged=100, compression=compression)
    [client] = bench.clients
    generator = torch.Generator().manual_seed(0)
    expected, accrued = torch.zeros_like(client.values), torch.zeros_like(client.values)
    client.put()
    for action, *arguments in script:
        match action:
            case "push":
                client.push(accrued, 0)
                accrued.zero_()
            case "exchange" if not client.is_fetching:
                client.exchange(accrued, 0)
                accrued.zero_()
            case "accrue":
                gradient = torch.randn(SIZE, dtype=torch.float64, generator=generator)
                accrued += gradient
                for values in (client.values, expected):
                    values.sub_(gradient, alpha=0.5)
            case "fetch" if not client.is_fetching:
                client.fetch()
            case "arrived":
                client.install_arrived(accrued)
            case "pump":
                bench.pump(*arguments)
        torch.testing.assert_close(client.values, expected, rtol=0, atol=1e-12)
    bench.pump()
    client.wait(accrued)
    client.drain()
    torch.testing.assert_close(client.values, expected, rtol=0, atol=1e-12)
    assert set(bench.staleness()) <= {0}


@given(actions)
def test_two_clients_see_all_of_their_own_and_each_push_of_the_other_at_most_once(script):
    bench = Bench(replicas=2, unacknowledged=100, optimizer=SGD(1.0))
    bench.clients[0].put()
    pushed = [0, 0]  # client 0 counts in ones, client 1 in thousands
    for action, *arguments in script:
        me = arguments[0]
        client = bench.clients[me]
        match action:
            case "push":
                gradient = torch.full_like(client.values, -(1000.0**me))
                client.values.sub_(gradient)
                client.push(gradient, 0)
                pushed[me] += 1
            case "exchange" if not client.is_fetching:
                gradient = torch.full_like(client.values, -(1000.0**me))
                client.values.sub_(gradient)
                client.exchange(gradient, 0)
                pushed[me] += 1
            case "fetch" if not client.is_fetching:
                client.fetch()
            case "arrived":
                client.install_arrived()
            case "pump":
                bench.pump(*arguments)
        for r, each in enumerate(bench.clients):
            seen = torch.stack([each.values % 1000, each.values // 1000]).long()
            assert (seen[r] == pushed[r]).all()
            assert (seen[1 - r] <= pushed[1 - r]).all()
    bench.pump()
    assert (bench.values() == pushed[0] + 1000 * pushed[1]).all()


def test_a_client_counts_the_skew_of_its_shards():
    """Another client's push has reached one shard and not yet the other when the values are asked for."""
    network, slices = MemoryNetwork(), slice_parameters([64], 2)
    channels = {name: network.channel(name) for name in ("shard-0", "shard-1", "worker-0.0", "worker-1.0")}
    shards = [Shard(s, slices_of_shard(slices, s), ServingConfig(SGD(1.0), 2)) for s in range(2)]

    def serve(index, count):
        channel = channels[f"shard-{index}"]
        for _ in range(count):
            for peer, reply in shards[index].handle(channel.receive(5.0)):
                channel.send(peer, reply)

    first, other = (
        Client(Mailbox(channels[f"worker-{r}.0"]), slices_of_machine(slices, 0), torch.zeros(64), replica=r)
        for r in range(2)
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
