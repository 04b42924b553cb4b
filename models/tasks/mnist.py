"""`mnist`, `mnist_conv`, `mnist_softmax`: MNIST's 70,000 handwritten digits, read from the user's four IDX files."""

from collections.abc import Callable

from torch import nn

from ..readers.data_sources import Reader, open_data
from ..task import Data, Task, TaskError, make_example_batches
from .float64 import to_float64, zero_weights

FILES = "train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte, t10k-labels-idx1-ubyte (or .gz)"


def mnist(data: str | None = None) -> Task:
    """Train a 784-512-512-10 perceptron.

    5 epochs of Adagrad at 0.02 reach about 98 % test accuracy, 5 of SGD at 0.1 reach 96.7 %. data: "mnist:DIR"; without
    it the task can be planned but not trained.
    """
    return _task("mnist", mlp, data, epochs=5)


def mnist_conv(data: str | None = None) -> Task:
    """Train two convolutions with pooling and two linear layers, like LeNet-5 (LeCun, 1998). data: "mnist:DIR"."""
    return _task("mnist_conv", lenet, data, epochs=3)


def mnist_softmax(data: str | None = None, double: bool = False) -> Task:
    """Train a softmax regression from zero weights, with 7,850 parameters: a convex problem, for batch methods.

    data: "mnist:DIR". double: compute in float64 instead of float32.
    """
    task = _task("mnist_softmax", softmax, data, epochs=5)
    return to_float64(task) if double else task


def softmax() -> nn.Module:
    """Return the linear model from images [b, 1, 28, 28] to scores [b, 10]; its 7,850 parameters are zero."""
    return nn.Sequential(nn.Flatten(), zero_weights(nn.Linear(784, 10)))


def mlp() -> nn.Module:
    """Return the perceptron from images [b, 1, 28, 28] to scores [b, 10]; it has 669,706 parameters."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(784, 512),
        nn.ReLU(),
        nn.Linear(512, 512),
        nn.ReLU(),
        nn.Linear(512, 10),
    )


def lenet() -> nn.Module:
    """Return the net from images [b, 1, 28, 28] to scores [b, 10]; it has 80,202 parameters."""
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


def _task(name: str, model: Callable[[], nn.Module], data: str | None, *, epochs: int) -> Task:
    return Task(
        name=name,
        model=model,
        loss=nn.functional.cross_entropy,
        example=make_example_batches(((1, 28, 28),), classes=10),
        data=_nowhere(name) if data is None else open_data(data),
        batch=128,
        epochs=epochs,
    )


def _nowhere(name: str) -> Reader:
    def read(split: str) -> Data:
        raise TaskError(
            f"task {name} needs its {split} images: a folder with {FILES}",
            fix="--data mnist:DIR",
        )

    return read
