"""Tables travel by rows: training ends where it does densely, and costs what is touched, not what there is."""

from collections import deque

import pytest
import torch
from marking import with_slow

from cutset.errors import NetworkError
from cutset.ps.client.client import Client
from cutset.ps.methods.downpour import Downpour
from cutset.ps.methods.ssp import SSP
from cutset.ps.methods.sync import Sync
from cutset.ps.optimizers.standard import SGD, Adagrad
from cutset.ps.server.serving import ServingConfig
from cutset.ps.server.shard import Shard
from cutset.ps.slices.slicing import ParameterSlice
from cutset.runtime.channel.memory_channel import MemoryNetwork
from cutset.runtime.channel.message import Message
from cutset.runtime.worker.flat_gradient import FlatGradient, SparseTable
from tests.support.lookup import bytes_of, run


@pytest.mark.first_cases(3)
@pytest.mark.parametrize("optimizer", [SGD(0.5), Adagrad(0.5), Adagrad(0.5, local_rate=0.1)])
@pytest.mark.parametrize(
    "method",
    [
        Downpour(),
        Downpour(overlap=True),
        Downpour(fetch=3, push=2),
        Downpour(fetch=1, push=4),
        Downpour(fetch=2, push=3, overlap=True),
        SSP(),
        Sync(),
    ],
    ids=str,
)
def test_one_replica_ends_where_it_does_densely(method, optimizer):
    by_rows, own, _ = run(method, optimizer, rows=60, by_rows=True)
    dense, _, _ = run(method, optimizer, rows=60, by_rows=False)
    assert float(dense.abs().max()) > 1
    torch.testing.assert_close(by_rows, dense, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(own[0], by_rows, rtol=1e-9, atol=1e-9)  # after a last fetch of what changed


@pytest.mark.parametrize("optimizer", [SGD(0.5), Adagrad(0.5)])
def test_two_replicas_in_step_end_where_they_do_densely(optimizer):
    by_rows, own, _ = run(Sync(), optimizer, rows=60, by_rows=True, replicas=2)
    dense, _, _ = run(Sync(), optimizer, rows=60, by_rows=False, replicas=2)
    torch.testing.assert_close(by_rows, dense, rtol=1e-9, atol=1e-9)
    for values in own:
        torch.testing.assert_close(values, by_rows, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("method", with_slow([Downpour(fetch=2, push=3, overlap=True)], [Downpour(), SSP()]), ids=str)
@pytest.mark.run
def test_replicas_that_race_learn_what_one_does(method):
    alone, _, _ = run(Downpour(), SGD(0.5), rows=30, by_rows=True, steps=240)
    values, _, _ = run(method, SGD(0.5), rows=30, by_rows=True, replicas=3, steps=80)
    for found in (alone, values):
        torch.testing.assert_close(
            found[3:].view(30, 4) + found[:3].sum(),
            torch.arange(30, dtype=torch.float64)[:, None].expand(30, 4),
            rtol=0,
            atol=6.0,  # of 29 at the beginning
        )


@pytest.mark.first_cases(2)
@pytest.mark.parametrize(
    ("method", "replicas"), [(Downpour(), 1), (SSP(), 1), (Sync(), 1), (Sync(), 2)], ids=str
)  # not of replicas that race: what a fetch brings depends on who comes first
def test_bytes_a_step_do_not_grow_with_the_table(method, replicas):
    def in_a_step(rows):
        *_, statistics = run(method, Adagrad(0.1), rows=rows, by_rows=True, steps=40, replicas=replicas)
        put = 8 * (rows * 4 + 3)  # replica 0 puts the initial values
        return [sum(bytes_of(one)[0] for one in statistics) - put, sum(bytes_of(one)[1] for one in statistics)]

    small, large = in_a_step(500), in_a_step(20_000)
    assert large == pytest.approx(small, rel=0.05)
    assert max(large) / 40 < 0.01 * 20_000 * 4 * 8


def shard_with_rows():
    shard = Shard(0, [ParameterSlice(0, 0, 0, 12, 0, 3), ParameterSlice(0, 0, 12, 14, 1)], ServingConfig(SGD(1.0)))
    for piece, size in ((0, 12), (1, 2)):
        shard.handle(Message("put", edge=piece, tensors=(torch.zeros(size),), sender="w"))
    return shard


def pushed(shard, number, rows, *, sender="w"):
    numbers = torch.tensor(rows, dtype=torch.int32)
    body = {"base": number - 1, "number": number, "replica": 0, "width": 3}
    shard.handle(Message("push", body=body, tensors=(numbers, torch.ones(len(rows), 3)), sender=sender))


def fetched(shard, since, piece=0):
    body = {"min_version": 0, "min_step": 0, "replica": 0} | ({} if since is None else {"since": since})
    ((_, reply),) = shard.handle(Message("fetch", edge=piece, body=body, sender="w"))
    return reply


def test_a_fetch_brings_what_changed():
    shard = shard_with_rows()
    pushed(shard, 1, [0])
    pushed(shard, 2, [1, 3])
    pushed(shard, 3, [3])
    reply = fetched(shard, 1)
    assert (reply.body["version"], reply.body["width"]) == (3, 3)
    assert reply.tensors[0].tolist() == [1, 3]
    assert reply.tensors[1].tolist() == [[-1] * 3, [-2] * 3]
    assert fetched(shard, 3).body["unchanged"]
    assert fetched(shard, 3).tensors == ()
    for since in (0, None):  # three rows with their numbers are no less than all, and nothing was asked for
        assert [list(t.shape) for t in fetched(shard, since).tensors] == [[12]]


def test_all_is_sent_where_that_is_less():
    shard = shard_with_rows()
    pushed(shard, 1, [0])
    pushed(shard, 2, [0, 1, 2, 3])
    assert [list(t.shape) for t in fetched(shard, 1).tensors] == [[12]]


def test_a_dense_slice_is_unchanged_or_whole():
    shard = shard_with_rows()
    assert fetched(shard, 0, piece=1).body["unchanged"]
    body = {"base": 0, "number": 1, "replica": 0}
    shard.handle(Message("push", edge=1, body=body, tensors=(torch.ones(2),), sender="w"))
    assert fetched(shard, 0, piece=1).tensors[0].tolist() == [-1, -1]
    assert fetched(shard, 1, piece=1).tensors == ()


def test_what_is_fetched_is_a_copy():
    shard = shard_with_rows()
    pushed(shard, 1, [0])
    pushed(shard, 2, [1])
    reply = fetched(shard, 1)
    pushed(shard, 3, [1])
    assert reply.tensors[1].tolist() == [[-1] * 3]


@pytest.mark.parametrize(("rows", "facts"), [([4], "ascend from 0 to 3"), ([1, 0], "ascend"), ([0, 0], "ascend")])
def test_rows_outside_of_the_slice_are_refused(rows, facts):
    with pytest.raises(NetworkError, match=rf"E550: shard-0: message 'push' of w for slice 0 .*{facts}"):
        pushed(shard_with_rows(), 1, rows)


@pytest.mark.parametrize("since", [-1, 1.5, "1", None])
def test_a_version_that_is_none_is_refused(since):
    body = {"min_version": 0, "min_step": 0, "replica": 0, "since": since}
    with pytest.raises(NetworkError, match=r"E550.*since"):
        shard_with_rows().handle(Message("fetch", body=body, sender="w"))


def test_a_client_pushes_the_rows_that_were_touched():
    sent = []

    class Mailbox:
        channel = MemoryNetwork().channel("worker")

        def send(self, shard, message):
            sent.append(message)
            return message

        def collect(self):
            pass

        def divert(self, kinds):
            return deque()

    gradient = FlatGradient(torch.zeros(14), [SparseTable(0, 12, 3)])
    gradient.flat.view(-1)[3:6] = 2.0
    gradient.mark_rows(0, torch.tensor([1, 1]))
    slices = [ParameterSlice(0, 0, 0, 6, 0, 3), ParameterSlice(0, 0, 6, 12, 1, 3), ParameterSlice(0, 0, 12, 14, 2)]
    client = Client(Mailbox(), slices, torch.zeros(14))
    client.push(gradient, 0)
    assert [[list(t.shape) for t in message.tensors] for message in sent] == [[[1], [1, 3]], [[0], [0, 3]], [[2]]]
    assert sent[0].tensors[0].tolist() == [1]
    gradient.zero()  # what was pushed is a copy
    assert sent[0].tensors[1].tolist() == [[2, 2, 2]]
    sent.clear()
    client.push(gradient.flat, 1)  # of a method that knows of no rows
    assert [[list(t.shape) for t in message.tensors] for message in sent] == [[[6]], [[6]], [[2]]]
