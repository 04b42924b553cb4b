"""Bundled tasks and the `Task` that a user brings. Depends on torch and numpy; a module is loaded when first asked for.

The modules are not named like the tasks they hold: importing a submodule would hide a task of the same name.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .alex_net import alexnet
    from .digits_tasks import digits, digits_local, digits_softmax
    from .gpt import transformer
    from .image_nets import local_80m, local_330m, local_1700m, local_net
    from .local import LocallyConnected2d
    from .logistic_task import logistic
    from .mnist_tasks import mnist, mnist_conv, mnist_softmax
    from .residual_net import resnet
    from .speech_net import speech
    from .stream import SampleStream
    from .task import Data, Task, TaskError
    from .word2vec_task import word2vec
    from .word_vectors import WordVectors

_HOME = {
    "Data": "task",
    "LocallyConnected2d": "local",
    "SampleStream": "stream",
    "Task": "task",
    "TaskError": "task",
    "alexnet": "alex_net",
    "digits": "digits_tasks",
    "digits_local": "digits_tasks",
    "digits_softmax": "digits_tasks",
    "local_1700m": "image_nets",
    "local_330m": "image_nets",
    "local_80m": "image_nets",
    "local_net": "image_nets",
    "logistic": "logistic_task",
    "mnist": "mnist_tasks",
    "mnist_conv": "mnist_tasks",
    "mnist_softmax": "mnist_tasks",
    "resnet": "residual_net",
    "speech": "speech_net",
    "transformer": "gpt",
    "word2vec": "word2vec_task",
    "WordVectors": "word_vectors",
}

__all__ = [
    "Data",
    "LocallyConnected2d",
    "SampleStream",
    "Task",
    "TaskError",
    "WordVectors",
    "alexnet",
    "digits",
    "digits_local",
    "digits_softmax",
    "local_80m",
    "local_330m",
    "local_1700m",
    "local_net",
    "logistic",
    "mnist",
    "mnist_conv",
    "mnist_softmax",
    "resnet",
    "speech",
    "transformer",
    "word2vec",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOME[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
