"""`Weights`: trained values from a run folder, a checkpoint or a plain state_dict, box by box."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Protocol

from torch import Tensor, nn

from ...partition.ir.box import Box, slices
from ...errors import CheckpointError
from ...ps.checkpoint import read_checkpoint as checkpoint
from ...ps.checkpoint.streamed_safetensors import TensorReader
from ...runtime.worker.program import Program
from ...runtime.worker.flat_parameters import States
from ..job.export_weights import CHECKPOINT


class Weights(Protocol):
    """Tensors by name."""

    def shape(self, name: str) -> tuple[int, ...] | None:
        """Of a tensor; None where there is none of this name."""
        ...

    def part(self, name: str, box: Box, extents: Sequence[int]) -> Tensor:
        """A box of it, in axes of these sizes."""
        ...


class _File(TensorReader):
    """A safetensors file with whole tensors."""

    def shape(self, name: str) -> tuple[int, ...] | None:
        layout = self.layouts.get(name)
        return None if layout is None else tuple(layout[1])

    def part(self, name: str, box: Box, extents: Sequence[int]) -> Tensor:
        return self.box(name, extents, box)


class Held:
    """Whole tensors in memory."""

    def __init__(self, values: Mapping[str, Tensor]) -> None:
        self._values = values

    def shape(self, name: str) -> tuple[int, ...] | None:
        """As of `Weights`."""
        return tuple(self._values[name].shape) if name in self._values else None

    def part(self, name: str, box: Box, extents: Sequence[int]) -> Tensor:
        """As of `Weights`."""
        return self._values[name].detach().reshape(tuple(extents))[slices(box)]


class Both:
    """Two sources as one; what the first does not have is the second's."""

    def __init__(self, first: Weights, second: Weights) -> None:
        self._first, self._second = first, second

    def shape(self, name: str) -> tuple[int, ...] | None:
        """As of `Weights`."""
        found = self._first.shape(name)
        return self._second.shape(name) if found is None else found

    def part(self, name: str, box: Box, extents: Sequence[int]) -> Tensor:
        """As of `Weights`."""
        source = self._second if self._first.shape(name) is None else self._first
        return source.part(name, box, extents)


class _Checkpoint:
    def __init__(self, folder: Path) -> None:
        self._found = checkpoint.load(folder)

    def shape(self, name: str) -> tuple[int, ...] | None:
        return tuple(self._found.shape(name)) if name in self._found else None

    def part(self, name: str, box: Box, extents: Sequence[int]) -> Tensor:
        return self._found.part(name, box, extents)


@contextmanager
def opened(path: Path) -> Iterator[Weights]:
    """The weights in a run folder, in a checkpoint's folder or in a file; CheckpointError where they are not there."""
    if path.is_file():
        with closing(_File(path)) as file:
            yield file
        return
    inner = path / CHECKPOINT
    yield _Checkpoint(inner if inner.is_dir() else path)


def stored(path: str | Path) -> Callable[[str], Tensor]:
    """Whole tensors by name from a safetensors file, one at a time."""

    def value(name: str) -> Tensor:
        with TensorReader(path) as reader:
            return reader.tensor(name)

    return value


def demand(weights: Weights, programs: Sequence[Program], made: Collection[str], *, where: Path) -> None:
    """CheckpointError, naming the first, where a tensor of the programs is missing or of another shape.

    made: names of what the model's own code makes.
    """
    needed = {name: shape for name, shape in _needed(programs).items() if name not in made}
    missing = [name for name in needed if weights.shape(name) is None]
    if missing:
        raise _misfit(f"{where} has no tensor {missing[0]!r}; of the model's {len(needed)} it lacks {len(missing)}")
    for name, shape in needed.items():
        if weights.shape(name) != shape:
            raise _misfit(f"{where} has {name} of shape {weights.shape(name)}; in the model it has {shape}")


def load(states: States, weights: Weights) -> None:
    """Fill every piece."""
    for (name, box), piece in states.pieces.items():
        piece.detach().copy_(weights.part(name, box, states.infos[name].extents))


def load_whole(model: nn.Module, weights: Weights, *, where: Path) -> None:
    """Fill a whole model."""
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        shape = tuple(tensor.shape)
        if weights.shape(name) != shape:
            raise _misfit(f"{where} has {name} of shape {weights.shape(name)}; in the model it has {shape}")
        tensor.detach().copy_(weights.part(name, tuple((0, n) for n in shape), shape))


def _misfit(facts: str) -> CheckpointError:
    return CheckpointError("E809", facts, fix="name the checkpoint of a run of this task, with the same arguments")


def _needed(programs: Sequence[Program]) -> dict[str, tuple[int, ...]]:
    return {
        info.name: tuple(info.shape)
        for program in programs
        for info in (program.tensors[program.pieces[state.piece].tensor] for state in program.states)
    }
