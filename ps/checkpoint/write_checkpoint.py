"""Writes the files of a checkpoint: of each shard, of each machine's other state, and the manifest that completes it.

File names hold their content's hash, so a folder that is written to again keeps its old checkpoint until the new
manifest replaces the old one.
"""

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from torch import Tensor

from ...errors import CheckpointError
from ..slices.slice_state import Holding
from ..slices.slicing import Slice
from .manifest import MANIFEST, Count, Manifest, ShardFile, StateFile
from ..slices.region import Region
from ..optimizers.optimizer import Rule
from .streamed_safetensors import TensorWriter

HEADER = "cutset"  # key of the safetensors metadata that describes the slices

F = TypeVar("F", ShardFile, StateFile)
Entry = Callable[[str, int], F]  # the manifest's entry of a file, from its sha256 and size


class Held(msgspec.Struct, frozen=True):
    """The numbers of one slice, in the file's header; its tensors are `slice-N/value` and `slice-N/state/NAME`."""

    slice: Slice
    state: list[str]
    version: Count
    applied: dict[str, Count]
    clock: dict[Count, Count] = {}  # steps of the replicas that train

    @property
    def value(self) -> str:
        """The name of the tensor with its values."""
        return f"slice-{self.slice.number}/value"

    def memory(self, name: str) -> str:
        """The name of a tensor of the rule's memory."""
        return f"slice-{self.slice.number}/state/{name}"


class ShardHeader(msgspec.Struct, frozen=True):
    """What a shard's file says about itself."""

    rule: dict[str, Any]
    held: list[Held]


def write_shard(folder: str | Path, shard: int, holdings: Iterable[Holding], rule: Rule) -> ShardFile:
    """Write a shard's file: complete and on the disk, or not there. Its entry for the manifest."""
    tensors: dict[str, Tensor] = {}
    held = []
    for holding in holdings:
        one = Held(holding.slice, sorted(holding.state), holding.version, holding.applied)
        tensors[one.value] = holding.value
        tensors |= {one.memory(name): tensor for name, tensor in holding.state.items()}
        held.append(one)
    header = msgspec.json.encode(ShardHeader(msgspec.to_builtins(rule), held)).decode()
    what = f"shard {shard}"
    return _written(Path(folder), what, tensors, {HEADER: header}, lambda sha, size: ShardFile(shard, sha, size))


def write_state(folder: str | Path, machine: int, pieces: Sequence[tuple[Region, Tensor]]) -> StateFile:
    """Write what a machine holds beside its trained parameters, each tensor in the sizes of its region's box."""
    tensors = {str(position): tensor for position, (_, tensor) in enumerate(pieces)}
    regions = [region for region, _ in pieces]
    what = f"the state of machine {machine}"
    return _written(Path(folder), what, tensors, {}, lambda sha, size: StateFile(machine, sha, size, regions))


def write_manifest(folder: str | Path, manifest: Manifest) -> None:
    """Complete a checkpoint whose files are written, and remove the files of the one that it replaces."""
    folder = Path(folder)
    temporary = folder / (MANIFEST + ".tmp")
    kept = {folder / file.name for file in manifest.all_files}
    try:
        temporary.write_bytes(msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n")
        settle(temporary, folder / MANIFEST)
        for kind in ("shard", "state"):
            for stale in set(folder.glob(f"{kind}-*.safetensors")) - kept:
                stale.unlink()
    except OSError as error:
        raise _unwritable(folder / MANIFEST, error) from error


def sha256_of(path: Path) -> str:
    """The hash of a file, read a part at a time."""
    with path.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def checked_in(temporary: Path, folder: Path, entry: Entry[F]) -> F:
    """Give a finished file the name that its content has in a checkpoint; its entry for the manifest."""
    file = entry(sha256_of(temporary), temporary.stat().st_size)
    settle(temporary, folder / file.name)
    return file


def settle(temporary: Path, path: Path) -> None:
    """Give a finished file its name, and make both survive a power cut."""
    _sync(temporary)
    os.replace(temporary, path)
    _sync(path.parent)


def _written(folder: Path, what: str, tensors: Mapping[str, Tensor], metadata: dict[str, str], entry: Entry[F]) -> F:
    """Write a file under a temporary name, then under that of its entry for the manifest."""
    temporary = folder / f"{what.replace(' ', '-')}.tmp"
    layouts = {name: (tensor.dtype, list(tensor.shape)) for name, tensor in tensors.items()}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TensorWriter(temporary, layouts, metadata=metadata) as writer:
            for name, tensor in tensors.items():
                writer.write(name, tensor)
            writer.finish()
        file = checked_in(temporary, folder, entry)
    except OSError as error:
        with contextlib.suppress(OSError):  # what there is of it takes up space
            temporary.unlink()
        raise _unwritable(f"{what} to {folder}", error) from error
    return file


def _unwritable(what: object, error: OSError) -> CheckpointError:
    return CheckpointError("E805", f"cannot write {what}: {error}", fix="use another --out folder")


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
