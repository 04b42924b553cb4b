"""Messages that take two ways, each of which keeps their order, are read in the order in which they were sent."""

import random
from collections import deque

import pytest

from cutset.runtime.channel.arrivals import Arrival, Arrivals
from cutset.runtime.channel.message import WIRE_VERSION, Header, Message


def arrival(sender: str, number: int, *, is_local: bool) -> Arrival:
    header = Header(WIRE_VERSION, "job", sender, number, "x", 0, 0, 0, {}, [])
    return Arrival(header, Message("x", sender=sender), is_local)


class Ways:
    """Two ways from some senders: what a local socket holds is there at once, the network hands on one now and then."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.local, self.travelling, self.network = deque[Arrival](), deque[Arrival](), deque[Arrival]()
        self.arrivals = Arrivals(lambda: _pop(self.local), lambda: _pop(self.network))
        self.expected: dict[str, int] = {}

    def send(self, sender: str, number: int, *, is_local: bool) -> None:
        (self.local if is_local else self.travelling).append(arrival(sender, number, is_local=is_local))

    def deliver(self) -> None:
        if self.travelling:
            self.network.append(self.travelling.popleft())

    def read(self) -> list[tuple[str, int]]:
        """Read all, as a channel does; LookupError where one is lost."""
        found = []
        while (one := self.arrivals.read()) is not None:
            sender, number = one.message.sender, one.header.sequence
            if number > self.expected.get(sender, 0):
                if one.is_again:
                    raise LookupError(sender, number)
                self.arrivals.put_aside(one)
                continue
            self.expected[sender] = number + 1
            found.append((sender, number))
            self.arrivals.follow(one)
        return found


def _pop(queue: deque[Arrival]) -> Arrival | None:
    return queue.popleft() if queue else None


@pytest.mark.parametrize("seed", range(50))
def test_messages_are_read_in_order_whichever_way_they_take(seed: int) -> None:
    ways, sent, found = Ways(seed), dict.fromkeys("abc", 0), list[tuple[str, int]]()
    for _ in range(200):
        sender = ways.random.choice("abc")
        ways.send(sender, sent[sender], is_local=ways.random.random() < 0.6)
        sent[sender] += 1
        if ways.random.random() < 0.3:
            ways.deliver()
        if ways.random.random() < 0.3:
            found += ways.read()
    while ways.travelling:
        ways.deliver()
        found += ways.read()
    found += ways.read()
    for sender, count in sent.items():
        assert [number for name, number in found if name == sender] == list(range(count))
    assert not ways.arrivals.describe()
    assert not ways.arrivals.is_ready


@pytest.mark.parametrize("seed", range(20))
def test_one_that_is_lost_is_noticed_with_the_next_by_the_network(seed: int) -> None:
    ways = Ways(seed)
    lost = ways.random.randrange(20)
    for number in range(40):
        is_local = ways.random.random() < 0.7 and number != 39
        if number != lost:
            ways.send("a", number, is_local=is_local)
    with pytest.raises(LookupError):  # noqa: PT012 - at one of these
        while ways.travelling:
            ways.deliver()
            ways.read()
    assert ways.expected.get("a", 0) == lost
