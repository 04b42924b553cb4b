"""The file that a run begins with: every weight as `Task.build` draws it, or as a file has it, one after the other.

A model of more than `WHOLE_BYTES` is not built for that: its weights are drawn one at a time (partition/deferred.py).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ...partition.capture.export import state_values
from ...runtime.deferred_init.deferred_model import record
from ...runtime.deferred_init.generator_tracking import Unrecordable
from ...errors import BadInput, CheckpointError
from ...ps.checkpoint.streamed_safetensors import PART_BYTES, TensorReader, TensorWriter
from ..task.load_task import build_model
from .export_weights import new_file
from ..units import bytes_text

if TYPE_CHECKING:
    from ...models.task import Task

WHOLE_BYTES = 256 << 20  # of parameters and buffers; a larger model is never whole in the process that prepares a run
_NAMED = 5  # of the names of a kind that an error lists


@dataclass(frozen=True)
class First:
    """model: with its values, if `whole`; else for its names and shapes alone."""

    model: nn.Module
    whole: bool
    notes: tuple[str, ...] = ()


def write_first(
    path: Path,
    task: "Task",
    *,
    seed: int,
    constants: Mapping[str, Tensor],
    given: Path | None = None,
    partial: bool = False,
    cut: bool = True,
) -> First:
    """Write parameters, buffers and constants of a task's model, and what its loss has of them.

    given: a safetensors file with the model's state_dict, from which they come as far as that goes. partial: whether
    names may be missing there. cut: whether the model may be too large for this process. BadInput where the file does
    not fit the model.
    """
    size, notes = 0, tuple[str, ...]()
    if cut:
        empty = build_model(task, seed=seed, device="meta")
        size = sum(tensor.nbytes for tensor in (*empty.parameters(), *empty.buffers()))
    if size > WHOLE_BYTES:
        try:
            return First(_draw_apart(path, task, seed, constants, given, partial=partial), False)
        except Unrecordable as error:
            notes = (f"its {bytes_text(size)} of weights were drawn in one process, which held them all: {error}",)
    model = build_model(task, seed=seed)
    values = state_values(model, task.loss, constants)
    sources = _sources(given, task, model, values if partial else None)
    with new_file(path, {name: (value.dtype, list(value.shape)) for name, value in values.items()}) as writer:
        for name, value in values.items():
            if name not in sources:
                writer.write(name, value)
        _copy(given, sources, values, writer)
    return First(model, True, notes)


def _draw_apart(
    path: Path, task: "Task", seed: int, constants: Mapping[str, Tensor], given: Path | None, *, partial: bool
) -> nn.Module:
    """Write the weights of a model that is never whole; the model without values."""
    deferred = record(lambda: task.build(seed=seed))
    values = state_values(deferred.model, task.loss, constants)
    sources = _sources(given, task, deferred.model, values if partial else None)
    with new_file(path, {name: (value.dtype, list(value.shape)) for name, value in values.items()}) as writer:
        drawn = {name: value for name, value in values.items() if name not in sources}
        if drawn:
            deferred.replay(drawn, writer.write)
        _copy(given, sources, values, writer)
    return deferred.model


def state_names(model: nn.Module) -> dict[str, str]:
    """Each name in the state_dict -> the name by which a run knows the tensor: the first that it has in the model."""
    first = _first_names(model)
    return {name: first[name] for name in model.state_dict(keep_vars=True) if name in first}


def _sources(given: Path | None, task: "Task", model: nn.Module, partly: Mapping[str, Tensor] | None) -> dict[str, str]:
    """By name of a parameter or buffer: its name in the file. A tied tensor may be there under any of its names.

    partly: where the file is not of a state_dict, but may have some of these tensors.
    """
    if given is None:
        return {}
    first_names, partial = _first_names(model), partly is not None
    if partly is not None:
        first_names = {name: name for name in partly} | first_names
    names: dict[str, str] = first_names if partial else state_names(model)
    state: Mapping[str, Tensor] = model.state_dict(keep_vars=True) if partly is None else partly
    with _opened(given) as reader:
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
        said = "; ".join(f"{what} {_few(found)}" for what, found in kinds.items() if found)
        raise BadInput(
            "E317",
            f"the weights in {given} are not those of the model of task {task.name}: the file {said}",
            fix="save them with safetensors.torch.save_file(model.state_dict(), ...) from the same model",
        )
    return {name: there[first] for name, first in first_names.items() if first in there}


def _first_names(model: nn.Module) -> dict[str, str]:
    """Every name of a parameter or buffer, and the first that the tensor has."""
    first: dict[int, str] = {}
    listed = (*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False))
    for name, tensor in listed:
        first.setdefault(id(tensor), name)
    return {name: first[id(tensor)] for name, tensor in listed}


def _copy(given: Path | None, sources: Mapping[str, str], values: Mapping[str, Tensor], writer: TensorWriter) -> None:
    """Write what the given file has, a part at a time, in the dtypes of the model."""
    if given is None:
        return
    with _opened(given) as reader:
        for name, source in sources.items():
            count, dtype = values[name].numel(), values[name].dtype
            step = PART_BYTES // torch.float64.itemsize
            for start in range(0, count, step):
                part = reader.read(source, start, min(start + step, count))
                writer.write(name, part.to(dtype), start=start)


def _opened(given: Path) -> TensorReader:
    try:
        return TensorReader(given)
    except CheckpointError as error:
        raise BadInput("E318", f"no weights: {error.facts}", fix="give a .safetensors file") from error


def _few(names: list[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
