"""`Journal`: writes a shard's state to disk while it serves, as a journal and as its part of checkpoints.

The journal is one file, replaced every few seconds, from which a role that replaces a lost shard continues; it is
written sooner when clients have many pushes in their replay buffers. A push is durable once a written journal contains
it; on a host that may be lost, once another machine has that journal, too. Checkpoints stay: they are made every so
many updates, or only those among them that were requested in advance.

Where all replicas go in lock step there is no journal. Instead all roles save the same version now and then, a recovery
point, to which all go back when one is lost; checkpoints are then of exactly one version, too.
"""

import re
import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import msgspec

from ...errors import CheckpointError
from ..optimizers.optimizer import Optimizer
from ..slices.slice_state import SliceState
from .manifest import ShardFile
from .snapshot import Clocks, Snapshot
from .write_checkpoint import WAIT_FOR_ROOM_S, add_to_checkpoint, rename_durably

INTERVAL_S = 5.0

_NUMBERED = re.compile(r"[0-9]{6}|[1-9][0-9]{6,17}")  # as `checkpoint_path` names folders

JOURNAL, CHECKPOINT, RECOVERY_POINT = "journal", "checkpoint", "recovery_point"


class JournalConfig(msgspec.Struct, frozen=True):
    """What a shard writes.

    folder: of the run. checkpoint_every: updates between two checkpoints, 0 for none. on_request: whether only those
    checkpoints are made that were requested before they were due. lock_step: recovery points take the journal's place.
    interval_s: seconds between two journals. kept_elsewhere: a journal counts once it is confirmed that the launcher's
    machine has it.
    """

    folder: str
    checkpoint_every: int = 0
    on_request: bool = False
    lock_step: bool = False
    interval_s: float = INTERVAL_S
    kept_elsewhere: bool = False


class WriteResult(msgspec.Struct, frozen=True):
    """The outcome of writing a journal, a checkpoint or a recovery point.

    kind: which of them. number: of a checkpoint, from 1, or of a recovery point. file: the entry of a manifest.
    failure: why nothing was written, "" after success. missed: it was requested when the shard had passed it. path: of
    the file in the folder of the run, of a journal only where it is yet to be kept elsewhere.
    """

    kind: str = JOURNAL
    number: int = 0
    file: ShardFile | None = None
    failure: str = ""
    missed: bool = False
    path: str = ""


class Journal:
    """The journal and checkpoints of one shard.

    safe: whether all slices have been written once, so that nothing built on them is lost. Until then the shard answers
    no fetch. begun, written: how many journals were begun, and the number of the last of them that is on disk.
    """

    def __init__(self, config: JournalConfig, index: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.config, self.index, self.safe = config, index, config.lock_step
        self.begun = self.written = 0
        self._clock = clock
        self._snapshot: Snapshot[None] | None = None  # of the journal, while it is written
        self._numbered: dict[tuple[str, int], Snapshot[ShardFile]] = {}  # by kind and number, while they are written
        self._unkept: Snapshot[None] | None = None  # of a written journal that no other machine is known to have
        self._confirmation: str | None = None  # why that could not be kept, "" if it is
        self._durable: Mapping[int, Mapping[str, int]] = {}  # by slice and client, the last push in the journal
        self._flush_requested = False
        self._changed = True  # since the last journal was begun
        self._unsaved_since: float | None = None  # when that was
        self._writing_since: float | None = None  # the same of the journal that is being written
        self._last_s = -float("inf")  # when that was
        self._failing_since: float | None = None  # when the first of the last journals could not be written
        self._last_due: int | None = None  # the last checkpoint that was due; unknown before slices have values
        self._requested = 0  # the number of the requested checkpoint until it is due
        self._recovery_point = 0  # the same of a recovery point

    @property
    def path(self) -> Path:
        """The path of the journal."""
        return journal_path(self.config.folder, self.index)

    @property
    def is_hopeless(self) -> bool:
        """Whether journals could not be written for so long that nobody should wait for one."""
        return self._failing_since is not None and self._clock() - self._failing_since >= WAIT_FOR_ROOM_S

    @property
    def busy(self) -> bool:
        """Whether something is being written, or will be at the next `poll`."""
        will_write = self._flush_requested and self._changed and not self.config.lock_step
        return self._snapshot is not None or bool(self._numbered) or will_write

    def restore_from(self, slice_states: Iterable[SliceState]) -> None:
        """Continue from the slices that were read from this journal."""
        states = list(slice_states)
        self._durable = {state.slice.number: dict(state.applied) for state in states}
        self._last_due = self._due_checkpoint(states)
        self.safe, self._changed = True, False

    def durable_push(self, number: int, client: str) -> int:
        """Return the number of a client's last push to slice `number` that is durable; 0 for none."""
        return self._durable.get(number, {}).get(client, 0)

    def request_flush(self) -> None:
        """Write the journal at the next `poll`, without waiting for the interval to pass."""
        self._flush_requested = True

    def request_durable(self, number: int, client: str, push: int) -> None:
        """Do the same unless the journal that is being written, or one before, has this push to slice `number`."""
        being_written = self._snapshot or self._unkept
        has = self.durable_push(number, client) if being_written is None else being_written.applied_push(number, client)
        if push > has:
            self.request_flush()

    def confirm(self, failure: str) -> None:
        """Say that another machine has the journal that was written last, or why it could not be kept there."""
        self._confirmation = failure

    def request_checkpoint(self, number: int) -> None:
        """Make this checkpoint when it is due. It replaces a requested one that is not due yet."""
        self._requested = number

    def request_recovery_point(self, number: int) -> None:
        """Save the version of this number when the slices come to it."""
        self._recovery_point = number

    def before_change(self, number: int) -> None:
        """Save what snapshots still need of a slice that is about to change."""
        self._changed = True
        if self._unsaved_since is None:
            self._unsaved_since = self._clock()
        for snapshot in self._snapshots:
            snapshot.before_change(number)

    @property
    def unsaved_s(self) -> float:
        """For how long something has changed that no written journal has, in seconds."""
        since = self._unsaved_since if self._writing_since is None else self._writing_since
        return 0.0 if since is None else self._clock() - since

    def poll(self, slice_states: list[SliceState], optimizer: Optimizer, clocks: Clocks) -> list[WriteResult]:
        """Begin to write what is due and continue what was begun. Return the outcome of what has ended."""
        number, missed = self._next_checkpoint(self._due_checkpoint(slice_states))
        if number:
            version = number * self.config.checkpoint_every if self.config.lock_step else None
            folder = checkpoint_path(self.config.folder, number)
            self._begin((CHECKPOINT, number), folder, slice_states, optimizer, clocks, version)
        if self._recovery_point and (newest := max(state.version for state in slice_states)) >= self._recovery_point:
            number, self._recovery_point = self._recovery_point, 0
            if newest == number:
                folder = recovery_path(self.config.folder, number)
                self._begin((RECOVERY_POINT, number), folder, slice_states, optimizer, clocks, number)
            else:
                missed.append(WriteResult(RECOVERY_POINT, number, missed=True))
        if self._is_journal_due():
            self._begin_journal(slice_states, optimizer, clocks)
        for snapshot in self._snapshots:
            snapshot.copy_next()
        return [*missed, *self._collect_results()]

    def close(self) -> list[WriteResult]:
        """Wait until everything begun is written. Return the outcome."""
        for snapshot in self._snapshots:
            snapshot.finish()
        return self._collect_results()

    @property
    def _snapshots(self) -> list[Snapshot[None] | Snapshot[ShardFile]]:
        return [*([self._snapshot] if self._snapshot is not None else []), *self._numbered.values()]

    def _is_journal_due(self) -> bool:
        if self.config.lock_step or self._snapshot is not None or self._unkept is not None or not self._changed:
            return False
        return self._flush_requested or not self.safe or self._clock() - self._last_s >= self.config.interval_s

    def _begin_journal(self, slice_states: list[SliceState], optimizer: Optimizer, clocks: Clocks) -> None:
        self._last_s, self._flush_requested, self._changed = self._clock(), False, False
        self._writing_since, self._unsaved_since = self._unsaved_since, None
        self.begun += 1
        temporary, path = self.path.with_suffix(".tmp"), self.path
        self._snapshot = Snapshot(
            temporary, slice_states, optimizer, lambda written: rename_durably(written, path), clocks=clocks
        )

    def _due_checkpoint(self, slice_states: list[SliceState]) -> int:
        """Return the number of the last checkpoint that is due: all slices have reached its version.

        In lock step, where it is to be of just that version, the first slice is enough.
        """
        every, versions = self.config.checkpoint_every, [state.version for state in slice_states]
        if not every or not versions:
            return 0
        return (max(versions) if self.config.lock_step else min(versions)) // every

    def _next_checkpoint(self, due: int) -> tuple[int, list[WriteResult]]:
        """Return the number of the checkpoint to make now, 0 for none, and the outcome of one that was missed."""
        before = (
            due if self._last_due is None else self._last_due
        )  # training may continue from another run's checkpoint
        self._last_due = due
        if not self.config.on_request:
            return (due if due > before else 0), []
        if not self._requested or due < self._requested:
            return 0, []
        number, self._requested = self._requested, 0
        return (number, []) if number > before else (0, [WriteResult(CHECKPOINT, number, missed=True)])

    def _begin(
        self,
        name: tuple[str, int],
        folder: Path,
        slice_states: list[SliceState],
        optimizer: Optimizer,
        clocks: Clocks,
        version: int | None,
    ) -> None:
        """Begin a checkpoint or a recovery point."""

        def make_entry(sha256: str, size: int) -> ShardFile:
            return ShardFile(self.index, sha256, size)

        def publish(written: Path) -> ShardFile:
            return add_to_checkpoint(written, folder, make_entry)

        temporary = folder / f"shard-{self.index}.tmp"
        self._numbered[name] = Snapshot(temporary, slice_states, optimizer, publish, clocks=clocks, version=version)

    def _collect_results(self) -> list[WriteResult]:
        results = []
        if self._snapshot is not None and self._snapshot.has_ended:
            snapshot, self._snapshot = self._snapshot, None
            failure = _failure_of(snapshot)
            if self.config.kept_elsewhere and not failure:
                self._unkept = snapshot
                results.append(WriteResult(path=str(journal_path("", self.index))))
            else:
                results.append(self._end_journal(snapshot, failure))
        if self._unkept is not None and self._confirmation is not None:
            results.append(self._end_journal(self._unkept, self._confirmation))
            self._unkept = self._confirmation = None
        for kind, number in [name for name, numbered in self._numbered.items() if numbered.has_ended]:
            numbered = self._numbered.pop((kind, number))
            failure = _failure_of(numbered)
            if failure:
                results.append(WriteResult(kind, number, failure=failure))
                continue
            file = numbered.result()
            folder = checkpoint_path("", number) if kind == CHECKPOINT else recovery_path("", number)
            results.append(WriteResult(kind, number, file, path=str(folder / file.name)))
        return results

    def _end_journal(self, snapshot: Snapshot[None], failure: str) -> WriteResult:
        """Take into account that a journal is where it has to be, or why it is not."""
        since, self._writing_since = self._writing_since, None
        if failure:
            self._unsaved_since = self._unsaved_since if since is None else since
            self._failing_since = self._clock() if self._failing_since is None else self._failing_since
        else:
            self._failing_since, self._durable, self.written = None, snapshot.applied, self.begun
        self._changed = self._changed or bool(failure)
        self.safe = True  # if it cannot be written, the run continues without
        return WriteResult(failure=failure)


def journal_path(folder: str | Path, index: int) -> Path:
    """Return the path of the journal of shard `index` in a run's folder."""
    return Path(folder) / "journal" / f"shard-{index}.safetensors"


def remove_journals(folder: str | Path) -> None:
    """Remove the journals of a run that is over. OSError if they cannot be removed."""
    journals = Path(folder) / "journal"
    if journals.exists():
        shutil.rmtree(journals)


def checkpoint_path(folder: str | Path, number: int) -> Path:
    """Return the folder of a checkpoint, which is complete once it has a checkpoint manifest."""
    return Path(folder) / "checkpoints" / f"{number:06d}"


def recovery_path(folder: str | Path, number: int) -> Path:
    """Return the folder of a recovery point."""
    return Path(folder) / "journal" / f"{number:06d}"


def list_checkpoint_folders(folder: str | Path) -> list[Path]:
    """Return the folders of the checkpoints that a run has begun to write, by number; other names are not its own."""
    numbered = [path for path in (Path(folder) / "checkpoints").glob("*") if _NUMBERED.fullmatch(path.name)]
    return sorted((path for path in numbered if path.is_dir() and not path.is_symlink()), key=lambda p: int(p.name))


def _failure_of(snapshot: Snapshot[None] | Snapshot[ShardFile]) -> str:
    """Return why a snapshot that has ended was not written; "" if it was."""
    try:
        snapshot.result()
    except (OSError, CheckpointError) as error:
        return str(error)
    return ""
