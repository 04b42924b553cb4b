"""`Arrivals`: what has arrived at a channel, by local sockets or the network, in the order in which it was sent.

A peer of the same host sends small messages by a local socket and others by the network, which is slower: some overtake
others. Those wait here until the messages before them have come; none waits for one that is lost for certain.
"""

from collections import deque
from collections.abc import Callable
from itertools import cycle
from typing import NamedTuple

from .message import Header, Message

LOCAL_FIRST = (True,) * 7 + (False,)  # by turns: a busy local socket may not hide the network


class Arrival(NamedTuple):
    """A message that has arrived. is_local: by a local socket. is_again: it had come too early before."""

    header: Header
    message: Message
    is_local: bool = False
    is_again: bool = False


Reader = Callable[[], Arrival | None]


class Arrivals:
    """The messages that have arrived, as two readers return them, and those that came too early."""

    def __init__(self, read_local: Reader, read_network: Reader) -> None:
        self._read_local, self._read_network = read_local, read_network
        self._local_first = cycle(LOCAL_FIRST)
        self._early: dict[str, dict[int, Arrival]] = {}  # by sender and number
        self._next: deque[Arrival] = deque()  # to be read before any other

    @property
    def is_ready(self) -> bool:
        """Whether there is one that no socket tells of any more."""
        return bool(self._next)

    def read(self) -> Arrival | None:
        """Return the next one, None if there is none."""
        if self._next:
            return self._next.popleft()
        first = self._read_local() if next(self._local_first) else None
        return first or self._read_network() or self._read_local()

    def put_aside(self, arrival: Arrival) -> None:
        """Put one aside that came too early.

        What was sent by a local socket before a message that came by the network is there by now: it is read first, and
        where it does not lead up to that message, one is lost. One by a local socket waits for those before it.
        """
        sender, sequence = arrival.message.sender, arrival.header.sequence
        if arrival.is_local:
            self._early.setdefault(sender, {})[sequence] = arrival
            return
        while (local := self._read_local()) is not None:
            self._next.append(local)
            if local.message.sender == sender and local.header.sequence > sequence:
                break
        self._next.append(arrival._replace(is_again=True))

    def follow(self, arrival: Arrival) -> None:
        """Go on with those that waited for this one."""
        sender, following = arrival.message.sender, arrival.header.sequence + 1
        held = self._early.get(sender)
        if held is None:
            return
        while (waiting := held.pop(following, None)) is not None:
            self._next.append(waiting)
            following += 1
        if not held:
            del self._early[sender]

    def forget(self, sender: str) -> None:
        """Drop what waits of a peer that has ended."""
        self._early.pop(sender, None)

    def describe(self) -> str:
        """Which messages wait, as text for an error; "" where there are none."""
        counts = [f"{len(held)} of {peer} from {min(held)} on" for peer, held in self._early.items()]
        return f"; messages that others before them are missing of: {', '.join(counts)}" if counts else ""
