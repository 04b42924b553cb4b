"""`Checkpoint`: everything needed to go on, as files - one safetensors file a shard, one of the other state of each
machine, and a manifest, written last. The manifest names every file with its size and sha256 (checkpoint_files.py).
"""

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor

from ...partition.ir.box import Box, intersect, relative, sizes, slices, volume, whole
from ...errors import CheckpointError
from .write_checkpoint import sha256_of
from .flat_buffers import FlatBuffers
from ..slices.slice_state import Holding
from .manifest import FORMAT, MANIFEST, Manifest, ShardFile, StateFile
from ..slices.region import Region, check
from ..optimizers.registry import AnyRule, from_plain
from .shard_file import read_header, read_shard
from .streamed_safetensors import TensorReader, fill_box

Part = tuple[Box, Tensor]


class Checkpoint:
    """A checkpoint that was read and whose files are as they were written."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder = folder
        self.manifest = manifest

    def holdings(self, shard: int) -> list[Holding]:
        """The slices of a shard with values, rule state, versions and applied pushes."""
        return read_shard(self.folder / self._file(shard).name).holdings

    def rule(self, shard: int) -> AnyRule:
        """The rule that the shard applied."""
        with TensorReader(self.folder / self._file(shard).name) as reader:
            return from_plain(read_header(reader).rule)

    @property
    def trained(self) -> list[str]:
        """Names of the trained parameters."""
        return list(self._trained)

    @property
    def names(self) -> list[str]:
        """Trained parameters, then buffers and frozen parameters."""
        return [*self._trained, *(name for name in self._untrained if name not in self._trained)]

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor, as a plain `state_dict` has it."""
        return tuple(self._region(name).shape)

    def axes(self, name: str) -> tuple[int, ...]:
        """The sizes of the axes that a tensor's dimensions are made of, in which its boxes are."""
        return tuple(self._region(name).axes)

    def memories(self) -> list[str]:
        """What the rule remembers of every parameter, by name."""
        with FlatBuffers(self.folder, self.manifest) as buffers:
            return buffers.memories()

    def part(self, name: str, box: Box, axes: Sequence[int] | None = None, *, memory: str = "") -> Tensor:
        """A box of a parameter or buffer, in the sizes of the box; little else is read.

        memory: of what the rule remembers of a parameter under this name, instead of its values. axes: those that the
        box is in, by default `self.axes(name)`; with others the tensor is read whole first. CheckpointError where there
        is no such tensor, or not all of the box.
        """
        own = self.axes(name)
        wanted = own if axes is None else tuple(axes)
        fits = len(box) == len(wanted) and all(0 <= a <= b <= n for (a, b), n in zip(box, wanted, strict=False))
        if not fits or math.prod(wanted) != math.prod(own):
            told = f"box {list(box)} in axes {list(wanted)} of {name}, which has axes {list(own)}"
            raise CheckpointError("E808", f"checkpoint {self.folder} has no {told}")
        if wanted != own:
            return self.part(name, whole(own), memory=memory).reshape(wanted)[slices(box)].clone()
        if not volume(box):
            return torch.empty(sizes(box), dtype=self.dtype(name))
        trained = name in self._trained
        parts = self._trained_parts(name, box, memory) if trained else self._other_parts(name, box)
        if not _covered(box, parts):
            raise CheckpointError("E803", f"checkpoint {self.folder} does not hold all of box {list(box)} of {name}")
        return _joined(box, parts)

    def whole(self, name: str) -> Tensor:
        """A parameter or buffer in its shape."""
        return self.part(name, whole(self.axes(name))).reshape(self.shape(name))

    def __contains__(self, name: str) -> bool:
        return name in self._trained or name in self._untrained

    def __repr__(self) -> str:
        return f"Checkpoint({self.folder}, shards={len(self.manifest.files)}, machines={len(self.manifest.regions)})"

    @cached_property
    def _trained(self) -> dict[str, list[tuple[int, Region]]]:
        """Regions by name, with their machines; CheckpointError where they do not make up whole parameters."""
        found: dict[str, list[tuple[int, Region]]] = defaultdict(list)
        for machine, regions in enumerate(self.manifest.regions):
            for region in regions:
                found[region.name].append((machine, region))
        elements = FlatBuffers(self.folder, self.manifest).elements
        for name, pieces in found.items():
            check(name, pieces, elements)
        return dict(found)

    @cached_property
    def _untrained(self) -> dict[str, list[tuple[StateFile, int]]]:
        """Files by name, and the position there."""
        found: dict[str, list[tuple[StateFile, int]]] = defaultdict(list)
        for file in self.manifest.states:
            for position, region in enumerate(file.pieces):
                found[region.name].append((file, position))
        return dict(found)

    def _region(self, name: str) -> Region:
        """Any region of a tensor."""
        if name in self._trained:
            return self._trained[name][0][1]
        if name in self._untrained:
            file, position = self._untrained[name][0]
            return file.pieces[position]
        raise CheckpointError(
            "E808", f"checkpoint {self.folder} has no tensor {name!r}", fix="check that it is of this model"
        )

    def dtype(self, name: str) -> torch.dtype:
        """Of a tensor."""
        if name in self._trained:
            with FlatBuffers(self.folder, self.manifest) as buffers:
                return buffers.dtype(self._trained[name][0][0])
        file, position = self._untrained[name][0]
        with TensorReader(self.folder / file.name) as reader:
            return reader.layouts[str(position)][0]

    def _file(self, shard: int) -> ShardFile:
        for file in self.manifest.files:
            if file.shard == shard:
                return file
        raise CheckpointError(
            "E803", f"checkpoint {self.folder} has no shard {shard}; it has {len(self.manifest.files)}"
        )

    def _trained_parts(self, name: str, box: Box, memory: str) -> list[Part]:
        """What the machines' buffers hold of a box, or the rule's memory of it."""
        found: list[Part] = []
        with FlatBuffers(self.folder, self.manifest) as buffers:
            for machine, region in self._trained[name]:
                outer = tuple(region.box)
                common = intersect(outer, box)
                if common is None:
                    continue
                target = torch.empty(sizes(common), dtype=buffers.dtype(machine))
                inside = relative(common, outer)
                fill_box(target, region.sizes, inside, _from(buffers, machine, region.offset, memory))
                found.append((common, target))
        return found

    def _other_parts(self, name: str, box: Box) -> list[Part]:
        """What the files of buffers and frozen parameters hold of a box."""
        found: list[Part] = []
        for file, position in self._untrained[name]:
            region = file.pieces[position]
            outer = tuple(region.box)
            common = intersect(outer, box)
            if common is not None:
                with TensorReader(self.folder / file.name) as reader:
                    found.append((common, reader.box(str(position), region.sizes, relative(common, outer))))
        return found


def load(folder: str | Path) -> Checkpoint:
    """Read a checkpoint and verify its files; CheckpointError names what is missing, damaged or too new."""
    folder = Path(folder)
    manifest = read_manifest(folder)
    for file in manifest.all_files:
        path = folder / file.name
        try:
            size, sha256 = path.stat().st_size, sha256_of(path)
        except OSError as error:
            raise CheckpointError(
                "E801",
                f"checkpoint file {path} cannot be read: {error.strerror}",
                fix="copy it again from where it was written, or go on from an older checkpoint",
            ) from error
        if (size, sha256) != (file.bytes, file.sha256):
            raise CheckpointError(
                "E802",
                f"checkpoint file {path} is damaged: it has {size} bytes with sha256 {sha256}; "
                f"written were {file.bytes} with {file.sha256}",
                fix="copy it again from where it was written, or go on from an older checkpoint",
            )
    return Checkpoint(folder, manifest)


def whole_state(folder: str | Path) -> dict[str, Tensor]:
    """The parameters, buffers and frozen parameters of the whole model by name, as a plain `state_dict` has them."""
    checkpoint = load(folder)
    return {name: checkpoint.whole(name) for name in checkpoint.names}


def _joined(box: Box, parts: Sequence[Part]) -> Tensor:
    """One tensor of parts that cover a box."""
    if len(parts) == 1:
        return parts[0][1]
    joined = torch.empty(sizes(box), dtype=parts[0][1].dtype)
    for place, part in parts:
        joined[slices(relative(place, box))] = part
    return joined


def _covered(box: Box, parts: Sequence[Part]) -> bool:
    """Whether parts that may overlap cover a box: buffers may be held by several machines."""
    if len(parts) == 1:
        return parts[0][0] == box
    marks = torch.zeros(sizes(box), dtype=torch.bool)
    for place, _ in parts:
        marks[slices(relative(place, box))] = True
    return bool(marks.all())


def _from(buffers: FlatBuffers, machine: int, offset: int, memory: str) -> Callable[[int, int], Tensor]:
    return lambda start, stop: buffers.read(machine, offset + start, offset + stop, memory=memory)


def read_manifest(folder: Path) -> Manifest:
    """What a checkpoint says that it consists of; its files are not looked at."""
    path = folder / MANIFEST
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
        if isinstance(version, int) and version != FORMAT:
            older = version < FORMAT
            raise CheckpointError(
                "E804",
                f"checkpoint {path} has format {version}; this cutset reads format {FORMAT}",
                fix="train again, or read it with the version that wrote it"
                if older
                else "pip install --upgrade cutset",
            )
        return msgspec.json.decode(data, type=Manifest)
    except msgspec.DecodeError as error:
        raise CheckpointError("E802", f"the manifest {path} is damaged: {error}") from error
