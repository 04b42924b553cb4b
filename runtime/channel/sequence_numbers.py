"""`SequenceNumbers`: numbers the messages of one end point, so that a lost message is an error and not a hang."""

from dataclasses import asdict, dataclass

from ...errors import NetworkError
from .message import Message


@dataclass
class PeerCounters:
    """Counts of what went to one peer and came from it.

    repeated, malformed, undelivered: messages that were dropped; the last are those to a peer that has ended.
    """

    messages_out: int = 0
    bytes_out: int = 0
    messages_in: int = 0
    bytes_in: int = 0
    repeated: int = 0
    malformed: int = 0
    undelivered: int = 0


class SequenceNumbers:
    """Numbers the messages to each peer, and checks that those of each peer arrive in order, each once."""

    def __init__(self, owner: str) -> None:
        self.owner = owner
        self._counters: dict[str, PeerCounters] = {}

    def next(self, peer: str) -> int:
        """The sequence number of the next message to `peer`."""
        return self._counters_of(peer).messages_out

    def next_expected(self, peer: str) -> int:
        """The sequence number that the next message from `peer` must have."""
        return self._counters_of(peer).messages_in

    def count_sent(self, peer: str, message: Message) -> None:
        """Count a message that was sent to `peer`."""
        counters = self._counters_of(peer)
        counters.messages_out += 1
        counters.bytes_out += message.bytes

    def check_arrival(self, sequence: int, message: Message) -> bool:
        """Whether to read a message: it is the next of its sender.

        False for one that has come before. NetworkError where messages before it are missing.
        """
        counters = self._counters_of(message.sender)
        next_expected = counters.messages_in
        if sequence < next_expected:
            counters.repeated += 1
            return False
        if sequence > next_expected:
            raise NetworkError(
                "E502",
                f"{self.owner} got message {sequence} of {message.sender} and expected {next_expected}: "
                f"{sequence - next_expected} lost or overtaken on the way",
                fix="check the network between the two roles; lost messages are not sent again, so start the run again",
            )
        counters.messages_in += 1
        counters.bytes_in += message.bytes
        return True

    def count_undelivered(self, peer: str) -> None:
        """Count a message that was not sent because the peer has ended."""
        self._counters_of(peer).undelivered += 1

    def count_malformed(self, peer: str) -> None:
        """Count a message of `peer` that was dropped because it could not be read."""
        self._counters_of(peer).malformed += 1

    def describe_malformed(self) -> str:
        """How many malformed messages were dropped, as text for an error; "" where there were none."""
        counts = [f"{a.malformed} of {peer}" for peer, a in sorted(self._counters.items()) if a.malformed]
        return f"; malformed messages dropped: {', '.join(counts)}" if counts else ""

    def statistics(self) -> dict[str, dict[str, int]]:
        """All counts by peer; see `Channel.statistics`."""
        return {peer: asdict(counters) for peer, counters in self._counters.items()}

    def __repr__(self) -> str:
        counts = {peer: (a.messages_out, a.messages_in) for peer, a in self._counters.items()}
        return f"SequenceNumbers({self.owner}, out/in={counts})"

    def _counters_of(self, peer: str) -> PeerCounters:
        counters = self._counters.get(peer)
        if counters is None:
            counters = self._counters[peer] = PeerCounters()
        return counters
