"""All-reduce equals one process with the batch of all replicas; a replica that loses another ends by name."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from regression import Regression, check_lock_step, run

from cutset.errors import Diverged, NetworkError, UsageError
from cutset.ps.methods import all_reduce as gloo
from cutset.ps.methods.all_reduce import AllReduce, GlooGroup
from cutset.ps.methods.sync import Sync
from cutset.ps.optimizers.standard import SGD, Adagrad
from cutset.ps.server.key_value_store import KeyValueStore
from cutset.runtime.channel.message import Message
from cutset.runtime.worker.flat_gradient import FlatGradient, SparseTable


@pytest.mark.parametrize("optimizer", [SGD(0.02), Adagrad(0.1)])
@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_it_equals_one_process_with_the_batch_of_all(optimizer, replicas):
    found = check_lock_step(AllReduce(), optimizer, replicas=replicas, steps=40)
    assert all(piece["version"] == 40 and piece["pushes"] == 0 for piece in found)


def test_it_equals_sync():
    sync, _, _ = run(Sync(), Adagrad(0.1), steps=30, replicas=3)
    values, _, _ = run(AllReduce(), Adagrad(0.1), steps=30, replicas=3)
    torch.testing.assert_close(values, sync, rtol=0, atol=1e-10)


def test_all_replicas_have_the_same_bits():
    workers = [Regression() for _ in range(3)]
    values, _, _ = run(AllReduce(), Adagrad(0.1), steps=30, replicas=3, workers=workers)
    assert all(torch.equal(one.values, values) for one in workers)


def test_replicas_on_other_hosts_are_refused(monkeypatch):
    """Each thread reads another boot, as if it were another machine's."""
    boots = iter("ab")
    monkeypatch.setattr(gloo, "_read", lambda path: next(boots))
    with pytest.raises(UsageError, match="is not on the host of worker-") as caught:
        run(AllReduce(), SGD(0.02), steps=3, replicas=2)
    assert caught.value.code == "E269"
    assert "--method sync" in caught.value.fix


def test_parameters_that_are_not_finite_are_named():
    with pytest.raises(Diverged) as caught:
        run(AllReduce(), SGD(1e308), steps=1, replicas=2)
    assert caught.value.code == "E704"


# The group that averages


LISTEN = "0A"


class SharedStore:
    """A store that threads share."""

    def __init__(self):
        self.store, self.changed, self.answers = KeyValueStore(), threading.Condition(), {}

    def client(self, replica):
        return StoreClient(self, replica)


class StoreClient:
    """What a Group needs of a client."""

    def __init__(self, post, replica):
        self.replica, self.name, self.values = replica, f"worker-{replica}.0", torch.zeros(3)
        self.sent = {}
        self._post = post

    def notify(self, kind, body):
        message = Message(kind, body=body, sender=self.name)
        with self._post.changed:
            store = self._post.store
            for client, answer in store.set(message) if kind == "store_set" else store.get(message):
                self._post.answers[client, answer.body["key"]] = answer.body
            self._post.changed.notify_all()

    def request(self, kind, answer, body):
        self.notify(kind, body)
        place = self.name, body["key"]
        with self._post.changed:
            assert self._post.changed.wait_for(lambda: place in self._post.answers, timeout=30)
            return self._post.answers[place]

    def count_peer_traffic(self, peer, bytes_out, messages_out, seconds):
        assert seconds > 0
        self.sent[peer] = self.sent.get(peer, 0) + bytes_out


def run_workers(*lives):
    """Each life in a thread of its own, called with its client: what they return, or the exceptions that ended them."""
    post = SharedStore()
    with ThreadPoolExecutor(len(lives)) as pool:
        futures = [pool.submit(life, post.client(replica)) for replica, life in enumerate(lives)]
        return [future.exception() or future.result() for future in futures]


def averages(count, size):
    def life(client):
        found = []
        with GlooGroup(client, size=size) as group:
            for step in range(count):
                gradient = FlatGradient(torch.full((3,), float(client.replica + step)))
                group.average(gradient, step)
                found.append(gradient.flat[0].item())
        return found

    return life


@pytest.mark.parametrize("size", [1, 2, 3])
def test_all_replicas_get_the_mean(size):
    found = run_workers(*[averages(5, size)] * size)
    assert found == [[step + (size - 1) / 2 for step in range(5)]] * size


def test_the_bytes_of_the_ring_are_counted():
    def life(client):
        with GlooGroup(client, size=3) as group:
            for step in range(4):
                group.average(FlatGradient(torch.zeros(300)), step)
        return client.sent

    # Of 1200 bytes two thirds go to the next twice: once to be added to, once as sums.
    assert run_workers(life, life, life) == [{f"worker-{(r + 1) % 3}.0": 4 * 1600} for r in range(3)]


def test_rows_touched_by_one_replica_are_touched_for_all():
    def life(client):
        gradient = FlatGradient(torch.zeros(10), [SparseTable(2, 10, 2)])
        gradient.flat[2 + 2 * client.replica] = 6.0
        gradient.mark_rows(0, torch.tensor([client.replica]))
        with GlooGroup(client, size=3) as group:
            group.average(gradient, 0)
        return gradient.rows(0).tolist(), gradient.flat.tolist()

    assert run_workers(life, life, life) == [([0, 1, 2], [0, 0, 2, 0, 2, 0, 2, 0, 0, 0])] * 3


def test_losing_a_replica_raises_by_name():
    def leaves(client):
        with GlooGroup(client, size=2) as group:
            group.average(FlatGradient(torch.zeros(3)), 0)
            raise LookupError("lost")

    stays, left = run_workers(averages(5, 2), leaves)
    assert isinstance(left, LookupError)
    assert isinstance(stays, NetworkError)
    assert stays.code == "E554"
    assert "worker-0.0 cannot average the gradients of step 1" in stays.facts


def test_it_listens_on_the_loopback_alone():
    before = listening()
    seen = []

    def looks(client):
        with GlooGroup(client, size=2) as group:
            group.average(FlatGradient(torch.zeros(3)), 0)
            seen.extend(listening() - before)
            group.average(FlatGradient(torch.zeros(3)), 1)

    run_workers(looks, averages(2, 2))
    assert seen
    assert all(address.startswith("0100007F:") for address in seen)  # 127.0.0.1, its bytes in the host's order


def listening():
    """Where this process listens, as the kernel writes addresses."""
    links = [os.readlink(link) for link in Path("/proc/self/fd").iterdir() if os.path.lexists(link)]
    rows = [row.split() for table in ("tcp", "tcp6") for row in Path(f"/proc/net/{table}").read_text().splitlines()[1:]]
    return {row[1] for row in rows if row[3] == LISTEN and f"socket:[{row[9]}]" in links}


def test_what_the_store_refuses():
    store = KeyValueStore()
    with pytest.raises(ValueError, match="key None"):
        store.get(Message("store_get"))
    with pytest.raises(ValueError, match="sets 'text'"):
        store.set(Message("store_set", body={"key": "a", "value": "text"}))
    store.set(Message("store_set", body={"key": "a", "value": b"first"}))
    store.set(Message("store_set", body={"key": "a", "value": b"second"}))
    assert [answer.body["value"] for _, answer in store.get(Message("store_get", body={"key": "a"}))] == [b"first"]
