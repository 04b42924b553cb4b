"""`BestWeights`: the weights with the best score so far, in a checkpoint of their own.

Each machine of replica 0 writes what was evaluated, trained parameters included, as the state of a checkpoint; the
manifest makes it the best. A worker is told the next verdict only when the files of the one before are complete, so
there is never more than one set on its way. At the end of the run they become one plain state_dict (`export_best`).
"""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from ...errors import CheckpointError
from ...ps.checkpoint.manifest import Manifest, StateFile
from ...ps.checkpoint.write_checkpoint import write_manifest
from ...runtime.channel.message import Message
from ..config.monitor import Monitor
from ..job.export_weights import describe_checkpoint
from ..job.job import Job
from ..run_folder import BEST


class BestWeights:
    """The best weights of one run. on_notice: called with a sentence where they cannot be kept."""

    def __init__(self, job: Job, *, on_notice: Callable[[str], object]) -> None:
        self._job, self._on_notice = job, on_notice
        self._awaited: dict[str, Any] | None = None  # what the manifest will say of those that are being written
        self._files: dict[int, StateFile] = {}  # of these, by machine

    @property
    def is_pending(self) -> bool:
        """Whether the files of the best weights are not all written."""
        return self._awaited is not None

    def expect(self, monitor: Monitor, point: Mapping[str, Any]) -> None:
        """Wait for the files of the weights that were evaluated at this point of the learning curve."""
        step = int(point["samples"]) // (self._job.replicas * self._job.training.batch)
        own = {"samples": int(point["samples"]), "score": monitor.score, "value": monitor.read(point)}
        self._awaited = {**describe_checkpoint(self._job, step), **own}
        self._files = {}

    def handle(self, message: Message) -> None:
        """Take a message about the files into account: "best_saved", or "write_failed"."""
        if message.kind == "write_failed":
            self.interrupt()
        if message.kind != "best_saved" or self._awaited is None:
            return
        file = msgspec.convert(message.body["file"], StateFile)
        self._files[file.machine] = file
        if len(self._files) < self._job.machines:
            return
        about, self._awaited = self._awaited, None
        files = [self._files[machine] for machine in sorted(self._files)]
        try:
            write_manifest(self._job.out / BEST, Manifest([], [[] for _ in files], [], files, about))
        except CheckpointError as error:
            self._on_notice(f"the best weights are not kept: {error.facts}; training continues")

    def interrupt(self) -> None:
        """Give up what is not complete, since a role is lost or a disk is full; the best before stay."""
        self._awaited = None
