"""A task in float64 is the same task with wider numbers."""

import pytest
import torch
from torch import nn

from cutset.models import digits_softmax, logistic, mnist_softmax
from cutset.models.task import Data, Task, make_example_batches
from cutset.models.tasks.float64 import to_float64, zero_weights


def samples(split: str) -> Data:
    """Of three dtypes."""
    size = 6 if split == "train" else 4
    generator = torch.Generator().manual_seed(size)
    inputs, half, targets = (torch.randn(size, *shape, generator=generator) for shape in ((3,), (), ()))
    return Data((inputs, half.half()), (torch.arange(size) % 2, targets))


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


def made(**more) -> Task:
    return Task("small", model, nn.functional.cross_entropy, make_example_batches(((3,),), classes=2), samples, **more)


def test_the_weights_are_the_same_numbers():
    task = made()
    narrow, wide = (one.build(seed=3).state_dict() for one in (task, to_float64(task)))
    assert list(narrow) == list(wide)
    for name, tensor in narrow.items():
        counts = name.endswith("num_batches_tracked")
        assert wide[name].dtype == (torch.int64 if counts else torch.float64)
        assert torch.equal(wide[name], tensor.to(wide[name].dtype))


@pytest.mark.parametrize("split", ["train", "test"])
def test_data_are_the_same_numbers(split: str):
    task = made()
    narrow, wide = task.data(split), to_float64(task).data(split)
    assert [t.dtype for t in wide.inputs] == [torch.float64, torch.float16]
    assert [t.dtype for t in wide.targets] == [torch.int64, torch.float64]
    for a, b in zip((*narrow.inputs, *narrow.targets), (*wide.inputs, *wide.targets), strict=True):
        assert torch.equal(a.to(b.dtype), b)
    assert len(wide) == len(narrow)


def test_the_example_is_like_the_data():
    example = to_float64(made()).example(5)
    assert [(t.dtype, tuple(t.shape)) for t in example.inputs] == [(torch.float64, (5, 3))]
    assert [(t.dtype, tuple(t.shape)) for t in example.targets] == [(torch.int64, (5,))]


def test_the_rest_is_left_as_it_is():
    task = made(batch=7, leaf_modules=("0",), correct=lambda outputs, targets: 0)
    wide = to_float64(task)
    for field in ("name", "loss", "correct", "batch", "leaf_modules"):
        assert getattr(wide, field) is getattr(task, field)
    assert task.build(seed=0)[0].weight.dtype == torch.float32


def test_a_task_without_data_has_none():
    task = Task(
        "planned", lambda: nn.Linear(3, 2), nn.functional.cross_entropy, make_example_batches(((3,),), classes=2)
    )
    assert to_float64(task).data is None


def test_wider_is_no_wider_the_second_time():
    once, twice = to_float64(made()), to_float64(to_float64(made()))
    assert torch.equal(once.build(seed=1)[0].weight, twice.build(seed=1)[0].weight)
    assert torch.equal(once.data("train").inputs[0], twice.data("train").inputs[0])


def test_loss_and_gradient_are_in_float64():
    task = to_float64(made())
    module, data = task.build(seed=0), task.data("train")
    loss = task.loss(module(data.inputs[0]), data.targets[0])
    loss.backward()
    assert loss.dtype == torch.float64
    assert {p.grad.dtype for p in module.parameters()} == {torch.float64}


def test_the_model_may_be_built_without_memory():
    weight = to_float64(made()).build(seed=0, device="meta")[0].weight
    assert (weight.is_meta, weight.dtype) == (True, torch.float64)


def test_zeros_is_the_layer_itself_with_zeros():
    linear = nn.Linear(5, 3)
    assert zero_weights(linear) is linear
    assert not any(p.any() for p in linear.parameters())
    assert all(p.requires_grad for p in linear.parameters())
    bare = zero_weights(nn.Linear(5, 3, bias=False))
    assert not bare.weight.any()


@pytest.mark.parametrize("factory", [digits_softmax, mnist_softmax, logistic], ids=lambda factory: factory.__name__)
def test_bundled_tasks_of_batch_methods_know_both(factory):
    narrow, wide = factory(), factory(double=True)
    for task, dtype in ((narrow, torch.float32), (wide, torch.float64)):
        weights = task.build(seed=0).state_dict().values()
        assert {w.dtype for w in weights} == {dtype}
        assert {t.dtype for t in task.example(2).inputs if t.is_floating_point()} == {dtype}
        assert not any(p.any() for p in task.build(seed=0).parameters())
