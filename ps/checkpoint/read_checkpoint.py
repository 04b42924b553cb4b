"""`Checkpoint`: reads a checkpoint, whatever cut of the model it was written from.

A checkpoint has one safetensors file per shard, one per machine for what is not trained, and the checkpoint manifest,
which is written last and lists every file with its size and sha256 (write_checkpoint.py).
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

from ...errors import CheckpointError
from ...partition.ir.box import Box, intersect, relative, sizes, slices, volume, whole
from ..optimizers.registry import AnyOptimizer, from_plain
from ..slices.region import Region, check_regions
from ..slices.slice_state import SliceState
from .flat_buffers import FlatBuffers
from .manifest import FORMAT, MANIFEST, Manifest, ShardFile, StateFile
from .shard_file import read_header, read_shard
from .streamed_safetensors import TensorReader, fill_box
from .write_checkpoint import hash_file

OTHER_FORMAT = "E804"  # the error of a checkpoint that another version of cutset wrote
Part = tuple[Box, Tensor]  # a box of a tensor, and the elements in it


class Checkpoint:
    """A checkpoint whose files are unchanged since they were written; see `open_checkpoint`."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder = folder
        self.manifest = manifest

    def read_slices(self, shard: int) -> list[SliceState]:
        """Return the slices of a shard. CheckpointError E803 if the checkpoint has no such shard."""
        return read_shard(self.folder / self._file(shard).name).slice_states

    def read_optimizer(self, shard: int) -> AnyOptimizer:
        """Return the optimizer that the shard applied. CheckpointError E803 if there is no such shard."""
        with TensorReader(self.folder / self._file(shard).name) as reader:
            return from_plain(read_header(reader).optimizer)

    @property
    def trained_names(self) -> list[str]:
        """The names of the trained parameters."""
        return list(self._trained)

    @property
    def names(self) -> list[str]:
        """The names of the trained parameters, then of buffers and frozen parameters."""
        return [*self._trained, *(name for name in self._untrained if name not in self._trained)]

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor in the model's `state_dict`. CheckpointError E808 if there is none."""
        return tuple(self._region(name).shape)

    def axes(self, name: str) -> tuple[int, ...]:
        """Return the sizes of the axes that a tensor's dimensions are made of; its boxes refer to these."""
        return tuple(self._region(name).axes)

    def state_names(self) -> list[str]:
        """Return the names of the optimizer state that every parameter has."""
        with FlatBuffers(self.folder, self.manifest) as buffers:
            return buffers.state_names()

    def read_box(self, name: str, box: Box, axes: Sequence[int] | None = None, *, state: str = "") -> Tensor:
        """Return a box of a parameter or buffer, in the sizes of the box, reading little else.

        axes: those that the box refers to, by default `self.axes(name)`; with others the tensor is read whole first.
        state: the name of the parameter's optimizer state to read instead of its values. CheckpointError E808 if there
        is no such tensor or box, E803 if the checkpoint lacks some of it.
        """
        own = self.axes(name)
        view = own if axes is None else tuple(axes)
        fits = len(box) == len(view) and all(0 <= a <= b <= n for (a, b), n in zip(box, view, strict=False))
        if not fits or math.prod(view) != math.prod(own):
            facts = f"has no box {list(box)} in axes {list(view)} of {name}, which has axes {list(own)}"
            raise CheckpointError("E808", f"checkpoint {self.folder} {facts}")
        if view != own:
            return self.read_box(name, whole(own), state=state).reshape(view)[slices(box)].clone()
        if not volume(box):
            return torch.empty(sizes(box), dtype=self.dtype(name))
        trained = name in self._trained
        parts = self._trained_parts(name, box, state) if trained else self._other_parts(name, box)
        if not _is_covered(box, parts):
            raise CheckpointError("E803", f"checkpoint {self.folder} does not hold all of box {list(box)} of {name}")
        return _join_parts(box, parts)

    def read_tensor(self, name: str) -> Tensor:
        """Return a whole parameter or buffer in its shape."""
        return self.read_box(name, whole(self.axes(name))).reshape(self.shape(name))

    def __contains__(self, name: str) -> bool:
        return name in self._trained or name in self._untrained

    def __repr__(self) -> str:
        return f"Checkpoint({self.folder}, shards={len(self.manifest.files)}, machines={len(self.manifest.regions)})"

    @cached_property
    def _trained(self) -> dict[str, list[tuple[int, Region]]]:
        """The regions of each trained parameter, with their machines. CheckpointError E806 if some is missing."""
        by_name: dict[str, list[tuple[int, Region]]] = defaultdict(list)
        for machine, regions in enumerate(self.manifest.regions):
            for region in regions:
                by_name[region.name].append((machine, region))
        elements = FlatBuffers(self.folder, self.manifest).elements
        for name, pieces in by_name.items():
            check_regions(name, pieces, elements)
        return dict(by_name)

    @cached_property
    def _untrained(self) -> dict[str, list[tuple[StateFile, int]]]:
        """The files that hold each other tensor, with its position there."""
        by_name: dict[str, list[tuple[StateFile, int]]] = defaultdict(list)
        for file in self.manifest.states:
            for position, region in enumerate(file.pieces):
                by_name[region.name].append((file, position))
        return dict(by_name)

    def _region(self, name: str) -> Region:
        """Return any region of a tensor. CheckpointError E808 if there is no such tensor."""
        if name in self._trained:
            return self._trained[name][0][1]
        if name in self._untrained:
            file, position = self._untrained[name][0]
            return file.pieces[position]
        raise CheckpointError(
            "E808", f"checkpoint {self.folder} has no tensor {name!r}", fix="check that it is of this model"
        )

    def dtype(self, name: str) -> torch.dtype:
        """Return the dtype of a tensor."""
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

    def _trained_parts(self, name: str, box: Box, state: str) -> list[Part]:
        """Return what the machines' buffers hold of a box, or of its optimizer state of this name."""
        parts: list[Part] = []
        with FlatBuffers(self.folder, self.manifest) as buffers:
            for machine, region in self._trained[name]:
                outer = tuple(region.box)
                common = intersect(outer, box)
                if common is None:
                    continue
                target = torch.empty(sizes(common), dtype=buffers.dtype(machine))
                inside = relative(common, outer)
                fill_box(target, region.sizes, inside, _make_reader(buffers, machine, region.offset, state))
                parts.append((common, target))
        return parts

    def _other_parts(self, name: str, box: Box) -> list[Part]:
        """Return what the files of buffers and frozen parameters hold of a box."""
        parts: list[Part] = []
        for file, position in self._untrained[name]:
            region = file.pieces[position]
            outer = tuple(region.box)
            common = intersect(outer, box)
            if common is not None:
                with TensorReader(self.folder / file.name) as reader:
                    parts.append((common, reader.box(str(position), region.sizes, relative(common, outer))))
        return parts


def open_checkpoint(folder: str | Path) -> Checkpoint:
    """Read a checkpoint's manifest and verify its files. CheckpointError names what is missing, damaged or too new."""
    folder = Path(folder)
    manifest = read_manifest(folder)
    for file in manifest.all_files:
        path = folder / file.name
        try:
            size, sha256 = path.stat().st_size, hash_file(path)
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


def load_checkpoint(folder: str | Path) -> dict[str, Tensor]:
    """Read the parameters and buffers of the whole model by name, as its `state_dict` has them. CheckpointError."""
    checkpoint = open_checkpoint(folder)
    return {name: checkpoint.read_tensor(name) for name in checkpoint.names}


def _join_parts(box: Box, parts: Sequence[Part]) -> Tensor:
    """Return one tensor, made of parts that cover a box."""
    if len(parts) == 1:
        return parts[0][1]
    tensor = torch.empty(sizes(box), dtype=parts[0][1].dtype)
    for place, part in parts:
        tensor[slices(relative(place, box))] = part
    return tensor


def _is_covered(box: Box, parts: Sequence[Part]) -> bool:
    """Return whether the parts cover a box. They may overlap, as several machines may hold the same buffer."""
    if len(parts) == 1:
        return parts[0][0] == box
    marks = torch.zeros(sizes(box), dtype=torch.bool)
    for place, _ in parts:
        marks[slices(relative(place, box))] = True
    return bool(marks.all())


def _make_reader(buffers: FlatBuffers, machine: int, offset: int, state: str) -> Callable[[int, int], Tensor]:
    return lambda start, stop: buffers.read(machine, offset + start, offset + stop, state=state)


def read_manifest(folder: Path) -> Manifest:
    """Read the checkpoint manifest of a folder; the files that it lists are not looked at. CheckpointError."""
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
                OTHER_FORMAT,
                f"checkpoint {path} has format {version}; this cutset reads format {FORMAT}",
                fix="train again, or read it with the version that wrote it"
                if older
                else "pip install --upgrade cutset",
            )
        return msgspec.json.decode(data, type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CheckpointError(
            "E802",
            f"the manifest {path} is damaged: {error}",
            fix="copy it again from where it was written, or go on from an older checkpoint",
        ) from error
