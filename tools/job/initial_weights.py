"""The file that a run begins with: every weight as `Task.build` draws it, or as a file has it, one after the other.

A model of more than `MAX_WHOLE_BYTES` is not built for that: its weights are drawn one by one (runtime/deferred_init).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ...errors import BadInput, CheckpointError
from ...partition.capture.exported_draft import collect_state
from ...ps.checkpoint.streamed_safetensors import PART_BYTES, TensorReader, TensorWriter
from ...runtime.deferred_init.deferred_model import record
from ...runtime.deferred_init.generator_tracking import Unrecordable
from ..task.load_task import build_model
from ..task.meta_model import MAX_WHOLE_BYTES, build_without_weights
from ..tensor_files import new_file
from ..units import format_bytes

if TYPE_CHECKING:
    from ...models.task import Task

_MAX_NAMED = 5  # of the names of a kind that an error lists


@dataclass(frozen=True)
class InitialWeights:
    """The model that a run begins with.

    model: with its values, if `whole`; else for its names and shapes alone. notes: what the user should know.
    """

    model: nn.Module
    whole: bool
    notes: tuple[str, ...] = ()


def write_initial_weights(
    path: Path,
    task: "Task",
    *,
    seed: int,
    constants: Mapping[str, Tensor],
    weights_file: Path | None = None,
    partial: bool = False,
    cut: bool = True,
) -> InitialWeights:
    """Write parameters, buffers and constants of a task's model, and those of its loss; return the model.

    weights_file: a safetensors file with the model's state_dict, whose values are used for the tensors that it has.
    partial: whether names may be missing there. cut: whether the model may be too large for this process. Raises
    BadInput where the file does not fit the model.
    """
    size, notes = 0, tuple[str, ...]()
    if cut:
        empty = build_without_weights(task, seed=seed)
        size = sum(tensor.nbytes for tensor in (*empty.parameters(), *empty.buffers()))
    if size > MAX_WHOLE_BYTES:
        try:
            return InitialWeights(_draw_one_by_one(path, task, seed, constants, weights_file, partial=partial), False)
        except Unrecordable as error:
            notes = (f"its {format_bytes(size)} of weights were drawn in one process, which held them all: {error}",)
    model = build_model(task, seed=seed)
    values = collect_state(model, task.loss, constants)
    sources = _find_sources(weights_file, task, model, values if partial else None)
    with new_file(path, {name: (value.dtype, list(value.shape)) for name, value in values.items()}) as writer:
        for name, value in values.items():
            if name not in sources:
                writer.write(name, value)
        _copy_weights(weights_file, sources, values, writer)
    return InitialWeights(model, True, notes)


def _draw_one_by_one(
    path: Path, task: "Task", seed: int, constants: Mapping[str, Tensor], weights_file: Path | None, *, partial: bool
) -> nn.Module:
    """Write the weights of a model that is never whole; return the model without values."""
    deferred = record(lambda: task.build(seed=seed))
    values = collect_state(deferred.model, task.loss, constants)
    sources = _find_sources(weights_file, task, deferred.model, values if partial else None)
    with new_file(path, {name: (value.dtype, list(value.shape)) for name, value in values.items()}) as writer:
        fresh = {name: value for name, value in values.items() if name not in sources}
        if fresh:
            deferred.replay(fresh, writer.write)
        _copy_weights(weights_file, sources, values, writer)
    return deferred.model


def state_names(model: nn.Module) -> dict[str, str]:
    """Return, by name in the state_dict, the name by which a run knows the tensor: its first in the model."""
    first = _first_names(model)
    return {name: first[name] for name in model.state_dict(keep_vars=True) if name in first}


def _find_sources(
    weights_file: Path | None, task: "Task", model: nn.Module, partly: Mapping[str, Tensor] | None
) -> dict[str, str]:
    """Return, by name of a parameter or buffer, its name in the file, where a tied tensor may have any of its names.

    partly: where the file is not of a state_dict, but may have some of these tensors.
    """
    if weights_file is None:
        return {}
    first_names, partial = _first_names(model), partly is not None
    if partly is not None:
        first_names = {name: name for name in partly} | first_names
    names: dict[str, str] = first_names if partial else state_names(model)
    state: Mapping[str, Tensor] = model.state_dict(keep_vars=True) if partly is None else partly
    with open_weights_file(weights_file) as reader:
        layouts = reader.layouts
    there = {first: name for name, first in reversed(names.items()) if name in layouts}
    missing = [] if partial else [name for name, first in names.items() if first not in there]
    unexpected = [name for name in layouts if name not in names]
    shapes = [
        f"{name} of {list(layouts[name][1])} instead of {list(state[name].shape)}"
        for name in names
        if name in layouts and name in state and list(layouts[name][1]) != list(state[name].shape)
    ]
    kinds = {"has no": missing, "has": unexpected, "has another shape for": shapes}
    if any(kinds.values()):
        how = "; ".join(f"{what} {_format_names(found)}" for what, found in kinds.items() if found)
        raise BadInput(
            "E317",
            f"the weights in {weights_file} are not those of the model of task {task.name}: the file {how}",
            fix="save them with safetensors.torch.save_file(model.state_dict(), ...) from the same model",
        )
    return {name: there[first] for name, first in first_names.items() if first in there}


def _first_names(model: nn.Module) -> dict[str, str]:
    """Return, for every name of a parameter or buffer, the first that the tensor has."""
    first: dict[int, str] = {}
    listed = (*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False))
    for name, tensor in listed:
        first.setdefault(id(tensor), name)
    return {name: first[id(tensor)] for name, tensor in listed}


def _copy_weights(
    weights_file: Path | None, sources: Mapping[str, str], values: Mapping[str, Tensor], writer: TensorWriter
) -> None:
    """Write what the file has, a part at a time, in the dtypes of the model."""
    if weights_file is None:
        return
    with open_weights_file(weights_file) as reader:
        for name, source in sources.items():
            count, dtype = values[name].numel(), values[name].dtype
            step = PART_BYTES // torch.float64.itemsize
            for start in range(0, count, step):
                part = reader.read(source, start, min(start + step, count))
                writer.write(name, part.to(dtype), start=start)


def open_weights_file(path: Path) -> TensorReader:
    """Open a file of weights; BadInput where it cannot be read."""
    try:
        return TensorReader(path)
    except CheckpointError as error:
        raise BadInput("E318", f"no weights: {error.facts}", fix="give a .safetensors file") from error


def _format_names(names: list[str]) -> str:
    more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    return ", ".join(names[:_MAX_NAMED]) + more
