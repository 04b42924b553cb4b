"""`Keeper`: when a shard is written to the disk, and what of it is there.

It is written every few seconds, so that whoever takes its place when it is lost goes on from there (the journal);
sooner where clients keep many pushes until then; and, for good, whenever so many updates were made (checkpoints), or
after as many of those as somebody asks for ahead.
"""

import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import msgspec

from ...errors import CheckpointError
from .write_checkpoint import checked_in, settle
from ..slices.slice_state import Holding
from .manifest import ShardFile
from ..optimizers.optimizer import Rule
from .snapshot import Snapshot

INTERVAL_S = 5.0


class Keeping(msgspec.Struct, frozen=True):
    """What a shard is asked to write. folder: of the run. every: updates between two checkpoints, 0 for none.

    asked: of those, only the ones that are asked for.
    """

    folder: str
    every: int = 0
    asked: bool = False
    interval_s: float = INTERVAL_S


class Written(msgspec.Struct, frozen=True):
    """What came of a snapshot. checkpoint: its number from 1, 0 for the journal. why: it could not be written.

    late: it was asked for when the shard had passed it, and none was made.
    """

    checkpoint: int = 0
    file: ShardFile | None = None
    why: str = ""
    late: bool = False


class Keeper:
    """Of one shard. safe: whether all of it has been on the disk once, so that nothing that builds on it is lost."""

    def __init__(self, keeping: Keeping, index: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.keeping, self.index, self.safe = keeping, index, False
        self._clock = clock
        self._journal: Snapshot[None] | None = None
        self._checkpoints: dict[int, Snapshot[ShardFile]] = {}
        self._durable: Mapping[int, Mapping[str, int]] = {}
        self._hurried = False
        self._changed = True
        self._last_s = -float("inf")
        self._reached: int | None = None  # the last checkpoint that was due; not known before slices have values
        self._asked = 0  # the number of the checkpoint that was asked for, until it is due

    @property
    def path(self) -> Path:
        """Of the journal."""
        return journal_path(self.keeping.folder, self.index)

    @property
    def busy(self) -> bool:
        """Whether something is being written, or will be at the next turn."""
        return self._journal is not None or bool(self._checkpoints) or (self._hurried and self._changed)

    def goes_on_from(self, holdings: Iterable[Holding]) -> None:
        """The shard begins with what a journal has."""
        held = list(holdings)
        self._durable = {holding.slice.number: dict(holding.applied) for holding in held}
        self._reached = self._number(held)
        self.safe, self._changed = True, False

    def durable(self, number: int, client: str) -> int:
        """The last push of a client to a slice that is on the disk."""
        return self._durable.get(number, {}).get(client, 0)

    def hurry(self) -> None:
        """Write again soon."""
        self._hurried = True

    def ask(self, number: int) -> None:
        """A checkpoint is to be made when it is due; one that was asked for before and is not due yet is not."""
        self._asked = number

    def before(self, number: int) -> None:
        """A slice is about to change."""
        self._changed = True
        for snapshot in self._all:
            snapshot.before(number)

    def turn(self, holdings: list[Holding], rule: Rule, clocks: Mapping[int, Mapping[int, int]]) -> list[Written]:
        """Begin what is due, go on with what was begun; what came to its end."""
        number, late = self._due(self._number(holdings))
        if number:
            self._checkpoints[number] = self._checkpoint(number, holdings, rule, clocks)
        now = self._clock()
        due = self._hurried or not self.safe or now - self._last_s >= self.keeping.interval_s
        if self._journal is None and self._changed and due:
            self._last_s, self._hurried, self._changed = now, False, False
            temporary = self.path.with_suffix(".tmp")
            self._journal = Snapshot(temporary, holdings, rule, lambda path: settle(path, self.path), clocks=clocks)
        for snapshot in self._all:
            snapshot.go_on()
        return [*late, *self._ended()]

    def close(self) -> list[Written]:
        """Wait for what is being written; what came of it."""
        for snapshot in self._all:
            snapshot.finish()
        return self._ended()

    @property
    def _all(self) -> list[Snapshot[None] | Snapshot[ShardFile]]:
        return [*([self._journal] if self._journal is not None else []), *self._checkpoints.values()]

    def _number(self, holdings: list[Holding]) -> int:
        """Of the last checkpoint that is due."""
        every = self.keeping.every
        return min(holding.version for holding in holdings) // every if every and holdings else 0

    def _due(self, reached: int) -> tuple[int, list[Written]]:
        """The number of the checkpoint to make now, 0 for none, and what is told of one that is too late."""
        before = reached if self._reached is None else self._reached  # training may begin with what another run wrote
        self._reached = reached
        if not self.keeping.asked:
            return (reached if reached > before else 0), []
        if not self._asked or reached < self._asked:
            return 0, []
        number, self._asked = self._asked, 0
        return (number, []) if number > before else (0, [Written(number, late=True)])

    def _checkpoint(
        self, number: int, holdings: list[Holding], rule: Rule, clocks: Mapping[int, Mapping[int, int]]
    ) -> Snapshot[ShardFile]:
        folder = unfinished_path(self.keeping.folder, number)
        temporary = folder / f"shard-{self.index}.tmp"
        entry = lambda sha, size: ShardFile(self.index, sha, size)  # noqa: E731
        return Snapshot(temporary, holdings, rule, lambda path: checked_in(path, folder, entry), clocks=clocks)

    def _ended(self) -> list[Written]:
        found = []
        if self._journal is not None and self._journal.ended:
            journal, self._journal = self._journal, None
            written = Written(why=_why(journal))
            if not written.why:
                self._durable = journal.applied
            self._changed = self._changed or bool(written.why)
            self.safe = True  # where it cannot be written the run goes on without
            found.append(written)
        for number in [number for number, snapshot in self._checkpoints.items() if snapshot.ended]:
            snapshot = self._checkpoints.pop(number)
            why = _why(snapshot)
            found.append(Written(number, None if why else snapshot.result(), why))
        return found


def journal_path(folder: str | Path, index: int) -> Path:
    """The file from which whoever takes the place of a shard goes on."""
    return Path(folder) / "journal" / f"shard-{index}.safetensors"


def remove_journals(folder: str | Path) -> None:
    """Those of a run that is over, or was before; OSError where they cannot be removed."""
    journals = Path(folder) / "journal"
    if journals.exists():
        shutil.rmtree(journals)


def unfinished_path(folder: str | Path, number: int) -> Path:
    """The folder of a checkpoint, before it has a manifest."""
    return Path(folder) / "checkpoints" / f"{number:06d}"


def checkpoint_folders(folder: str | Path) -> list[Path]:
    """Those that a run has begun to write, in their order."""
    return sorted((Path(folder) / "checkpoints").glob("[0-9]*"))


def _why(snapshot: Snapshot[None] | Snapshot[ShardFile]) -> str:
    """Why a snapshot that has ended was not written; nothing where it was."""
    try:
        snapshot.result()
    except (OSError, CheckpointError) as error:
        return str(error)
    return ""
