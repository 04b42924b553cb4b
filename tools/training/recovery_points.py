"""`RecoveryPoints`: the versions that a run by a lock-step method can go back to, when a role of it is lost.

Every few seconds the launcher names a version that is some steps ahead; every shard saves its slices as they are then,
and every worker its local state (local_state.py). Once all have done so, the version is a recovery point and replaces
the one before. This is a coordinated checkpoint (Chandy and Lamport, "Distributed Snapshots", ACM TOCS 1985), whose cut
is easy to tell in lock step: nothing of a later version reaches what is saved of an earlier one.
"""

import shutil
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import msgspec

from ...ps.checkpoint.journal import INTERVAL_S, RECOVERY_POINT, recovery_path
from ...ps.checkpoint.manifest import ShardFile
from ...runtime.channel.message import Message
from ..job.checkpoint_timing import CheckpointTiming
from ..job.job import Job
from ..run_folder import local_state_name


class RecoveryPoints:
    """The recovery points of one run, of which the last complete one stays.

    Attributes:
        last: the number of the last one, which is a version of the shards; that of the start before there is any.
    """

    def __init__(self, job: Job, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._job = job
        self._period = job.method.push_period
        timing = msgspec.structs.replace(job.training, checkpoint_every=self._period, checkpoint_s=INTERVAL_S)
        self._timing = CheckpointTiming(timing, clock=clock)
        self._parts: dict[int, dict[str, str]] = defaultdict(dict)  # by number: by role, the name of a shard's file
        self._files: dict[str, str] = {}  # by role, of the last one
        self.last = job.training.version

    @property
    def step(self) -> int:
        """The steps that each replica has taken at the last recovery point."""
        return self.last * self._period if self._files else self._job.training.start_step

    def note_progress(self, batches: int, seconds: float) -> int | None:
        """Return the number of the recovery point to request now, if one is due; see `CheckpointTiming`."""
        return self._timing.note_progress(batches, seconds)

    def handle(self, message: Message) -> None:
        """Take into account what a role says about a recovery point."""
        match message.kind:
            case kind if kind == f"{RECOVERY_POINT}_saved":
                file = message.body.get("file")
                name = "" if file is None else msgspec.convert(file, ShardFile).name
                self._add(message.body["number"], message.sender, name)
            case kind if kind == f"{RECOVERY_POINT}_missed":
                self._timing.mark_late(message.body["number"])
            case "write_failed":
                self._timing.mark_unsaved()

    def interrupt(self) -> None:
        """Give up what is not complete, since a role is lost."""
        self._timing.mark_interrupted()
        for number in self._parts:
            shutil.rmtree(self._folder(number), ignore_errors=True)
        self._parts.clear()

    def shard_file(self, index: int) -> str:
        """Return the file, in the folder of the run, that a shard continues from, "" if it begins anew."""
        name = next((name for role, name in self._files.items() if _is_role(role, f"shard-{index}")), "")
        return str(recovery_path("", self.last) / name) if name else ""

    def local_state_file(self, replica: int, machine: int) -> str:
        """Return the file, in the folder of the run, that a worker continues from, "" if it begins anew."""
        return str(recovery_path("", self.last) / local_state_name(replica, machine)) if self._files else ""

    def _add(self, number: int, role: str, name: str) -> None:
        self._parts[number][role] = name
        if len(self._parts[number]) < self._job.shards + self._job.replicas * self._job.machines:
            return
        before, self.last = self.last, number
        had_files, self._files = bool(self._files), self._parts.pop(number)
        self._timing.mark_ended(number)
        if had_files and before != number:
            shutil.rmtree(self._folder(before), ignore_errors=True)
        for older in [older for older in self._parts if older < number]:
            del self._parts[older]
            shutil.rmtree(self._folder(older), ignore_errors=True)

    def _folder(self, number: int) -> Path:
        return recovery_path(self._job.out.resolve(), number)

    def __repr__(self) -> str:
        return f"RecoveryPoints(last={self.last}, incomplete={sorted(self._parts)})"


def _is_role(name: str, role: str) -> bool:
    """Return whether a name is that of an incarnation of this role."""
    return name.partition("+")[0] == role
