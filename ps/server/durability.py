"""`Disk`: what the disk has of a shard, and who is told of it - the launcher of files, clients of their pushes."""

from collections.abc import Iterable, Mapping

import msgspec

from ...runtime.launcher.assignment import LAUNCHER
from ...runtime.channel.message import Message
from .replies import Replies
from ..slices.slice_state import Holding
from ..checkpoint.journal import Keeper, Written
from ..optimizers.optimizer import Rule


class Disk:
    """Of a shard with these slices. Without a keeper nothing survives it, and it counts as written at once."""

    def __init__(self, keeper: Keeper | None, pieces: Iterable[int]) -> None:
        self._keeper = keeper
        self._pieces = sorted(pieces)
        self._failing = False  # whether it could not be written last
        self._clients: set[str] = set()

    @property
    def safe(self) -> bool:
        """Whether all of the shard has been there once, so that nothing that builds on it is lost."""
        return self._keeper is None or self._keeper.safe

    @property
    def busy(self) -> bool:
        """Whether something is being written."""
        return self._keeper is not None and self._keeper.busy

    def tells(self, client: str) -> None:
        """This client is told what is there from now on."""
        self._clients.add(client)

    def ask(self, checkpoint: int) -> None:
        """A checkpoint is to be made when it is due."""
        if self._keeper is not None:
            self._keeper.ask(checkpoint)

    def hurry(self) -> None:
        """Write again soon."""
        if self._keeper is not None:
            self._keeper.hurry()

    def before(self, piece: int) -> None:
        """A slice is about to change."""
        if self._keeper is not None:
            self._keeper.before(piece)

    def durable(self, piece: int, client: str, number: int) -> int:
        """The last push of a client that is there; number: of the last that the shard has."""
        return number if self._keeper is None else self._keeper.durable(piece, client)

    def secured(self, piece: int, client: str, number: int) -> int:
        """The same, as far as it can be written: where it cannot, nobody should wait for that."""
        return number if self._failing else self.durable(piece, client, number)

    def turn(self, holdings: list[Holding], rule: Rule, clocks: Mapping[int, Mapping[int, int]]) -> Replies:
        """Go on with what is being written; whom to tell what came of it."""
        return [] if self._keeper is None else self._told(self._keeper, self._keeper.turn(holdings, rule, clocks))

    def close(self) -> Replies:
        """Wait for what is being written; whom to tell what came of it."""
        return [] if self._keeper is None else self._told(self._keeper, self._keeper.close())

    def _told(self, keeper: Keeper, ended: Iterable[Written]) -> Replies:
        replies: Replies = []
        for written in ended:
            if written.why:
                replies.append((LAUNCHER, Message("unsaved", body={"why": written.why})))
            elif written.file is not None:
                body = {"checkpoint": written.checkpoint, "file": msgspec.to_builtins(written.file)}
                replies.append((LAUNCHER, Message("saved", body=body)))
            elif written.late:
                replies.append((LAUNCHER, Message("late", body={"checkpoint": written.checkpoint})))
            if not written.checkpoint:
                self._failing = bool(written.why)
                replies += [(client, self._has(keeper, client)) for client in sorted(self._clients)]
        return replies

    def _has(self, keeper: Keeper, client: str) -> Message:
        """What is there of a client's pushes."""
        numbers = {str(piece): keeper.durable(piece, client) for piece in self._pieces}
        return Message("durable", body={"numbers": {p: n for p, n in numbers.items() if n}, "failing": self._failing})

    def __repr__(self) -> str:
        return f"Disk({self._pieces}, safe={self.safe}, busy={self.busy}, failing={self._failing})"
