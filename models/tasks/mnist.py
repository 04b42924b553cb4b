"""`mnist`, `mnist_conv`, `mnist_softmax`: MNIST's 70,000 handwritten digits, read from the user's four IDX files."""

from collections.abc import Callable

from torch import nn

from ..readers.data_sources import Reader, open_data
from ..task import Data, Task, TaskError, make_example_batches
from .float64 import to_float64, zero_weights

FILES = "train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte, t10k-labels-idx1-ubyte (or .gz)"


def mnist(data: str | None = None) -> Task:
    """The 784-512-512-10 perceptron; 5 epochs of Adagrad at 0.02 end near 98 % test accuracy, of SGD at 0.1 at 96.7 %.

    data: "mnist:DIR"; without it the task can be planned but not trained.
    """
    return _task("mnist", mlp, data)


def mnist_conv(data: str | None = None) -> Task:
    """A net like LeNet-5 (LeCun et al., 1998): two convolutions with pooling, two linear layers. data: "mnist:DIR"."""
    return _task("mnist_conv", lenet, data)


def mnist_softmax(data: str | None = None, double: bool = False) -> Task:
    """Softmax regression from zero weights, 7,850 parameters: convex, for batch methods. double: in float64."""
    task = _task("mnist_softmax", softmax, data)
    return to_float64(task) if double else task


def softmax() -> nn.Module:
    """7,850 parameters, all zero; takes [b, 1, 28, 28]."""
    return nn.Sequential(nn.Flatten(), zero_weights(nn.Linear(784, 10)))


def mlp() -> nn.Module:
    """669,706 parameters; takes [b, 1, 28, 28]."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(784, 512),
        nn.ReLU(),
        nn.Linear(512, 512),
        nn.ReLU(),
        nn.Linear(512, 10),
    )


def lenet() -> nn.Module:
    """80,202 parameters; takes [b, 1, 28, 28]."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 5),  # [b, 16, 24, 24]
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 5),  # [b, 32, 8, 8]
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(512, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )


def _task(name: str, model: Callable[[], nn.Module], data: str | None) -> Task:
    return Task(
        name=name,
        model=model,
        loss=nn.functional.cross_entropy,
        example=make_example_batches(((1, 28, 28),), classes=10),
        data=_nowhere(name) if data is None else open_data(data),
        batch=128,
    )


def _nowhere(name: str) -> Reader:
    def read(split: str) -> Data:
        raise TaskError(
            f"task {name} needs its {split} images: a folder with {FILES}",
            fix="--data mnist:DIR",
        )

    return read
