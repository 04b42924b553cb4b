"""`Checkpoints`: those that a run writes while it trains, each complete once all shards and replica 0 have written."""

import shutil
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

from ..partition.errors import CheckpointError
from ..ps.checkpoint import read_manifest
from ..ps.checkpoint_files import write_manifest
from ..ps.keeper import checkpoint_folders, unfinished_path
from ..ps.manifest import MANIFEST, Manifest, ShardFile, StateFile
from .prepare import Prepared
from .saving import age, told


class Checkpoints:
    """Of one run. Number n is that after n times `checkpoint_every` steps of each replica.

    Those that are complete are counted from the oldest, and the last `keep` stay, whichever run in this folder has
    written them. note: is told in words of one that could not be completed.
    """

    def __init__(self, job: Prepared, *, note: Callable[[str], None] = lambda words: None) -> None:
        self._job, self._note = job, note
        self._files: dict[int, dict[int, ShardFile]] = defaultdict(dict)
        self._states: dict[int, dict[int, StateFile]] = defaultdict(dict)
        self._complete = [int(folder.name) for folder in complete(job.options.out)]

    def saved(self, number: int, file: ShardFile) -> None:
        """A shard has written its file."""
        self._files[number][file.shard] = file
        self._finish(number)

    def kept(self, number: int, file: StateFile) -> None:
        """A machine of replica 0 has written what the shards do not have."""
        self._states[number][file.machine] = file
        self._finish(number)

    def _finish(self, number: int) -> None:
        """Write the manifest if all is there, and remove what is too old."""
        job = self._job
        files, states = self._files[number], self._states[number]
        if len(files) < job.options.shards or len(states) < job.machines:
            self._give_up(number - job.options.keep)
            return
        folder = unfinished_path(job.options.out, number)
        about = told(job, number * job.options.checkpoint_every)
        in_order = [files[shard] for shard in sorted(files)]
        del self._files[number], self._states[number]
        try:
            write_manifest(folder, Manifest(job.slices, job.regions, in_order, list(states.values()), about))
        except CheckpointError as error:  # the last good ones stay
            self._note(f"checkpoint {number} is not complete: {error.facts}; the run goes on")
            return
        self._complete = [*(other for other in self._complete if other != number), number]
        for old in self._complete[: -job.options.keep]:
            self._remove(old)
        self._complete = self._complete[-job.options.keep :]

    def _give_up(self, below: int) -> None:
        """Remove what is there of older checkpoints that somebody could not write his part of: it takes up space."""
        for number in [number for number in self._files.keys() | self._states.keys() if number < below]:
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
