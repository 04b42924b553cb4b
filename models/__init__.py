"""Bundled tasks and the `Task` that a user brings. Depends on torch and numpy; a module is loaded when first asked for.

Modules stand in packages of their own, since importing a submodule hides a task of the same name.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .sample_stream import SampleStream
    from .task import Data, Task, TaskError
    from .tasks.alexnet import alexnet
    from .tasks.digits import digits, digits_large, digits_local, digits_softmax
    from .tasks.distbelief_images import local_80m, local_330m, local_1700m, local_net
    from .tasks.locally_connected import LocallyConnected2d
    from .tasks.logistic import logistic
    from .tasks.mnist import mnist, mnist_conv, mnist_softmax
    from .tasks.resnet import resnet
    from .tasks.speech import fsdd, speech
    from .tasks.transformer import transformer
    from .tasks.word2vec import word2vec
    from .tasks.word_vectors import WordVectors

_HOME = {
    "Data": "task",
    "LocallyConnected2d": "tasks.locally_connected",
    "SampleStream": "sample_stream",
    "Task": "task",
    "TaskError": "task",
    "alexnet": "tasks.alexnet",
    "digits": "tasks.digits",
    "digits_large": "tasks.digits",
    "digits_local": "tasks.digits",
    "digits_softmax": "tasks.digits",
    "fsdd": "tasks.speech",
    "local_1700m": "tasks.distbelief_images",
    "local_330m": "tasks.distbelief_images",
    "local_80m": "tasks.distbelief_images",
    "local_net": "tasks.distbelief_images",
    "logistic": "tasks.logistic",
    "mnist": "tasks.mnist",
    "mnist_conv": "tasks.mnist",
    "mnist_softmax": "tasks.mnist",
    "resnet": "tasks.resnet",
    "speech": "tasks.speech",
    "transformer": "tasks.transformer",
    "word2vec": "tasks.word2vec",
    "WordVectors": "tasks.word_vectors",
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
    "digits_large",
    "digits_local",
    "digits_softmax",
    "fsdd",
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
