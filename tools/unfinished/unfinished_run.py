"""`UnfinishedRun`: what a run leaves in its folder while it trains, so that its journals make a checkpoint.

Shards write journals every few seconds, or all roles recovery points, to survive the loss of one. Those files are of
the form of a checkpoint; what they lack is the manifest, and the buffers of replica 0 as a checkpoint has them.
"""

import contextlib
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec
import torch
from torch import Tensor

from ...errors import CheckpointError, Diverged
from ...ps.checkpoint.journal import checkpoint_path, journal_path, list_checkpoint_folders, recovery_path
from ...ps.checkpoint.manifest import Manifest, ShardFile, StateFile
from ...ps.checkpoint.read_checkpoint import read_manifest
from ...ps.checkpoint.shard_file import read_header
from ...ps.checkpoint.streamed_safetensors import TensorReader
from ...ps.checkpoint.write_checkpoint import add_to_checkpoint, write_manifest, write_state
from ...ps.slices.region import Region
from ...ps.slices.slicing import ParameterSlice
from ...whole_file import write_whole
from ..run_folder import INITIAL, SAVED_BUFFER, buffer_path, local_state_name

UNFINISHED = Path("journal", "unfinished.json")


class MachineState(msgspec.Struct, frozen=True):
    """What one machine of replica 0 has besides trained parameters.

    regions: as in `StateFile`. buffers: of each, its number among the buffers that are saved, -1 for what stays as it
    was at the beginning.
    """

    regions: list[Region]
    buffers: list[int]


class UnfinishedRun(msgspec.Struct, frozen=True):
    """What a manifest needs to know besides the files.

    about: as `describe_checkpoint` has it, for step 0. start_step, steps: with which the run began. states: by machine.
    lock_step: recovery points take the place of journals. period: steps between two updates; updates: of the shards in
    that many steps of all replicas.
    """

    slices: list[ParameterSlice]
    regions: list[list[Region]]
    about: dict[str, Any]
    start_step: int
    steps: int
    states: list[MachineState]
    shards: int
    replicas: int
    batch: int
    lock_step: bool
    period: int
    updates: int


def save_unfinished(run: Path, unfinished: UnfinishedRun) -> None:
    """Write it to the folder of a run. OSError where that fails."""
    (run / UNFINISHED).parent.mkdir(exist_ok=True)
    write_whole(run / UNFINISHED, msgspec.json.encode(unfinished).decode())


def complete_unfinished(run: Path, more: Mapping[str, Any] = MappingProxyType({})) -> tuple[Path, int] | None:
    """Make a checkpoint of what the roles of a run that has ended early had saved; return its folder and its step.

    more: what it also says of the run.
    None where it ended well, or had saved nothing that is later than its start. OSError or CheckpointError where the
    checkpoint cannot be written.
    """
    try:
        unfinished = msgspec.json.decode((run / UNFINISHED).read_bytes(), type=UnfinishedRun)
    except FileNotFoundError:
        return None
    except msgspec.DecodeError as error:
        raise CheckpointError("E803", f"{run / UNFINISHED} cannot be read: {error}") from error
    point = _find_recovery_point(run, unfinished) if unfinished.lock_step else _Journals(run, unfinished)
    if point is None or not point.complete:
        return None
    last = (unfinished.steps - 1) // unfinished.period * unfinished.period  # so that something is left to do
    step = min(point.step, last)
    if step <= max(unfinished.start_step, _last_step(run, unfinished.about["run"])):
        return None
    number = 1 + max((int(folder.name) for folder in list_checkpoint_folders(run)), default=0)
    folder = checkpoint_path(run, number)
    folder.mkdir(parents=True)
    try:
        states = [_write_state(run, folder, point, machine, state) for machine, state in enumerate(unfinished.states)]
        files = [_take(path, folder, index) for index, path in enumerate(point.shards)]
        samples = unfinished.about["samples"] + step * unfinished.replicas * unfinished.batch
        about = unfinished.about | {"step": step, "samples": samples, "written": time.time(), **more}
        write_manifest(folder, Manifest(unfinished.slices, unfinished.regions, files, states, about))
    except (OSError, CheckpointError):
        shutil.rmtree(folder, ignore_errors=True)
        raise
    (run / UNFINISHED).unlink()
    return folder, step


@contextmanager
def complete_if_it_ends_early(
    run: Path, on_notice: Callable[[str], object], describe: Callable[[], Mapping[str, Any]] = dict
) -> Iterator[None]:
    """Make a checkpoint where an error ends the context, or the user does; unless training has diverged.

    describe: returns what it also says of the run.
    """
    try:
        yield
    except Diverged:
        (run / UNFINISHED).unlink(missing_ok=True)  # nobody wants to go on from there
        raise
    except BaseException:
        try:
            completed = complete_unfinished(run, describe())
        except (OSError, CheckpointError) as error:
            on_notice(f"no checkpoint can be made of what was saved: {error}")
        else:
            if completed is not None:
                folder, step = completed
                on_notice(f"{folder} has what was saved last, of step {step}: --resume {run} goes on from there")
        raise


class _Journals:
    """The last journals of all shards."""

    prefix = ""

    def __init__(self, run: Path, unfinished: UnfinishedRun) -> None:
        self._run, self._unfinished = run, unfinished
        self.shards = [journal_path(run, index) for index in range(unfinished.shards)]

    @property
    def complete(self) -> bool:
        """Whether all files are there."""
        states = enumerate(self._unfinished.states)
        saved = [self.buffers(machine) for machine, state in states if max(state.buffers, default=-1) >= 0]
        return all(path.exists() for path in [*self.shards, *saved])

    @property
    def step(self) -> int:
        """The steps of each replica that all slices have."""
        versions = []
        for path in self.shards:
            with TensorReader(path) as reader:
                versions += [piece.version for piece in read_header(reader).slices]
        periods = min(versions, default=0) // self._unfinished.updates
        early = 1 if self._unfinished.period > 1 else 0  # a push is that of the steps before, and of the first of these
        return max(0, periods - early) * self._unfinished.period

    def buffers(self, machine: int) -> Path:
        """The file with the buffers of a machine of replica 0."""
        return buffer_path(self._run, 0, machine)


class _RecoveryPoint(_Journals):
    """A version that all roles have saved."""

    prefix = SAVED_BUFFER

    def __init__(self, run: Path, unfinished: UnfinishedRun, number: int) -> None:
        super().__init__(run, unfinished)
        self._number, self._folder = number, recovery_path(run, number)
        found = [sorted(self._folder.glob(f"shard-{index}.*.safetensors")) for index in range(unfinished.shards)]
        self.shards = [paths[0] for paths in found if paths]

    @property
    def complete(self) -> bool:
        machines = range(len(self._unfinished.states))
        local = [self._worker(replica, m) for replica in range(self._unfinished.replicas) for m in machines]
        return len(self.shards) == self._unfinished.shards and all(path.exists() for path in local)

    @property
    def step(self) -> int:
        return self._number * self._unfinished.period

    def buffers(self, machine: int) -> Path:
        return self._worker(0, machine)

    def _worker(self, replica: int, machine: int) -> Path:
        return self._folder / local_state_name(replica, machine)


def _last_step(run: Path, number: int) -> int:
    """Return the step of the last checkpoint that this run has completed, 0 for none."""
    steps = [0]
    for folder in list_checkpoint_folders(run):
        with contextlib.suppress(CheckpointError):  # one that is damaged is none
            about = read_manifest(folder).about
            steps += [int(about.get("step", 0))] if about.get("run") == number else []
    return max(steps)


def _find_recovery_point(run: Path, unfinished: UnfinishedRun) -> _RecoveryPoint | None:
    """Return the last recovery point that is complete."""
    numbers = [int(folder.name) for folder in (run / "journal").glob("[0-9]*") if folder.name.isdecimal()]
    points = [_RecoveryPoint(run, unfinished, number) for number in sorted(numbers, reverse=True)]
    return next((point for point in points if point.complete), None)


def _write_state(run: Path, folder: Path, point: _Journals, machine: int, state: MachineState) -> StateFile:
    pieces = list[tuple[Region, Tensor]]()
    saved = point.buffers(machine)
    for region, number in zip(state.regions, state.buffers, strict=True):
        if number >= 0:
            with TensorReader(saved) as reader:
                tensor = reader.tensor(f"{point.prefix}{number}").view(region.sizes)
        else:
            tensor = _read_initial(run / INITIAL, region)
        pieces.append((region, tensor))
    return write_state(folder, machine, pieces)


def _read_initial(path: Path, region: Region) -> Tensor:
    with TensorReader(path) as reader:
        tensor = torch.empty(region.sizes, dtype=reader.layouts[region.name][0])
        reader.fill(tensor, region.name, region.axes, tuple(region.box))
        return tensor


def _take(path: Path, folder: Path, index: int) -> ShardFile:
    """Have the file of a shard in a checkpoint, under the name that its content gives it."""
    temporary = folder / f"shard-{index}.tmp"
    try:
        os.link(path, temporary)
    except OSError:  # not on this file system
        shutil.copyfile(path, temporary)
    return add_to_checkpoint(temporary, folder, lambda sha256, size: ShardFile(index, sha256, size))


def number_buffers(state: Sequence[tuple[Region, Tensor]], buffers: Sequence[Tensor]) -> MachineState:
    """Return which of a machine's buffers each part of its state is."""
    numbers = [next((n for n, buffer in enumerate(buffers) if buffer is tensor), -1) for _, tensor in state]
    return MachineState([region for region, _ in state], numbers)
