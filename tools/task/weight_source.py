"""`Weights`: trained values from a run folder, a checkpoint or a plain state_dict, box by box."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Protocol

from torch import Tensor, nn

from ...errors import CheckpointError, UsageError
from ...partition.ir.box import Box, slices
from ...ps.checkpoint.read_checkpoint import open_checkpoint
from ...ps.checkpoint.streamed_safetensors import TensorReader
from ...ps.optimizers.parameter_groups import EMA
from ...runtime.worker.flat_parameters import FlatParameters
from ...runtime.worker.program import Program
from ..run_folder import CHECKPOINT, EMA_WEIGHTS


class Weights(Protocol):
    """Tensors by name."""

    def shape(self, name: str) -> tuple[int, ...] | None:
        """Return the shape of a tensor; None where there is none of this name."""
        ...

    def read_box(self, name: str, box: Box, extents: Sequence[int]) -> Tensor:
        """Return a box of a tensor, in axes of these sizes."""
        ...


class _FileWeights(TensorReader):
    """A safetensors file with whole tensors."""

    def shape(self, name: str) -> tuple[int, ...] | None:
        layout = self.layouts.get(name)
        return None if layout is None else tuple(layout[1])

    def read_box(self, name: str, box: Box, extents: Sequence[int]) -> Tensor:
        return self.box(name, extents, box)


class InMemoryWeights:
    """Whole tensors in memory."""

    def __init__(self, values: Mapping[str, Tensor]) -> None:
        self._values = values

    def shape(self, name: str) -> tuple[int, ...] | None:
        """Return the shape of a tensor; None where there is none of this name."""
        return tuple(self._values[name].shape) if name in self._values else None

    def read_box(self, name: str, box: Box, extents: Sequence[int]) -> Tensor:
        """Return a box of a tensor, in axes of these sizes."""
        return self._values[name].detach().reshape(tuple(extents))[slices(box)]


class FallbackWeights:
    """Two sources as one; what the first does not have comes from the second."""

    def __init__(self, first: Weights, second: Weights) -> None:
        self._first, self._second = first, second

    def shape(self, name: str) -> tuple[int, ...] | None:
        """Return the shape of a tensor; None where neither has it."""
        shape = self._first.shape(name)
        return self._second.shape(name) if shape is None else shape

    def read_box(self, name: str, box: Box, extents: Sequence[int]) -> Tensor:
        """Return a box of a tensor, in axes of these sizes."""
        source = self._second if self._first.shape(name) is None else self._first
        return source.read_box(name, box, extents)


class _CheckpointWeights:
    """The tensors of a checkpoint's folder. averaged: what is trained is its moving average."""

    def __init__(self, folder: Path, *, averaged: bool = False) -> None:
        self._checkpoint = open_checkpoint(folder)
        if averaged and EMA not in self._checkpoint.state_names():
            facts = f"{folder} has no moving average of the weights"
            raise UsageError("E239", facts, fix="train with --ema 0.999, or leave --ema out here")
        self._averaged = set(self._checkpoint.trained_names) if averaged else set[str]()

    def shape(self, name: str) -> tuple[int, ...] | None:
        return tuple(self._checkpoint.shape(name)) if name in self._checkpoint else None

    def read_box(self, name: str, box: Box, extents: Sequence[int]) -> Tensor:
        return self._checkpoint.read_box(name, box, extents, state=EMA if name in self._averaged else "")


def check_source(path: Path) -> None:
    """Raise CheckpointError where there is nothing at a path that could be a run folder, a checkpoint or a file."""
    if not path.exists():
        fix = "--checkpoint FOLDER, of a run that was trained, or a safetensors file"
        raise CheckpointError("E801", f"no checkpoint: there is no {path}", fix=fix)


@contextmanager
def open_weights(path: Path, *, averaged: bool = False) -> Iterator[Weights]:
    """Open the weights in a run folder, a checkpoint's folder or a file; CheckpointError where they are not there.

    averaged: their moving average, which a checkpoint has where the run kept one; UsageError where it has none.
    """
    if path.is_file():
        if averaged:
            facts = f"{path} has one set of weights, not their moving average beside them"
            raise UsageError("E239", facts, fix=f"name the run folder, or {EMA_WEIGHTS} in it without --ema")
        with closing(_FileWeights(path)) as file:
            yield file
        return
    inner = path / CHECKPOINT
    yield _CheckpointWeights(inner if inner.is_dir() else path, averaged=averaged)


def read_tensors_from(path: str | Path) -> Callable[[str], Tensor]:
    """Return a function that reads a whole tensor by name from a safetensors file."""

    def value(name: str) -> Tensor:
        with TensorReader(path) as reader:
            return reader.tensor(name)

    return value


def check_weights(weights: Weights, programs: Sequence[Program], constants: Collection[str], *, where: Path) -> None:
    """Raise CheckpointError, naming the first, where a tensor of the programs is missing or of another shape.

    constants: names of tensors that the model's own code makes, and that need not be there.
    """
    shapes = {name: shape for name, shape in _shapes_in(programs).items() if name not in constants}
    missing = [name for name in shapes if weights.shape(name) is None]
    if missing:
        raise _misfit_error(
            f"{where} has no tensor {missing[0]!r}; of the model's {len(shapes)} it lacks {len(missing)}"
        )
    for name, shape in shapes.items():
        if weights.shape(name) != shape:
            raise _misfit_error(f"{where} has {name} of shape {weights.shape(name)}; in the model it has {shape}")


def load_pieces(states: FlatParameters, weights: Weights) -> None:
    """Fill every piece of a machine's parameters and buffers."""
    for (name, box), piece in states.masters().items():
        piece.copy_(weights.read_box(name, box, states.infos[name].extents))
    states.refresh()


def load_model(model: nn.Module, weights: Weights, *, where: Path) -> None:
    """Fill a whole model; CheckpointError where a tensor is missing or of another shape."""
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        shape = tuple(tensor.shape)
        if weights.shape(name) != shape:
            raise _misfit_error(f"{where} has {name} of shape {weights.shape(name)}; in the model it has {shape}")
        tensor.detach().copy_(weights.read_box(name, tuple((0, n) for n in shape), shape))


def _misfit_error(facts: str) -> CheckpointError:
    return CheckpointError("E809", facts, fix="name the checkpoint of a run of this task, with the same arguments")


def _shapes_in(programs: Sequence[Program]) -> dict[str, tuple[int, ...]]:
    return {
        info.name: tuple(info.shape)
        for program in programs
        for info in (program.tensors[program.pieces[state.piece].tensor] for state in program.states)
    }
