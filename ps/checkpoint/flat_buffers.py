"""`FlatBuffers`: the flat parameters of every machine, read a range at a time from a checkpoint's shard files."""

from bisect import bisect_right
from pathlib import Path
from types import TracebackType

import torch
from torch import Tensor

from ...errors import CheckpointError
from ..slices.slicing import slices_of_machine
from .manifest import Manifest, ShardFile
from .streamed_safetensors import TensorReader


class FlatBuffers:
    """Reads shard files while entered as a context. CheckpointError E803 if they lack what is asked for."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self._folder = folder
        self._files = {file.shard: file for file in manifest.files}
        machines = range(len(manifest.regions))
        self._slices = [sorted(slices_of_machine(manifest.slices, m), key=lambda piece: piece.start) for m in machines]
        self._readers: dict[int, TensorReader] = {}

    @property
    def elements(self) -> list[int]:
        """The number of elements of each machine's buffer."""
        return [slices[-1].stop if slices else 0 for slices in self._slices]

    def dtype(self, machine: int) -> torch.dtype:
        """Return the dtype of a machine's buffer."""
        return self.read(machine, 0, 1).dtype

    def read(self, machine: int, start: int, stop: int, *, state: str = "") -> Tensor:
        """Return elements [start, stop) of a machine's buffer, or of its optimizer state of this name."""
        slices, parts, at = self._slices[machine], list[Tensor](), start
        first = bisect_right(slices, start, key=lambda piece: piece.start) - 1
        for piece in slices[max(0, first) :]:
            if at >= stop or piece.start > at:
                break
            end = min(piece.stop, stop)
            name = f"slice-{piece.number}/" + (f"state/{state}" if state else "value")
            reader = self._reader(piece.shard, machine)
            if [piece.size] != list(reader.layouts.get(name, (torch.uint8, ()))[1]):
                raise self._incomplete(machine)
            parts.append(reader.read(name, at - piece.start, end - piece.start))
            at = end
        if at < stop:
            raise self._incomplete(machine)
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def __enter__(self) -> "FlatBuffers":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for reader in self._readers.values():
            reader.close()

    def state_names(self) -> list[str]:
        """Return the names of the optimizer state that every slice has."""
        names: set[str] | None = None
        for machine, slices in enumerate(self._slices):
            for piece in slices:
                prefix = f"slice-{piece.number}/state/"
                layouts = self._reader(piece.shard, machine).layouts
                here = {name.removeprefix(prefix) for name in layouts if name.startswith(prefix)}
                names = here if names is None else names & here
        return sorted(names or ())

    def _reader(self, shard: int, machine: int) -> TensorReader:
        if shard not in self._readers:
            file: ShardFile | None = self._files.get(shard)
            if file is None:
                raise self._incomplete(machine)
            self._readers[shard] = TensorReader(self._folder / file.name)
        return self._readers[shard]

    def _incomplete(self, machine: int) -> CheckpointError:
        return CheckpointError(
            "E803", f"the shards of checkpoint {self._folder} do not hold all parameters of machine {machine}"
        )
