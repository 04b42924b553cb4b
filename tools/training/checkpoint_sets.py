"""`CheckpointSets`: the checkpoints that a run writes while it trains.

A checkpoint is a set of files: one of each shard, and one of each machine of replica 0 with the state that shards do
not have. It is complete, and gets its manifest, once all of them are written.
"""

import shutil
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from ...errors import CheckpointError
from ...ps.checkpoint.journal import checkpoint_path, list_checkpoint_folders
from ...ps.checkpoint.manifest import MANIFEST, Manifest, ShardFile, StateFile
from ...ps.checkpoint.write_checkpoint import write_manifest
from ...runtime.channel.message import Message
from ..job.checkpoint_order import order_checkpoints
from ..job.checkpoint_timing import CheckpointTiming
from ..job.export_weights import describe_checkpoint
from ..job.job import Job
from ..job.stream_position import Position
from ..run_listener import CheckpointReport
from ..unfinished.unfinished_run import MachineState, UnfinishedRun, save_unfinished


class CheckpointSets:
    """The checkpoints of one run. Number n is that after n times `checkpoint_every` steps of each replica.

    Complete checkpoints are counted from the oldest, and the last `keep` stay, whichever run in this folder wrote them.

    Args:
        on_notice: called with a sentence about a checkpoint that could not be completed, or is damaged. on_complete:
            called with each that is complete. position: returns where the run is in its data besides its steps.

    Attributes:
        timing: which checkpoint to request when, where checkpoints go by time; it is told here how a request ended.
    """

    def __init__(
        self,
        job: Job,
        *,
        on_notice: Callable[[str], None] = lambda notice: None,
        on_complete: Callable[[CheckpointReport], object] = lambda report: None,
        position: Callable[[], Position | None] = lambda: None,
    ) -> None:
        self._job, self._on_notice, self._on_complete, self._position = job, on_notice, on_complete, position
        self.timing = CheckpointTiming(job.training)
        self._files: dict[int, dict[int, ShardFile]] = defaultdict(dict)
        self._states: dict[int, dict[int, StateFile]] = defaultdict(dict)
        self._replica_states: dict[int, MachineState] = {}  # of replica 0, by machine
        before = order_checkpoints(job.out, final=False)
        self._complete = [int(folder.name) for folder in before.folders]
        for notice in before.notices:  # such a one stays where it is, unless another gets its number
            on_notice(notice)

    def handle(self, message: Message) -> None:
        """Take a message about checkpoints into account.

        A shard reports "checkpoint_saved", a machine of replica 0 "state_saved"; either may report
        "checkpoint_missed", if the step of the checkpoint had passed when it was requested, and "write_failed". With
        "ready" a machine of replica 0 says what it has that shards do not.
        """
        match message.kind:
            case "checkpoint_saved":
                file = msgspec.convert(message.body["file"], ShardFile)
                self._files[message.body["number"]][file.shard] = file
                self._complete_set(message.body["number"])
            case "state_saved":
                state = msgspec.convert(message.body["file"], StateFile)
                self._states[message.body["number"]][state.machine] = state
                self._complete_set(message.body["number"])
            case "ready" if message.body["state"] is not None:
                self._replica_states[message.body["machine"]] = msgspec.convert(message.body["state"], MachineState)
                self._save_unfinished()
            case "checkpoint_missed":
                self.timing.mark_late(message.body["number"])
            case "write_failed":
                self.timing.mark_unsaved()

    def _save_unfinished(self) -> None:
        """Once all machines of replica 0 have told what they have, write what a checkpoint of the journals needs."""
        job, method = self._job, self._job.method
        if len(self._replica_states) < job.machines:
            return
        unfinished = UnfinishedRun(
            slices=list(job.slices),
            regions=[list(regions) for regions in job.regions],
            about=describe_checkpoint(job, 0),
            start_step=job.training.start_step,
            steps=job.training.steps,
            states=[self._replica_states[machine] for machine in range(job.machines)],
            shards=job.shards,
            replicas=job.replicas,
            batch=job.training.batch,
            lock_step=method.lock_step,
            period=method.push_period,
            updates=method.count_updates(method.push_period, job.replicas),
        )
        try:
            save_unfinished(job.out, unfinished)
        except OSError as error:
            self._on_notice(f"if this run ends early, only complete checkpoints stay: {error}")

    def _complete_set(self, number: int) -> None:
        """Write the manifest if all files are there, and remove the oldest checkpoints."""
        job = self._job
        files, states = self._files[number], self._states[number]
        if len(files) < job.shards or len(states) < job.machines:
            self._abandon(self._incomplete[: -job.config.keep_checkpoints - 1])
            return
        folder = checkpoint_path(job.out, number)
        about = describe_checkpoint(job, number * job.training.checkpoint_every, self._position())
        in_order = [files[shard] for shard in sorted(files)]
        del self._files[number], self._states[number]
        self.timing.mark_ended(number)
        if job.training.checkpoint_s:  # only one is requested at a time: older ones were dropped
            self._abandon(other for other in self._incomplete if other < number)
        try:
            write_manifest(folder, Manifest(job.slices, job.regions, in_order, list(states.values()), about))
        except CheckpointError as error:  # the last complete ones stay
            self._on_notice(f"checkpoint {number} is not complete: {error.facts}; training continues")
            return
        self._on_complete(CheckpointReport(folder, int(about["step"])))
        self._complete = [*(other for other in self._complete if other != number), number]
        for old in self._complete[: -job.config.keep_checkpoints]:
            self._remove(old)
        self._complete = self._complete[-job.config.keep_checkpoints :]

    def abandon_incomplete(self) -> None:
        """Remove what was written of checkpoints that are not complete, since all roles go back."""
        self._abandon(self._incomplete)

    @property
    def _incomplete(self) -> list[int]:
        """The numbers of the checkpoints of which some files are there, but not all."""
        return sorted(self._files.keys() | self._states.keys())

    def _abandon(self, numbers: Iterable[int]) -> None:
        """Remove the files of checkpoints of which some role could not write its part; they take up space."""
        for number in numbers:
            self._files.pop(number, None)
            self._states.pop(number, None)
            if number not in self._complete:
                self._remove(number)

    def _remove(self, number: int) -> None:
        shutil.rmtree(checkpoint_path(self._job.out, number), ignore_errors=True)


def complete_checkpoints(run: Path) -> list[Path]:
    """Return the folders of the complete checkpoints that a run wrote while it trained, the oldest first."""
    return list(order_checkpoints(run, final=False).folders)


def remove_incomplete(run: Path) -> None:
    """Remove the checkpoints of a run that ended before it had written all of their files."""
    for folder in list_checkpoint_folders(run):
        if not (folder / MANIFEST).exists():
            shutil.rmtree(folder, ignore_errors=True)
