"""`digits` and `digits_local`, trained by one process in a few seconds."""

import pytest
import torch
from marking import with_slow

from cutset.models import SampleStream, Task, TaskError, digits, digits_large, digits_local


def train(task: Task, *, optimizer: str, lr: float, epochs: int, seed: int) -> float:
    """Test accuracy after SGD, or Adagrad as the paper writes it: p -= lr * g / sqrt(sum of g^2, this one included)."""
    data, test = task.data("train"), task.data("test")
    model = task.build(seed=seed)
    parameters = list(model.parameters())
    squares = [torch.zeros_like(p) for p in parameters]
    stream = SampleStream(len(data), batch=task.batch, seed=seed)
    for step in range(stream.steps(epochs)):
        rows = data.rows(stream.indices(step))
        gradients = torch.autograd.grad(task.loss(model(*rows.inputs), *rows.targets), parameters)
        with torch.no_grad():
            for p, square, g in zip(parameters, squares, gradients, strict=True):
                square += g * g
                p -= lr * (g if optimizer == "sgd" else torch.where(square > 0, g / square.sqrt(), 0))
    with torch.no_grad():
        return task.correct(model(*test.inputs), *test.targets) / len(test)


def test_the_split_is_the_whole_set_each_digit_once():
    train_data, test_data = digits().data("train"), digits().data("test")
    assert (len(train_data), len(test_data)) == (1437, 360)
    images = torch.cat([train_data.inputs[0], test_data.inputs[0]])
    labels = torch.cat([train_data.targets[0], test_data.targets[0]])
    assert labels.bincount().tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert int((images * 16).sum()) == 561718
    assert (float(images.min()), float(images.max())) == (0, 1)
    assert len(images.unique(dim=0)) == 1797


def test_both_tasks_see_the_same_samples():
    flat, square = digits().data("test"), digits_local().data("test")
    assert torch.equal(flat.inputs[0].reshape(-1, 1, 8, 8), square.inputs[0])
    assert torch.equal(flat.targets[0], square.targets[0])


@pytest.mark.parametrize("factory", [digits, digits_local, digits_large])
def test_example_is_like_the_data(factory):
    task = factory()
    example, rows = task.example(3), task.data("train").rows(torch.arange(3))
    for a, b in zip((*example.inputs, *example.targets), (*rows.inputs, *rows.targets), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)


@pytest.mark.parametrize(("factory", "parameters"), [(digits, 17226), (digits_local, 13514), (digits_large, 1808970)])
def test_parameters(factory, parameters):
    assert sum(p.numel() for p in factory().build(seed=0, device="meta").parameters()) == parameters


def test_enlarged_images_are_the_same_pictures():
    small, large = digits_local().data("test").inputs[0], digits_large().data("test").inputs[0]
    assert torch.allclose(large.unflatten(3, (8, 3)).unflatten(2, (8, 3))[..., 1, :, 1], small, atol=1e-6)
    assert (float(large.min()), float(large.max())) == (0, 1)


def test_unknown_splits_are_refused():
    with pytest.raises(TaskError, match="'valid' is not known; known: train, test"):
        digits().data("valid")


@pytest.mark.parametrize(
    ("factory", "optimizer", "lr", "epochs"),
    with_slow([(digits, "adagrad", 0.02, 30)], [(digits, "sgd", 0.1, 30), (digits_local, "adagrad", 0.05, 20)]),
)
def test_trains_to_96_percent(factory, optimizer, lr, epochs):
    assert train(factory(), optimizer=optimizer, lr=lr, epochs=epochs, seed=0) >= 0.96
