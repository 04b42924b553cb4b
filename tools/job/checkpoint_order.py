"""Which of the checkpoints in a run folder is the last one, whatever the clock said when they were written.

Runs that begin in one folder are numbered, also those that resume there: what a later run wrote is later. Within a run
checkpoints are in the order of the samples that it had seen.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ...errors import CheckpointError
from ...ps.checkpoint.journal import list_checkpoint_folders
from ...ps.checkpoint.manifest import MANIFEST, Count, Manifest
from ...ps.checkpoint.read_checkpoint import read_manifest
from ..run_folder import CHECKPOINT


class RunProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a run was, as the manifest of its checkpoint says.

    run: the number of the run in its folder, 0 where nothing says it. samples: that all replicas together had seen.
    step: that each replica had come to; batch: samples of one. epoch_samples: of one pass through the data, 0 where
    nobody knew it.
    written: seconds since 1970, for people; clocks are put back.
    """

    run: Count = 0
    samples: Count
    step: Count = 0
    batch: Count = 0
    epoch_samples: Count = 0
    written: float = 0.0


@dataclass(frozen=True)
class OrderedCheckpoints:
    """The complete checkpoints of a folder. folders: the oldest first; errors: why others cannot be put in order."""

    folders: Sequence[Path]
    errors: Sequence[CheckpointError]

    @property
    def notices(self) -> tuple[str, ...]:
        """A sentence about each checkpoint that is passed over."""
        return tuple(f"A checkpoint is passed over: {error.facts}" for error in self.errors)


def read_progress(folder: Path, manifest: Manifest) -> RunProgress:
    """Return how far the run of a checkpoint was. CheckpointError where its manifest does not say so."""
    try:
        return msgspec.convert(manifest.about, RunProgress)
    except msgspec.ValidationError as error:
        raise CheckpointError(
            "E802",
            f"the manifest {folder / MANIFEST} is damaged: of the run: {error}",
            fix="go on from an older checkpoint; or --init with the weights of this one, to begin anew",
        ) from error


def order_checkpoints(run: Path, *, final: bool = True) -> OrderedCheckpoints:
    """Return the complete checkpoints of a run folder in their order. final: also that of the end of a run."""
    found, errors = list[tuple[int, int, Path]](), list[CheckpointError]()
    for folder in [*list_checkpoint_folders(run), *([run / CHECKPOINT] if final else [])]:
        if not (folder / MANIFEST).exists():
            continue
        try:
            progress = read_progress(folder, read_manifest(folder))
        except CheckpointError as error:
            errors.append(error)
        else:
            found.append((progress.run, progress.samples, folder))
    in_order = sorted(found, key=lambda one: one[:2])  # of equal ones that of the end stays the last
    return OrderedCheckpoints([folder for _, _, folder in in_order], errors)


def next_run_number(run: Path) -> int:
    """Return the number of a run that begins in a folder: one more than those that have left checkpoints there."""
    folders = order_checkpoints(run).folders
    return 1 + max((read_progress(folder, read_manifest(folder)).run for folder in folders), default=0)
