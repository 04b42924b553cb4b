"""`Checkpoint`: everything needed to go on, as files - one safetensors file a shard, and a manifest, written last.

The manifest names every file with its size and sha256, and the file names hold their hash, so a folder that is written
to again keeps its old checkpoint until the new manifest replaces the old one.
"""

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import msgspec
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from ..partition.errors import CheckpointError
from .holding import Holding
from .layout import Slice, of_machine
from .region import Region, assemble
from .rule import AnyRule, Rule, from_plain

FORMAT = 1
MANIFEST = "manifest.json"
HEADER = "cutset"  # key of the safetensors metadata that describes the slices

Count = Annotated[int, msgspec.Meta(ge=0)]
Hash = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]


class ShardFile(msgspec.Struct, frozen=True):
    """A shard's file as the manifest lists it."""

    shard: Count
    sha256: Hash
    bytes: Count

    @property
    def name(self) -> str:
        """The file's name in the folder."""
        return f"shard-{self.shard}.{self.sha256[:16]}.safetensors"


class Manifest(msgspec.Struct, frozen=True):
    """What a checkpoint consists of. regions: by machine, where its parameters lie; about: facts for the reader."""

    slices: list[Slice]
    regions: list[list[Region]]
    files: list[ShardFile]
    about: dict[str, Any] = {}
    format: int = FORMAT


class _Held(msgspec.Struct, frozen=True):
    """The numbers of one slice, in the file's header; its tensors are `machine-M/value` and `machine-M/state/NAME`."""

    slice: Slice
    state: list[str]
    version: Count
    applied: dict[str, Count]


class _Header(msgspec.Struct, frozen=True):
    rule: dict[str, Any]
    held: list[_Held]


class Checkpoint:
    """A checkpoint that was read and whose files are as they were written."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder = folder
        self.manifest = manifest

    def holdings(self, shard: int) -> list[Holding]:
        """The slices of a shard with values, rule state, versions and applied pushes."""
        header, tensors = self._read(self._file(shard))
        return [_holding(held, tensors) for held in header.held]

    def rule(self, shard: int) -> AnyRule:
        """The rule that the shard applied."""
        header, _ = self._read(self._file(shard))
        return from_plain(header.rule)

    def buffers(self) -> list[Tensor]:
        """The flat parameters of every machine."""
        held = [holding for file in self.manifest.files for holding in self.holdings(file.shard)]
        values = {(holding.slice.machine, holding.slice.start): holding.value for holding in held}
        return [self._buffer(machine, values) for machine in range(len(self.manifest.regions))]

    def __repr__(self) -> str:
        return f"Checkpoint({self.folder}, shards={len(self.manifest.files)}, machines={len(self.manifest.regions)})"

    def _buffer(self, machine: int, values: dict[tuple[int, int], Tensor]) -> Tensor:
        pieces = sorted(of_machine(self.manifest.slices, machine), key=lambda piece: piece.start)
        parts = [values.get((machine, piece.start)) for piece in pieces]
        found = [
            part for part, piece in zip(parts, pieces, strict=True) if part is not None and len(part) == piece.size
        ]
        if len(found) != len(pieces):
            raise CheckpointError(
                "E803", f"the shards of checkpoint {self.folder} do not hold all parameters of machine {machine}"
            )
        return torch.cat(found) if found else torch.empty(0)

    def _file(self, shard: int) -> ShardFile:
        for file in self.manifest.files:
            if file.shard == shard:
                return file
        raise CheckpointError(
            "E803", f"checkpoint {self.folder} has no shard {shard}; it has {len(self.manifest.files)}"
        )

    def _read(self, file: ShardFile) -> tuple[_Header, dict[str, Tensor]]:
        path = self.folder / file.name
        try:
            with safe_open(path, framework="pt") as opened:
                header = msgspec.json.decode((opened.metadata() or {})[HEADER], type=_Header)
                return header, {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
        except (OSError, SafetensorError, KeyError, msgspec.DecodeError) as error:
            raise CheckpointError("E803", f"checkpoint file {path} cannot be read: {error}") from error


def write_shard(folder: str | Path, shard: int, holdings: Iterable[Holding], rule: Rule) -> ShardFile:
    """Write a shard's file: complete and on the disk, or not there. Its entry for the manifest."""
    folder = Path(folder)
    tensors: dict[str, Tensor] = {}
    held = []
    for holding in holdings:
        prefix = f"machine-{holding.slice.machine}"
        tensors[f"{prefix}/value"] = holding.value
        tensors |= {f"{prefix}/state/{name}": tensor for name, tensor in holding.state.items()}
        held.append(_Held(holding.slice, sorted(holding.state), holding.version, holding.applied))
    header = _Header(msgspec.to_builtins(rule), held)
    temporary = folder / f"shard-{shard}.tmp"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        save_file(tensors, temporary, metadata={HEADER: msgspec.json.encode(header).decode()})
        file = ShardFile(shard, _sha256(temporary), temporary.stat().st_size)
        _settle(temporary, folder / file.name)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(
            "E805", f"cannot write shard {shard} to {folder}: {error}", fix="use another --out folder"
        ) from error
    return file


def write_manifest(folder: str | Path, manifest: Manifest) -> None:
    """Complete a checkpoint whose shards are written, and remove the shards of the one that it replaces."""
    folder = Path(folder)
    temporary = folder / (MANIFEST + ".tmp")
    try:
        temporary.write_bytes(msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n")
        _settle(temporary, folder / MANIFEST)
        for stale in set(folder.glob("shard-*.safetensors")) - {folder / file.name for file in manifest.files}:
            stale.unlink()
    except OSError as error:
        raise CheckpointError(
            "E805", f"cannot write {folder / MANIFEST}: {error}", fix="use another --out folder"
        ) from error


def load(folder: str | Path) -> Checkpoint:
    """Read a checkpoint and verify its files; CheckpointError names what is missing, damaged or too new."""
    folder = Path(folder)
    manifest = _manifest(folder / MANIFEST)
    for file in manifest.files:
        path = folder / file.name
        try:
            size, sha256 = path.stat().st_size, _sha256(path)
        except OSError as error:
            raise CheckpointError("E801", f"checkpoint file {path} cannot be read: {error.strerror}") from error
        if (size, sha256) != (file.bytes, file.sha256):
            raise CheckpointError(
                "E802",
                f"checkpoint file {path} is damaged: it has {size} bytes with sha256 {sha256}; "
                f"written were {file.bytes} with {file.sha256}",
                fix="copy it again from where it was written, or go on from an older checkpoint",
            )
    return Checkpoint(folder, manifest)


def whole_state(folder: str | Path) -> dict[str, Tensor]:
    """The parameters of the whole model by name, as a plain `state_dict` has them."""
    checkpoint = load(folder)
    return assemble(checkpoint.buffers(), checkpoint.manifest.regions)


def _manifest(path: Path) -> Manifest:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise CheckpointError(
            "E801",
            f"no checkpoint: {path} cannot be read: {error.strerror}",
            fix="name the folder that holds manifest.json",
        ) from error
    try:
        version = msgspec.json.decode(data, type=dict[str, Any]).get("format")
        if isinstance(version, int) and version > FORMAT:
            raise CheckpointError(
                "E804",
                f"checkpoint {path} has format {version}; this cutset reads formats up to {FORMAT}",
                fix="pip install --upgrade cutset",
            )
        return msgspec.json.decode(data, type=Manifest)
    except msgspec.DecodeError as error:
        raise CheckpointError("E802", f"the manifest {path} is damaged: {error}") from error


def _holding(held: _Held, tensors: dict[str, Tensor]) -> Holding:
    prefix = f"machine-{held.slice.machine}"
    try:
        state = {name: tensors[f"{prefix}/state/{name}"] for name in held.state}
        return Holding(held.slice, tensors[f"{prefix}/value"], state, held.version, dict(held.applied))
    except KeyError as error:
        raise CheckpointError("E803", f"the file of shard {held.slice.shard} has no tensor {error}") from error


def _sha256(path: Path) -> str:
    with path.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _settle(temporary: Path, path: Path) -> None:
    """Give a finished file its name, and make both survive a power cut."""
    _sync(temporary)
    os.replace(temporary, path)
    _sync(path.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
