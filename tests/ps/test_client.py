"""The client against real shards, pumped one message at a time so that every interleaving can be played."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cutset.partition.errors import NetworkError
from cutset.ps.client import Client
from cutset.ps.compression import Int8, Threshold, TopK
from cutset.ps.gradient_rules import SGD, Adagrad
from cutset.ps.layout import layout, of_machine, of_shard
from cutset.ps.method import Serving
from cutset.ps.shard import Shard
from cutset.runtime.channel import SilenceError
from cutset.runtime.mailbox import Mailbox
from cutset.runtime.memory_channel import MemoryNetwork
from cutset.runtime.message import Message

SIZE = 40


class Bench:
    """Shards whose messages are handled when the test says so, and the clients of machine 0 in some replicas."""

    def __init__(self, *, replicas=1, shards=2, rule=None, local_rate=None, copies=False, most=SIZE, **options):
        network = MemoryNetwork(copies=copies)
        rule = rule or SGD(0.5)
        slices = layout([SIZE], shards, align=8, most=most)
        self.shards = [Shard(s, of_shard(slices, s), Serving(rule)) for s in range(shards)]
        self.channels = [network.channel(f"shard-{s}") for s in range(shards)]
        rate = rule.local_rate if local_rate is None else local_rate
        self.clients = []
        for r in range(replicas):
            mailbox = Mailbox(network.channel(f"worker-{r}.0"), timeout_s=0.01)
            values = torch.zeros(SIZE, dtype=torch.float64)
            self.clients.append(Client(mailbox, of_machine(slices, 0), values, local_rate=rate, **options))

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
        return torch.cat([holding.value for shard in self.shards for holding in shard.holdings()])


def ramp(scale=1.0):
    return torch.arange(SIZE, dtype=torch.float64) * scale


@pytest.mark.parametrize("copies", [False, True])
def test_put_then_fetch(copies):
    bench = Bench(replicas=2, copies=copies)
    first, second = bench.clients
    first.values.copy_(ramp())
    second.fetch()
    bench.pump()
    assert not second.arrived()
    first.put()
    first.values.zero_()
    bench.pump()
    second.wait()
    assert torch.equal(second.values, ramp())
    assert not second.fetching


def test_fetch_returns_at_once_and_slices_arrive_apart():
    bench = Bench()
    [client] = bench.clients
    client.values.fill_(1.0)
    client.put()
    client.values.zero_()
    client.fetch()
    assert not client.arrived()
    bench.pump(shard=1)
    assert not client.arrived()
    assert client.values.unique(return_counts=True)[1].tolist() == [16, 24]
    bench.pump(shard=0)
    assert client.arrived()
    assert (client.values == 1).all()
    client.wait()  # nothing is under way: returns


def test_a_second_fetch_while_one_is_under_way_is_a_bug():
    [client] = Bench().clients
    client.fetch()
    with pytest.raises(RuntimeError, match=r"worker-0\.0 fetches while a fetch is under way"):
        client.fetch()


def test_pushed_gradients_are_copies():
    bench = Bench()
    [client] = bench.clients
    gradient = ramp()
    client.put()
    client.push(gradient, 0)
    gradient.zero_()
    bench.pump()
    assert torch.equal(bench.values(), ramp(-0.5))


@pytest.mark.parametrize("copied", [False, True])
def test_a_gradient_that_was_given_is_copied_only_where_it_is_large(monkeypatch, copied):
    if copied:
        monkeypatch.setattr("cutset.ps.client.GIVEN_BYTES", ramp().nbytes - 1)
    bench = Bench()
    [client] = bench.clients
    gradient = ramp()
    client.put()
    client.push(gradient, 0, given=True)
    client.exchange(gradient, 1, given=True)
    kept = [tensor.data_ptr() for line in client._lines for _, message in line.redo for tensor in message.tensors]
    mine = range(gradient.data_ptr(), gradient.data_ptr() + gradient.nbytes)
    assert len(kept) == 4
    assert [at in mine for at in kept] == [not copied] * 4
    bench.pump()
    client.wait()
    client.drain()
    assert torch.equal(bench.values(), ramp(-1.0))


def test_push_waits_when_too_many_are_not_acknowledged():
    bench = Bench(unacknowledged=3)
    [client] = bench.clients
    client.put()
    for step in range(3):
        client.push(ramp(), step)
    with pytest.raises(SilenceError, match="pushed of shard-0"):
        client.push(ramp(), 3)
    bench.pump(messages=2)  # the put and one push
    client.push(ramp(), 3)
    with pytest.raises(SilenceError):
        client.drain()
    bench.pump()
    client.drain()
    assert torch.equal(bench.values(), ramp(-2.0))


def test_drain_does_not_take_a_repeated_acknowledgement_for_another():
    bench = Bench(shards=1)
    [client] = bench.clients
    client.put()
    client.push(ramp(), 0)
    bench.pump()
    client.push(ramp(), 1)
    bench.channels[0].send("worker-0.0", Message("pushed", body={"version": 1, "number": 1, "durable": 1}))
    with pytest.raises(SilenceError):
        client.drain()
    bench.pump()
    client.drain()


def test_an_acknowledgement_of_what_was_not_pushed_is_named():
    bench = Bench(shards=1)
    [client] = bench.clients
    client.put()
    client.push(ramp(), 0)
    bench.channels[0].send("worker-0.0", Message("pushed", body={"version": 2, "number": 2, "durable": 2}))
    with pytest.raises(NetworkError, match=r"worker-0\.0: shard-0 acknowledges push 2; the last was 1"):
        client.drain()


def test_an_exchange_asks_for_each_slice_behind_its_push():
    bench = Bench(shards=1, most=8)
    [client] = bench.clients
    client.put()
    bench.pump()
    client.drain()
    client.exchange(ramp(), 0)
    gradient, messages = ramp(), list(iter(bench.channels[0].poll, None))
    assert [(m.kind, m.edge) for m in messages] == [(kind, n) for n in range(5) for kind in ("push", "fetch")]
    for message in messages:
        for peer, reply in bench.shards[0].handle(message):
            bench.channels[0].send(peer, reply)
    client.wait()
    assert torch.equal(client.values, gradient * -0.5)
    client.exchange(ramp(), 1)
    with pytest.raises(RuntimeError, match="under way"):
        client.exchange(ramp(), 2)


def test_an_exchange_of_more_than_the_window_installs_what_comes_on_its_way():
    bench = Bench(shards=1, most=8, window_bytes=2 * 8 * 8)
    [client] = bench.clients
    channel, shard = bench.channels[0], bench.shards[0]
    for holding in (served.piece for served in shard._served.values()):
        shard.handle(Message("put", edge=holding.number, tensors=(vector_of(holding),), sender="worker-9.0"))
    waiting, most = client._lines.mailbox.wait, 0

    def wait(keys, *, timeout_s=None):
        nonlocal most
        most = max(most, len(client._fetching._asked))
        bench.pump()
        return waiting(keys, timeout_s=timeout_s)

    client._lines.mailbox.wait = wait
    client.exchange(torch.ones(SIZE, dtype=torch.float64), 0)
    assert len(client._fetching._asked) < 5  # some are there already
    client.wait()
    client.drain()
    assert 1 <= most <= 2
    assert torch.equal(client.values, ramp() - 0.5)
    assert channel.poll() is None


def vector_of(holding):
    """Initial values of a slice."""
    return ramp()[holding.start : holding.stop]


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
    bench = Bench(rule=Adagrad(0.5))
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
    client.fetch(at_least=2)
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
            case "exchange" if not client.fetching:
                client.exchange(accrued, 0)
                accrued.zero_()
            case "accrue":
                gradient = torch.randn(SIZE, dtype=torch.float64, generator=generator)
                accrued += gradient
                for values in (client.values, expected):
                    values.sub_(gradient, alpha=0.5)
            case "fetch" if not client.fetching:
                client.fetch()
            case "arrived":
                client.arrived(accrued)
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
    bench = Bench(replicas=2, unacknowledged=100, rule=SGD(1.0))
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
            case "exchange" if not client.fetching:
                gradient = torch.full_like(client.values, -(1000.0**me))
                client.values.sub_(gradient)
                client.exchange(gradient, 0)
                pushed[me] += 1
            case "fetch" if not client.fetching:
                client.fetch()
            case "arrived":
                client.arrived()
            case "pump":
                bench.pump(*arguments)
        for r, each in enumerate(bench.clients):
            seen = torch.stack([each.values % 1000, each.values // 1000]).long()
            assert (seen[r] == pushed[r]).all()
            assert (seen[1 - r] <= pushed[1 - r]).all()
    bench.pump()
    assert (bench.values() == pushed[0] + 1000 * pushed[1]).all()


def test_a_fetch_that_waits_for_others_is_more_patient_than_the_mailbox():
    ticks = iter(range(100))
    bench = Bench(patience_s=5.0, clock=lambda: float(next(ticks)))
    [client] = bench.clients
    client.put()
    client.fetch(at_least=1)
    with pytest.raises(SilenceError, match=r"waited 5 s .*waits for other replicas"):
        client.wait()
    assert next(ticks) == 7  # it looked at the clock at the start and after each silence


def test_statistics():
    ticks = iter(range(100))
    bench = Bench(clock=lambda: float(next(ticks)))
    [client] = bench.clients
    client.put()
    client.fetch()
    bench.pump()
    client.wait()
    client.push(ramp(), 0)
    bench.pump()
    client.drain()
    shards = {f"shard-{s}": {"bytes_in": 8 * n, "bytes_out": 16 * n} for s, n in enumerate([16, 24])}
    blocked = {"fetch_blocked_s": 1.0, "push_blocked_s": 1.0}
    counts = {"fetches": 1, "pushes": 1, "repeats": 0, "unsaved": 0}
    skew = {"fetches": 1, "mean": 0.0, "max": 0}
    assert client.statistics() == {**counts, **blocked, "skew": skew, "shards": shards}


def test_slices_must_cover_the_values():
    mailbox = Mailbox(MemoryNetwork().channel("worker-0.0"))
    with pytest.raises(ValueError, match="slices of 8 elements for 9 values"):
        Client(mailbox, layout([8], 1), torch.zeros(9), local_rate=0.0)


def test_a_machine_without_parameters_waits_for_nothing():
    client = Client(Mailbox(MemoryNetwork().channel("worker-0.0")), [], torch.zeros(0), local_rate=0.1)
    client.put()
    client.fetch()
    client.wait()
    client.push(torch.zeros(0), 0)
    client.drain()


def test_no_more_is_asked_for_than_the_window_holds():
    bench = Bench(shards=1, most=8, window_bytes=2 * 8 * 8)
    [client] = bench.clients
    for holding in (served.piece for served in bench.shards[0]._served.values()):
        values = ramp()[holding.start : holding.stop]
        bench.shards[0].handle(Message("put", edge=holding.number, tensors=(values,), sender="worker-9.0"))
    client.fetch()
    turns = 0
    while not client.arrived():
        asked = len(client._fetching._asked)
        assert asked <= 2
        bench.pump()
        turns += 1
    assert turns == 3
    assert torch.equal(client.values, ramp())


def test_no_more_is_sent_than_the_window_holds():
    bench = Bench(shards=1, most=8, window_bytes=2 * 8 * 8)
    [client] = bench.clients
    client.values.copy_(ramp())
    with pytest.raises(SilenceError, match="wanted: held of shard-0"):
        client.put()
    assert len(list(iter(bench.channels[0].poll, None))) == 2


def test_a_push_through_a_small_window_arrives_whole():
    bench = Bench(shards=2, most=8, window_bytes=8 * 8, replicas=1)
    [client] = bench.clients
    receive = client._lines.mailbox.channel.receive

    def pumped(timeout_s):
        bench.pump(messages=1)
        return receive(timeout_s)

    client._lines.mailbox.channel.receive = pumped
    client.put()
    client.push(ramp(), 0)
    client.push(ramp(), 1)
    client.drain()
    assert torch.equal(bench.values(), ramp(-1.0))
    assert client.in_flight == 0


def test_a_step_is_settled_once_all_shards_have_acknowledged_what_was_pushed_of_it():
    bench = Bench(shards=2)
    (client,) = bench.clients
    client.put()
    bench.pump()
    for step in (4, 5):
        client.push(ramp(), step)
    bench.pump(0)
    client.push(ramp(), 6)
    assert client.settled == 0
    bench.pump(1, 1)
    client.push(ramp(), 7)
    assert client.settled == 5
    bench.pump()
    client.drain()
    assert client.settled == 8


def test_who_joins_is_told_a_step_that_suits_all_slices():
    bench = Bench(shards=2)
    (client,) = bench.clients
    with pytest.raises(SilenceError):
        client.join(2)  # nobody answers it yet
    bench.shards[1].handle(Message("join", step=7, edge=1, body={"replica": 0}))
    bench.pump()
    assert client.join(2) == 7


def test_what_a_disk_has_has_arrived_though_its_acknowledgement_was_lost():
    bench = Bench(shards=1)
    [client] = bench.clients
    client.put()
    bench.pump()
    client.push(ramp(), 0)
    body = {"numbers": {"0": 1}, "failing": False}
    bench.channels[0].send("worker-0.0", Message("durable", body=body))
    client.drain()  # nothing is kept that could be said again
    assert (client.in_flight, client.settled) == (0, 1)


def test_values_tell_that_a_shard_holds_them_though_its_word_was_lost():
    bench = Bench(shards=1)
    [client] = bench.clients
    client.put()
    client.fetch()
    body = {"version": 0, "applied": 0}
    bench.channels[0].send("worker-0.0", Message("values", step=1, edge=0, body=body, tensors=(ramp(),)))
    client.wait()
    client.drain()
