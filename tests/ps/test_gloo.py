"""Workers that meet through a board and average: whatever one of them does, the others end by name."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from cutset.errors import NetworkError
from cutset.ps.server.rendezvous import Board
from cutset.ps.methods.all_reduce_ import Group
from cutset.runtime.worker.flat_gradient import Gradient, Table
from cutset.runtime.channel.message import Message

LISTEN = "0A"


class Post:
    """A board that threads share."""

    def __init__(self):
        self.board, self.changed, self.answers = Board(), threading.Condition(), {}

    def client(self, replica):
        return Clerk(self, replica)


class Clerk:
    """What a Group needs of a client."""

    def __init__(self, post, replica):
        self.replica, self.name, self.values = replica, f"worker-{replica}.0", torch.zeros(3)
        self.sent = {}
        self._post = post

    def tell(self, kind, body):
        message = Message(kind, body=body, sender=self.name)
        with self._post.changed:
            board = self._post.board
            for client, answer in board.note(message) if kind == "note" else board.ask(message):
                self._post.answers[client, answer.body["key"]] = answer.body
            self._post.changed.notify_all()

    def ask(self, kind, answer, body):
        self.tell(kind, body)
        place = self.name, body["key"]
        with self._post.changed:
            assert self._post.changed.wait_for(lambda: place in self._post.answers, timeout=30)
            return self._post.answers[place]

    def exchanged(self, peer, bytes_out, messages_out, seconds):
        assert seconds > 0
        self.sent[peer] = self.sent.get(peer, 0) + bytes_out


def together(*lives):
    """Each life in a thread of its own, called with its client: what they return, or the exceptions that ended them."""
    post = Post()
    with ThreadPoolExecutor(len(lives)) as pool:
        futures = [pool.submit(life, post.client(replica)) for replica, life in enumerate(lives)]
        return [future.exception() or future.result() for future in futures]


def averages(count, size):
    def life(client):
        found = []
        with Group(client, size=size) as group:
            for step in range(count):
                gradient = Gradient(torch.full((3,), float(client.replica + step)))
                group.average(gradient, step)
                found.append(gradient.flat[0].item())
        return found

    return life


@pytest.mark.parametrize("size", [1, 2, 3])
def test_all_get_the_mean(size):
    found = together(*[averages(5, size)] * size)
    assert found == [[step + (size - 1) / 2 for step in range(5)]] * size


def test_what_goes_around_the_ring_is_counted():
    def life(client):
        with Group(client, size=3) as group:
            for step in range(4):
                group.average(Gradient(torch.zeros(300)), step)
        return client.sent

    # Of 1200 bytes two thirds go to the next twice: once to be added to, once as sums.
    assert together(life, life, life) == [{f"worker-{(r + 1) % 3}.0": 4 * 1600} for r in range(3)]


def test_rows_that_any_has_touched_are_touched_for_all():
    def life(client):
        gradient = Gradient(torch.zeros(10), [Table(2, 10, 2)])
        gradient.flat[2 + 2 * client.replica] = 6.0
        gradient.touch(0, torch.tensor([client.replica]))
        with Group(client, size=3) as group:
            group.average(gradient, 0)
        return gradient.rows(0).tolist(), gradient.flat.tolist()

    assert together(life, life, life) == [([0, 1, 2], [0, 0, 2, 0, 2, 0, 2, 0, 0, 0])] * 3


def test_who_loses_another_ends_by_name():
    def leaves(client):
        with Group(client, size=2) as group:
            group.average(Gradient(torch.zeros(3)), 0)
            raise LookupError("lost")

    stays, left = together(averages(5, 2), leaves)
    assert isinstance(left, LookupError)
    assert isinstance(stays, NetworkError)
    assert stays.code == "E554"
    assert "worker-0.0 cannot average the gradients of step 1" in stays.facts


def test_it_listens_on_the_loopback_alone():
    before = listening()
    seen = []

    def looks(client):
        with Group(client, size=2) as group:
            group.average(Gradient(torch.zeros(3)), 0)
            seen.extend(listening() - before)
            group.average(Gradient(torch.zeros(3)), 1)

    together(looks, averages(2, 2))
    assert seen
    assert all(address.startswith("0100007F:") for address in seen)  # 127.0.0.1, its bytes in the host's order


def listening():
    """Where this process listens, as the kernel writes addresses."""
    links = [os.readlink(link) for link in Path("/proc/self/fd").iterdir() if os.path.lexists(link)]
    rows = [row.split() for table in ("tcp", "tcp6") for row in Path(f"/proc/net/{table}").read_text().splitlines()[1:]]
    return {row[1] for row in rows if row[3] == LISTEN and f"socket:[{row[9]}]" in links}


def test_what_a_board_refuses():
    board = Board()
    with pytest.raises(ValueError, match="key None"):
        board.ask(Message("ask"))
    with pytest.raises(ValueError, match="note 'text'"):
        board.note(Message("note", body={"key": "a", "value": "text"}))
    board.note(Message("note", body={"key": "a", "value": b"first"}))
    board.note(Message("note", body={"key": "a", "value": b"second"}))
    assert [answer.body["value"] for _, answer in board.ask(Message("ask", body={"key": "a"}))] == [b"first"]
