"""From a name to a `Task`: "pkg.module:factory" or "file.py:factory", which returns a Task or an nn.Module.

factory_name.py reads the name and its arguments. Whatever the user's code does wrong becomes a BadInput that names the
line; `TaskError` is what the models raise themselves.
"""

import difflib
import importlib
import importlib.util
import inspect
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import msgspec

from ...errors import BadInput, UsageError
from ..blame import blame, describe_error, locate, with_article
from ..samples.read_samples import example_batch
from .factory_name import FactoryName, parse_factory
from .frozen_parameters import freeze

if TYPE_CHECKING:
    from torch import Tensor, nn

    from ...models.task import Task

IMPORTING = "E306"
_importing: list[Path] = []  # files of users, whose code runs
_SHAPE = re.compile(r"[1-9][0-9]{0,17}([xX][1-9][0-9]{0,17})*")


class TaskSpec(msgspec.Struct, frozen=True):
    """How a task is named on the command line.

    model: as factory_name.py says, arguments included. inputs: "32x3x224x224" or "32x128:int64", for a bare module.
    leaf_modules: globs of modules that are not traced, beside those that the task names. autocast: the dtype in which
    torch.autocast computes the model and its loss ("bfloat16"). trust_trace: do not compare what is traced with plain
    torch. frozen: names of parameters that are not trained. unrolled: time steps of recurrent nets are operators.
    """

    model: str
    data: str | None = None
    inputs: tuple[str, ...] = ()
    batch: int | None = None
    leaf_modules: tuple[str, ...] = ()
    autocast: str = ""
    trust_trace: bool = False
    frozen: tuple[str, ...] = ()
    unrolled: bool = False


def load_task(spec: TaskSpec) -> "Task":
    """Return the task of a spec; UsageError or BadInput says what is wrong with it and where."""
    from torch import nn

    from ...models.task import Task

    name = parse_factory(spec.model)
    factory = _find_factory(_import_module(name.module, name.factory), name.factory, name.module)
    value = _call_factory(factory, spec, name)
    if isinstance(value, Task):
        if spec.inputs:
            facts = f"{spec.model} is a task, which has an example of its own"
            raise UsageError("E214", facts, fix="leave --input out")
        return freeze(value, spec.frozen)
    if not isinstance(value, nn.Module):
        raise BadInput(
            "E304",
            f"{spec.model} gives {with_article(value)}, not a cutset.Task or a torch.nn.Module",
            fix="return one of these",
        )
    return freeze(_wrap_module(spec, name, lambda: _call_factory(factory, spec, name)), spec.frozen)


def build_model(task: "Task", *, seed: int, device: str = "cpu") -> "nn.Module":
    """Build the task's module; BadInput names the line where its factory fails."""
    from torch import nn

    from .lazy_modules import initialise_lazy_modules

    if isinstance(task.model, nn.Module):
        facts = f"the model of task {task.name} is {with_article(task.model)}, not a function that makes one"
        raise BadInput("E304", facts, fix="model=lambda: ..., so that each process makes its own")
    with blame("E303", f"the model of task {task.name}", stated="E304"):
        model = task.build(seed=seed, device=device)
        return initialise_lazy_modules(model, lambda: example_batch(task, task.batch), seed=seed, device=device)


def _import_module(name: str, attribute: str) -> ModuleType:
    if name.endswith(".py"):
        return _import_file(Path(os.path.expanduser(name)))
    here = str(Path.cwd())
    if here not in sys.path:  # as for `python -m`; a console script leaves it out
        sys.path.insert(0, here)
    file = os.path.expanduser(name + ".py")
    fix = "check the spelling, or name a file: path/to/file.py:FACTORY"
    if os.path.isfile(file):
        fix = f"{file}:{attribute}"
    if "/" in name or name.startswith("."):
        raise BadInput("E301", f"there is no module {name!r}", fix=fix)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(error.name + ".")):
            raise BadInput("E301", f"there is no module {error.name!r}", fix=fix) from error
        raise _import_error(name, error, f"python -m {name}") from error
    except (Exception, SystemExit) as error:
        raise _import_error(name, error, f"python -m {name}") from error


def _import_file(path: Path) -> ModuleType:
    if not os.path.isfile(path):  # also where no file can have that name
        raise BadInput("E301", f"there is no file {path}", fix="check the path")
    name = f"cutset_user_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and torch look their module up by name
    _importing.append(path)
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        spec.loader.exec_module(module)
    except BadInput as error:
        if error.code != IMPORTING:
            raise _import_error(str(path), error, f"python {path}") from error
        raise
    except (Exception, SystemExit) as error:
        raise _import_error(str(path), error, f"python {path}") from error
    finally:
        _importing.remove(path)
    return module


def refuse_while_importing(what: str) -> None:
    """Raise BadInput where a file of the user calls this as it is imported for its task: it would do so for ever."""
    if _importing:
        facts = f"{what} is called by {_importing[-1]} while that is imported for its task"
        raise BadInput(IMPORTING, facts, fix='put the call under: if __name__ == "__main__":')


def _import_error(name: str, error: BaseException, command: str) -> BadInput:
    return BadInput(
        "E303",
        f"{name} cannot be imported{locate(error)}: {describe_error(error)}",
        fix=f"correct it there; the whole traceback: {command}",
    )


def _find_factory(module: ModuleType, name: str, module_name: str) -> Any:
    if hasattr(module, name):
        return getattr(module, name)
    there = _list_factories(module)
    near = difflib.get_close_matches(name, there, n=1, cutoff=0.5)
    raise BadInput(
        "E302",
        f"{module_name} has no {name!r}; it has {', '.join(there) or 'nothing to call'}",
        fix=f"{module_name}:{near[0]}" if near else "check the spelling",
    )


def _list_factories(module: ModuleType) -> list[str]:
    """Return the names that a module exports, or defines itself, and that may be factories."""
    exported = getattr(module, "__all__", None)
    names = [n for n in dir(module) if not n.startswith("_")] if exported is None else exported
    own = [n for n in names if exported is not None or getattr(getattr(module, n), "__module__", "") == module.__name__]
    return sorted(n for n in own if callable(getattr(module, n, None)))


def _call_factory(factory: Any, spec: TaskSpec, name: FactoryName) -> Any:
    """Return what the factory returns; a Task or a module instance stands for itself."""
    from torch import nn

    from ...models.task import Task

    if isinstance(factory, Task | nn.Module) or not callable(factory):
        if name.arguments:
            raise UsageError(
                "E216", f"{name.factory} is {with_article(factory)} and takes no arguments", fix="leave them out"
            )
        return factory
    signature = _signature(factory)
    _check_arguments(name, signature)
    arguments = {"data": spec.data} if spec.data is not None else {}
    if spec.data is not None and "data" not in signature.parameters:
        raise UsageError(
            "E211", f"{spec.model} takes no data, but --data {spec.data} was given", fix="leave --data out"
        )
    if arguments.keys() & name.arguments.keys():
        raise UsageError("E211", f"{spec.model} has data, and --data {spec.data} was given", fix="leave --data out")
    arguments |= name.arguments
    try:
        signature.bind(**arguments)
    except TypeError as error:
        names = ", ".join(arguments)
        raise BadInput(
            "E305",
            f"{spec.model} cannot be called {f'with {names} alone' if names else 'without arguments'}: {error}",
            fix="give them defaults, or name a function that needs none",
        ) from error
    with blame("E303", spec.model, stated="E312"):
        return factory(**arguments)


def _check_arguments(name: FactoryName, signature: inspect.Signature) -> None:
    """Raise UsageError, with the nearest name, where an argument is given that the factory does not have."""
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    known = [p.name for p in signature.parameters.values() if p.kind in by_name]
    if any(p.kind == inspect.Parameter.VAR_KEYWORD for p in signature.parameters.values()):
        return
    for argument in name.arguments:
        if argument not in known:
            near = difflib.get_close_matches(argument, known, n=1, cutoff=0.5)
            raise UsageError(
                "E216",
                f"{name.factory} takes no argument {argument!r}; it takes {', '.join(known) or 'none'}",
                fix=f"{near[0]}=..." if near else "leave it out",
            )


def _signature(factory: Callable[..., Any]) -> inspect.Signature:
    try:
        return inspect.signature(factory)
    except (TypeError, ValueError):  # a builtin without a signature
        return inspect.Signature()


def _wrap_module(spec: TaskSpec, name: FactoryName, model: Callable[[], Any]) -> "Task":
    """Return a task around a module: it can be planned, with the mean square of its output for a loss, not trained."""
    from ...models.task import Data, Task

    if not spec.inputs:
        raise UsageError("E212", f"{spec.model} is a bare module: its input is unknown", fix="--input 32x3x224x224")
    inputs = tuple(_parse_shape(text) for text in spec.inputs)

    def example(batch: int) -> Data:
        return Data(tuple(t[:1].expand(batch, *t.shape[1:]).contiguous() for t in inputs), ())

    return Task(
        name=name.factory,
        model=model,
        loss=mean_square,
        example=example,
        batch=inputs[0].shape[0],
    )


def mean_square(output: Any) -> "Tensor":
    """Return the mean square of the first tensor of an output: the loss of a module that came without one."""
    from ...partition.ir.pytree import first_tensor

    first = first_tensor(output)
    if first is None:
        raise TypeError(f"the model gives {with_article(output)} without a tensor")
    return first.float().square().mean()


def _parse_shape(text: str) -> "Tensor":
    import torch

    shape, _, dtype = text.partition(":")
    kind = getattr(torch, dtype or "float32", None)
    if not isinstance(kind, torch.dtype) or not _SHAPE.fullmatch(shape):
        raise UsageError("E213", f"--input {text!r} is not a shape", fix="--input 32x3x224x224 or --input 32x128:int64")
    try:
        return torch.zeros([int(size) for size in shape.lower().split("x")], dtype=kind)
    except RuntimeError as error:
        facts = f"--input {text!r} cannot be made: {describe_error(error)}"
        raise UsageError("E213", facts, fix="smaller sizes, or another dtype") from error
