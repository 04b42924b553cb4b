"""`Checkpoints`: those that a run writes while it trains, each complete once all shards and replica 0 have written."""

import shutil
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from ...errors import CheckpointError
from ...ps.checkpoint.read_checkpoint import read_manifest
from ...ps.checkpoint.write_checkpoint import write_manifest
from ...ps.checkpoint.journal import checkpoint_folders, unfinished_path
from ...ps.checkpoint.manifest import MANIFEST, Manifest, ShardFile, StateFile
from ...runtime.channel.message import Message
from ..job.prepare import Prepared
from ..job.export_weights import age, told
from ..job.checkpoint_schedule import Timing


class Checkpoints:
    """Of one run. Number n is that after n times `checkpoint_every` steps of each replica of the course.

    Those that are complete are counted from the oldest, and the last `keep` stay, whichever run in this folder has
    written them. note: is told in words of one that could not be completed. timing: says which to ask for when, where
    they go by time, and is told here what became of it.
    """

    def __init__(self, job: Prepared, *, note: Callable[[str], None] = lambda words: None) -> None:
        self._job, self._note = job, note
        self.timing = Timing(job.course)
        self._files: dict[int, dict[int, ShardFile]] = defaultdict(dict)
        self._states: dict[int, dict[int, StateFile]] = defaultdict(dict)
        self._complete = [int(folder.name) for folder in complete(job.options.out)]

    def take(self, message: Message) -> None:
        """Take in what a role says of this. A shard has "saved" its part, a machine of replica 0 "kept" the rest."""
        match message.kind:
            case "saved":
                file = msgspec.convert(message.body["file"], ShardFile)
                self._files[message.body["checkpoint"]][file.shard] = file
                self._finish(message.body["checkpoint"])
            case "kept":
                state = msgspec.convert(message.body["file"], StateFile)
                self._states[message.body["checkpoint"]][state.machine] = state
                self._finish(message.body["checkpoint"])
            case "late":
                self.timing.late(message.body["checkpoint"])
            case "unsaved":
                self.timing.unsaved()

    def _finish(self, number: int) -> None:
        """Write the manifest if all is there, and remove what is too old."""
        job = self._job
        files, states = self._files[number], self._states[number]
        if len(files) < job.options.shards or len(states) < job.machines:
            self._give_up(self._begun[: -job.options.keep - 1])
            return
        folder = unfinished_path(job.options.out, number)
        about = told(job, number * job.course.checkpoint_every)
        in_order = [files[shard] for shard in sorted(files)]
        del self._files[number], self._states[number]
        self.timing.ended(number)
        if job.course.checkpoint_s:  # what is older was dropped
            self._give_up(other for other in self._begun if other < number)
        try:
            write_manifest(folder, Manifest(job.slices, job.regions, in_order, list(states.values()), about))
        except CheckpointError as error:  # the last good ones stay
            self._note(f"checkpoint {number} is not complete: {error.facts}; the run goes on")
            return
        self._complete = [*(other for other in self._complete if other != number), number]
        for old in self._complete[: -job.options.keep]:
            self._remove(old)
        self._complete = self._complete[-job.options.keep :]

    @property
    def _begun(self) -> list[int]:
        """The numbers of those of which something is there, but not all."""
        return sorted(self._files.keys() | self._states.keys())

    def _give_up(self, numbers: Iterable[int]) -> None:
        """Remove what is there of checkpoints that somebody could not write his part of: it takes up space."""
        for number in numbers:
            self._files.pop(number, None)
            self._states.pop(number, None)
            if number not in self._complete:
                self._remove(number)

    def _remove(self, number: int) -> None:
        shutil.rmtree(unfinished_path(self._job.options.out, number), ignore_errors=True)


def complete(run: Path) -> list[Path]:
    """The folders of the complete checkpoints that were written while a run trained, the oldest first."""
    folders = [folder for folder in checkpoint_folders(run) if (folder / MANIFEST).exists()]
    return sorted(folders, key=lambda folder: age(read_manifest(folder).about))


def remove_incomplete(run: Path) -> None:
    """Those of a run that ended before it had written all of them."""
    for folder in checkpoint_folders(run):
        if not (folder / MANIFEST).exists():
            shutil.rmtree(folder, ignore_errors=True)
