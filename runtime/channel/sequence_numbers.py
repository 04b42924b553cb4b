"""`Ledger`: the sequence numbers and counts of one end point; it is why a lost message is an error and not a hang."""

from dataclasses import asdict, dataclass

from ...errors import NetworkError
from .message import Message


@dataclass
class Account:
    """What went to and came from one peer."""

    messages_out: int = 0
    bytes_out: int = 0
    messages_in: int = 0
    bytes_in: int = 0
    repeated: int = 0
    malformed: int = 0
    undelivered: int = 0


class Ledger:
    """Numbers the messages to each peer, and checks the numbers of the messages from each: in order, each once."""

    def __init__(self, owner: str) -> None:
        self.owner = owner
        self._accounts: dict[str, Account] = {}

    def next(self, peer: str) -> int:
        """The sequence number of the next message to `peer`."""
        return self._account(peer).messages_out

    def expected(self, peer: str) -> int:
        """The number of the next message from `peer`."""
        return self._account(peer).messages_in

    def sent(self, peer: str, message: Message) -> None:
        """Count a message to `peer`."""
        account = self._account(peer)
        account.messages_out += 1
        account.bytes_out += message.bytes

    def arrived(self, sequence: int, message: Message) -> bool:
        """Whether this message is the next of its sender; False where it came before, NetworkError for a gap."""
        account = self._account(message.sender)
        expected = account.messages_in
        if sequence < expected:
            account.repeated += 1
            return False
        if sequence > expected:
            raise NetworkError(
                "E502",
                f"{self.owner} got message {sequence} of {message.sender} and expected {expected}: "
                f"{sequence - expected} lost or overtaken on the way",
                fix="check the link between the two; what was lost is not sent again, so start the run again",
            )
        account.messages_in += 1
        account.bytes_in += message.bytes
        return True

    def undelivered(self, peer: str) -> None:
        """Count a message that was not sent, as the peer is gone."""
        self._account(peer).undelivered += 1

    def malformed(self, peer: str) -> None:
        """Count a message of `peer` that was dropped because it could not be read."""
        self._account(peer).malformed += 1

    def dropped(self) -> str:
        """The malformed messages so far in words, for an error; "" where there were none."""
        counts = [f"{a.malformed} of {peer}" for peer, a in sorted(self._accounts.items()) if a.malformed]
        return f"; malformed messages dropped: {', '.join(counts)}" if counts else ""

    def statistics(self) -> dict[str, dict[str, int]]:
        """Every count by peer."""
        return {peer: asdict(account) for peer, account in self._accounts.items()}

    def __repr__(self) -> str:
        counts = {peer: (a.messages_out, a.messages_in) for peer, a in self._accounts.items()}
        return f"Ledger({self.owner}, out/in={counts})"

    def _account(self, peer: str) -> Account:
        account = self._accounts.get(peer)
        if account is None:
            account = self._accounts[peer] = Account()
        return account
