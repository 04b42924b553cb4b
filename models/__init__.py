"""Bundled tasks and the `Task` that a user brings. Depends on torch alone, loaded when a name is first asked for.

The modules are not named like the tasks they hold: importing a submodule would hide a task of the same name.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .digits_tasks import digits, digits_local
    from .local import LocallyConnected2d
    from .mnist_tasks import mnist, mnist_conv
    from .stream import SampleStream
    from .task import Data, Task, TaskError

_HOME = {
    "Data": "task",
    "LocallyConnected2d": "local",
    "SampleStream": "stream",
    "Task": "task",
    "TaskError": "task",
    "digits": "digits_tasks",
    "digits_local": "digits_tasks",
    "mnist": "mnist_tasks",
    "mnist_conv": "mnist_tasks",
}

__all__ = [
    "Data",
    "LocallyConnected2d",
    "SampleStream",
    "Task",
    "TaskError",
    "digits",
    "digits_local",
    "mnist",
    "mnist_conv",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOME[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
