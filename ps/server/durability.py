"""`Durability`: what of a shard is on disk, and who is told - the launcher of files, clients of their durable pushes.

A push is durable once a written journal contains it; its client may then drop it from the replay buffer.
"""

from collections.abc import Iterable

import msgspec

from ...runtime.channel.message import LAUNCHER, Message
from ..checkpoint.journal import JOURNAL, Journal, WriteResult
from ..checkpoint.snapshot import Clocks
from ..optimizers.optimizer import Optimizer
from ..slices.slice_state import SliceState
from .replies import Replies


class Durability:
    """The durability of a shard with these slices.

    Without a journal, or in lock step, where pushes are not replayed, every push counts as durable at once.
    """

    def __init__(self, journal: Journal | None, pieces: Iterable[int]) -> None:
        self._journal = journal
        self._is_immediate = journal is None or journal.config.lock_step
        self._pieces = sorted(pieces)
        self._failing = False  # whether the last journal could not be written
        self._clients: set[str] = set()

    @property
    def safe(self) -> bool:
        """Whether all slices have been written once, so that nothing built on them is lost."""
        return self._journal is None or self._journal.safe

    @property
    def busy(self) -> bool:
        """Whether something is being written."""
        return self._journal is not None and self._journal.busy

    @property
    def unsaved_s(self) -> float | None:
        """For how long something has changed that is not on disk; None where there is no journal."""
        return None if self._journal is None or self._is_immediate else self._journal.unsaved_s

    def add_client(self, client: str) -> None:
        """Tell this client from now on which of its pushes are durable."""
        self._clients.add(client)

    def request_checkpoint(self, number: int) -> None:
        """Make this checkpoint when it is due."""
        if self._journal is not None:
            self._journal.request_checkpoint(number)

    def request_recovery_point(self, number: int) -> None:
        """Save the version of this number when the slices come to it."""
        if self._journal is not None:
            self._journal.request_recovery_point(number)

    def confirm(self, failure: str) -> None:
        """Say that another machine has the journal that was written last, or why not."""
        if self._journal is not None:
            self._journal.confirm(failure)

    def request_flush(self) -> None:
        """Write the journal soon."""
        if self._journal is not None:
            self._journal.request_flush()

    def request_durable(self, piece: int, client: str, number: int) -> None:
        """Make a client's push to a slice durable soon."""
        if self._journal is not None:
            self._journal.request_durable(piece, client, number)

    def before_change(self, piece: int) -> None:
        """Save what is being written of a slice that is about to change."""
        if self._journal is not None:
            self._journal.before_change(piece)

    def durable_push(self, piece: int, client: str, number: int) -> int:
        """Return the number of the client's last durable push; `number` is that of the last push the shard has."""
        return number if self._journal is None or self._is_immediate else self._journal.durable_push(piece, client)

    def releasable_push(self, piece: int, client: str, number: int) -> int:
        """Return the same, except where the disk has failed for long: then nobody should wait, so it is `number`."""
        return number if self._is_hopeless else self.durable_push(piece, client, number)

    def next_journal(self) -> int:
        """Return the number of the first journal that will contain what has just changed; 0 if there is none."""
        return 0 if self._journal is None or self._is_immediate else self._journal.begun + 1

    def has_journal(self, number: int) -> bool:
        """Return whether this journal, or a later one, is on disk, or nobody should wait for it."""
        return self._journal is None or self._is_hopeless or self._journal.written >= number

    def poll(self, slice_states: list[SliceState], optimizer: Optimizer, clocks: Clocks) -> Replies:
        """Go on with what is being written. Return the messages about what has ended."""
        if self._journal is None:
            return []
        return self._report(self._journal, self._journal.poll(slice_states, optimizer, clocks))

    def close(self) -> Replies:
        """Wait for what is being written. Return the messages about it."""
        return [] if self._journal is None else self._report(self._journal, self._journal.close())

    @property
    def _is_hopeless(self) -> bool:
        return self._journal is not None and self._journal.is_hopeless

    def _report(self, journal: Journal, results: Iterable[WriteResult]) -> Replies:
        replies: Replies = []
        for result in results:
            if result.failure:
                replies.append((LAUNCHER, Message("write_failed", body={"reason": result.failure})))
            elif result.file is not None:
                body = {"number": result.number, "file": msgspec.to_builtins(result.file), "written": [result.path]}
                replies.append((LAUNCHER, Message(f"{result.kind}_saved", body=body)))
            elif result.missed:
                replies.append((LAUNCHER, Message(f"{result.kind}_missed", body={"number": result.number})))
            elif result.path:
                body = {"replaced": [result.path], "confirm": True}
                replies.append((LAUNCHER, Message(f"{result.kind}_saved", body=body)))
            if result.kind == JOURNAL and not result.path:
                self._failing = bool(result.failure)
                replies += [(client, self._durable_message(journal, client)) for client in sorted(self._clients)]
        return replies

    def _durable_message(self, journal: Journal, client: str) -> Message:
        """Make the message that tells a client which of its pushes are durable, by slice."""
        numbers = {str(piece): journal.durable_push(piece, client) for piece in self._pieces}
        return Message("durable", body={"numbers": {p: n for p, n in numbers.items() if n}, "failing": self._failing})

    def __repr__(self) -> str:
        return f"Durability({self._pieces}, safe={self.safe}, busy={self.busy}, failing={self._failing})"
