"""From a name to a `Task`: "pkg.module:factory" or "file.py:factory", which gives a Task or an nn.Module.

Whatever the user's code does wrong becomes BadInput that names the line; TaskError is the models' own word for it.
"""

import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import msgspec

from ..partition.errors import BadInput, UsageError

if TYPE_CHECKING:
    from torch import Tensor

    from ..models.task import Data, Task


class TaskSpec(msgspec.Struct, frozen=True):
    """How a task is named on the command line. inputs: "32x3x224x224" or "32x128:int64", for a bare module."""

    model: str
    data: str | None = None
    inputs: tuple[str, ...] = ()
    batch: int | None = None


def load_task(spec: TaskSpec) -> "Task":
    """The task of a spec; UsageError or BadInput says what is wrong with it and where."""
    from torch import nn

    from ..models.task import Task

    module_name, colon, attribute = spec.model.rpartition(":")
    if not colon or not module_name or not attribute:
        raise UsageError(
            "E210",
            f"{spec.model!r} does not name a model",
            fix="use pkg.module:factory or file.py:factory, as cutset.models:digits",
        )
    factory = _attribute(_module(module_name), attribute, module_name)
    made = _make(factory, spec)
    if isinstance(made, Task):
        return made
    if not isinstance(made, nn.Module):
        raise BadInput(
            "E304",
            f"{spec.model} gives {_article(made)}, not a cutset.Task or a torch.nn.Module",
            fix="return one of these",
        )
    return _bare(spec, factory)


def read_split(task: "Task", split: str) -> "Data":
    """The samples of a split; BadInput where the task has none or its files are wrong."""
    from ..models.task import TaskError

    if task.data is None:
        raise BadInput("E310", f"task {task.name} has no data to train on", fix="return a cutset.Task with data=...")
    try:
        return task.data(split)
    except TaskError as error:
        raise BadInput("E311", error.facts, fix=error.fix) from error


def build_model(task: "Task", *, seed: int, device: str = "cpu") -> Any:
    """The task's module; BadInput names the line where its factory fails."""
    from ..models.task import TaskError

    try:
        return task.build(seed=seed, device=device)
    except TaskError as error:
        raise BadInput("E304", error.facts, fix=error.fix) from error
    except Exception as error:
        raise BadInput("E303", f"the model of task {task.name} fails{_line(error)}: {_said(error)}") from error


def example_batch(task: "Task", batch: int) -> "Data":
    """The task's example batch; BadInput where the task's own code fails."""
    from ..models.task import TaskError

    try:
        return task.example(batch)
    except TaskError as error:
        raise BadInput("E312", error.facts, fix=error.fix) from error
    except Exception as error:
        raise BadInput("E312", f"the example batch of task {task.name} fails{_line(error)}: {_said(error)}") from error


def _module(name: str) -> ModuleType:
    if name.endswith(".py"):
        return _file(Path(name).expanduser())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(error.name + ".")):
            raise BadInput(
                "E301",
                f"there is no module {error.name!r}",
                fix="check the spelling, or name a file: path/to/file.py:factory",
            ) from error
        raise BadInput("E303", f"{name} cannot be imported{_line(error)}: {_said(error)}") from error
    except Exception as error:
        raise BadInput("E303", f"{name} cannot be imported{_line(error)}: {_said(error)}") from error


def _file(path: Path) -> ModuleType:
    if not path.is_file():
        raise BadInput("E301", f"there is no file {path}", fix="check the path")
    name = f"cutset_user_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and torch look their module up by name
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise BadInput("E303", f"{path} cannot be imported{_line(error)}: {_said(error)}") from error
    return module


def _attribute(module: ModuleType, name: str, module_name: str) -> Any:
    if hasattr(module, name):
        return getattr(module, name)
    there = sorted(n for n in dir(module) if not n.startswith("_") and callable(getattr(module, n, None)))
    raise BadInput(
        "E302", f"{module_name} has no {name!r}; it has {', '.join(there) or 'no functions'}", fix="check the spelling"
    )


def _make(factory: Any, spec: TaskSpec) -> Any:
    from ..models.task import Task, TaskError

    if isinstance(factory, Task) or not callable(factory) or _is_module(factory):
        return factory
    accepts_data = "data" in _parameters(factory)
    if spec.data is not None and not accepts_data:
        raise UsageError(
            "E211", f"{spec.model} takes no data, but --data {spec.data} was given", fix="leave --data out"
        )
    try:
        return factory(data=spec.data) if spec.data is not None else factory()
    except TaskError as error:
        raise BadInput("E312", error.facts, fix=error.fix) from error
    except Exception as error:
        raise BadInput("E303", f"{spec.model} fails{_line(error)}: {_said(error)}") from error


def _is_module(value: Any) -> bool:
    from torch import nn

    return isinstance(value, nn.Module)


def _parameters(factory: Callable[..., Any]) -> set[str]:
    try:
        return set(inspect.signature(factory).parameters)
    except (TypeError, ValueError):  # a builtin without a signature
        return set()


def _bare(spec: TaskSpec, factory: Any) -> "Task":
    """A task around a module: it can be planned, with the mean square of its output for a loss, not trained."""
    from ..models.task import Data, Task

    if not spec.inputs:
        raise UsageError("E212", f"{spec.model} is a bare module: its input is unknown", fix="--input 32x3x224x224")
    inputs = tuple(_example(text) for text in spec.inputs)

    def example(batch: int) -> Data:
        return Data(tuple(t[:1].expand(batch, *t.shape[1:]).contiguous() for t in inputs), ())

    return Task(
        name=spec.model.rpartition(":")[2],
        model=lambda: factory if _is_module(factory) else factory(),
        loss=mean_square,
        example=example,
        batch=inputs[0].shape[0],
    )


def mean_square(output: Any) -> "Tensor":
    """The loss of a module that came without one."""
    import torch
    from torch.utils._pytree import tree_leaves

    first = next(leaf for leaf in tree_leaves(output) if isinstance(leaf, torch.Tensor))
    return first.float().square().mean()


def _example(text: str) -> "Tensor":
    import torch

    shape, _, dtype = text.partition(":")
    kind = getattr(torch, dtype or "float32", None)
    sizes = shape.lower().split("x")
    if not isinstance(kind, torch.dtype) or not all(size.isdigit() and int(size) > 0 for size in sizes):
        raise UsageError("E213", f"--input {text!r} is not a shape", fix="--input 32x3x224x224 or --input 32x128:int64")
    return torch.zeros([int(size) for size in sizes], dtype=kind)


def _line(error: BaseException) -> str:
    """The innermost line of the user's own code in a traceback."""
    own = str(Path(__file__).parent)
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith((own, "<"))]
    mine = [f for f in frames if "site-packages" not in f.filename and "/lib/python" not in f.filename]
    if isinstance(error, SyntaxError) and error.filename:
        return f" at {error.filename}:{error.lineno}"
    return f" at {mine[-1].filename}:{mine[-1].lineno} ({(mine[-1].line or '').strip()})" if mine else ""


def _said(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__


def _article(value: Any) -> str:
    name = type(value).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"
