"""Writes the files of a checkpoint: one per shard, one per machine for other state, and the manifest that completes it.

File names contain the hash of the content, so a folder that is written to again keeps its old checkpoint until the new
checkpoint manifest replaces the old one.
"""

import contextlib
import errno
import hashlib
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from torch import Tensor

from ...errors import CheckpointError, CutsetError
from ..optimizers.optimizer import Optimizer
from ..slices.region import Region
from ..slices.slice_state import SliceState
from ..slices.slicing import ParameterSlice
from .manifest import MANIFEST, Count, Manifest, ShardFile, StateFile
from .streamed_safetensors import TensorWriter

WAIT_FOR_ROOM_S = 600.0
_RETRY_S = 0.5
_FULL = (errno.ENOSPC, errno.EDQUOT)

HEADER = "cutset"  # key of the safetensors metadata that holds the `ShardHeader` as JSON

T = TypeVar("T")
F = TypeVar("F", ShardFile, StateFile)
MakeEntry = Callable[[str, int], F]  # makes the manifest's entry of a file from its sha256 and size


class SliceHeader(msgspec.Struct, frozen=True):
    """One slice in the header of a shard's file; its tensors are named `slice-N/value` and `slice-N/state/NAME`.

    state: the names of the optimizer's tensors. applied: by client, the number of its last push that is contained.
    clock: by replica that trains, the steps that it has taken. steps: by client, how many of its steps are contained.
    """

    slice: ParameterSlice
    state: list[str]
    version: Count
    applied: dict[str, Count]
    clock: dict[Count, Count] = {}
    steps: dict[str, Count] = {}

    @property
    def value(self) -> str:
        """The name of the tensor of values."""
        return f"slice-{self.slice.number}/value"

    def state_tensor(self, name: str) -> str:
        """Return the name of a tensor of optimizer state."""
        return f"slice-{self.slice.number}/state/{name}"


class ShardHeader(msgspec.Struct, frozen=True):
    """The header of a shard's file: its optimizer as plain data, and its slices."""

    optimizer: dict[str, Any]
    slices: list[SliceHeader]


def write_shard(folder: str | Path, shard: int, slice_states: Iterable[SliceState], optimizer: Optimizer) -> ShardFile:
    """Write a shard's file, completely or not at all. Return its entry for the manifest. CheckpointError E805."""
    tensors: dict[str, Tensor] = {}
    headers = []
    for state in slice_states:
        header = SliceHeader(state.slice, sorted(state.state), state.version, state.applied)
        tensors[header.value] = state.value
        tensors |= {header.state_tensor(name): tensor for name, tensor in state.state.items()}
        headers.append(header)
    metadata = {HEADER: msgspec.json.encode(ShardHeader(msgspec.to_builtins(optimizer), headers)).decode()}
    return _write_file(Path(folder), f"shard {shard}", tensors, metadata, lambda sha, n: ShardFile(shard, sha, n))


def write_state(folder: str | Path, machine: int, pieces: Sequence[tuple[Region, Tensor]]) -> StateFile:
    """Write what a machine holds besides its trained parameters, each tensor in the sizes of its region's box."""
    tensors = {str(position): tensor for position, (_, tensor) in enumerate(pieces)}
    regions = [region for region, _ in pieces]
    name = f"the state of machine {machine}"
    return _write_file(Path(folder), name, tensors, {}, lambda sha, size: StateFile(machine, sha, size, regions))


def write_manifest(folder: str | Path, manifest: Manifest) -> None:
    """Complete a checkpoint whose files are written, and remove those of the one it replaces. CheckpointError E805.

    Afterwards it survives a power cut, so that whoever calls this may remove an older checkpoint.
    """
    folder = Path(folder)
    temporary = folder / (MANIFEST + ".tmp")
    kept = {folder / file.name for file in manifest.all_files}
    try:
        temporary.write_bytes(msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n")
        rename_durably(temporary, folder / MANIFEST)
        _sync(folder.parent)  # another role may have made the folder, and not come to sync its name
        for kind in ("shard", "state"):
            for stale in set(folder.glob(f"{kind}-*.safetensors")) - kept:
                stale.unlink()
    except OSError as error:
        raise _write_error(folder / MANIFEST, error) from error


def write_once_there_is_room(
    write: Callable[[], T],
    on_full: Callable[[str], object],
    *,
    wait_s: float = WAIT_FOR_ROOM_S,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], object] = time.sleep,
) -> T:
    """Write what training has come to; as long as the disk is full, try again, since it would be lost otherwise.

    on_full: called with the reason, once. Raises what `write` raises, after `wait_s` also where the disk is still full.
    """
    deadline, is_reported = clock() + wait_s, False
    while True:
        try:
            return write()
        except (OSError, CutsetError) as error:
            cause = error if isinstance(error, OSError) else error.__cause__
            if not isinstance(cause, OSError) or cause.errno not in _FULL or clock() >= deadline:
                raise
            if not is_reported:
                on_full(str(cause))
            is_reported = True
        sleep(_RETRY_S)  # no system tells when a disk has room again


def hash_file(path: Path) -> str:
    """Return the sha256 of a file, which is read a part at a time."""
    with path.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def add_to_checkpoint(temporary: Path, folder: Path, make_entry: MakeEntry[F]) -> F:
    """Give a finished file the name of its content in the checkpoint's folder. Return its entry for the manifest."""
    file = make_entry(hash_file(temporary), temporary.stat().st_size)
    rename_durably(temporary, folder / file.name)
    return file


def rename_durably(temporary: Path, path: Path) -> None:
    """Give a finished file its final name; the content and the name then survive a power cut."""
    _sync(temporary)
    os.replace(temporary, path)
    _sync(path.parent)


def make_folder_durably(folder: Path) -> None:
    """Make a folder and those above it that are missing; their names then survive a power cut."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for path in missing:
        _sync(path.parent)


def _write_file(
    folder: Path, name: str, tensors: Mapping[str, Tensor], metadata: dict[str, str], make_entry: MakeEntry[F]
) -> F:
    """Write a file under a temporary name, then give it the name of its entry for the manifest."""
    temporary = folder / f"{name.replace(' ', '-')}.tmp"
    layouts = {name: (tensor.dtype, list(tensor.shape)) for name, tensor in tensors.items()}
    try:
        make_folder_durably(folder)
        with TensorWriter(temporary, layouts, metadata=metadata) as writer:
            for name, tensor in tensors.items():
                writer.write(name, tensor)
            writer.finish()
        file = add_to_checkpoint(temporary, folder, make_entry)
    except OSError as error:
        with contextlib.suppress(OSError):  # a partial file takes up space
            temporary.unlink()
        raise _write_error(f"{name} to {folder}", error) from error
    return file


def _write_error(what: object, error: OSError) -> CheckpointError:
    return CheckpointError("E805", f"cannot write {what}: {error}", fix="use another --out folder")


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
