"""Tensors without values are those that torch makes."""

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from cutset.partition.ir.empty_copy import empty_copy, fake_like, make_fake


def test_a_fake_tensor_is_the_one_that_its_class_makes() -> None:
    mode, bare = FakeTensorMode(), torch.empty_strided((3, 4), (1, 3), device="meta")
    made, expected = make_fake(bare, mode), FakeTensor(mode, bare, "cpu")
    assert vars(made) == vars(expected)
    assert made.fake_mode is mode
    assert (made.device, made.shape, made.stride(), made.dtype) == (torch.device("cpu"), (3, 4), (1, 3), torch.float32)
    assert torch._C._dispatch_keys(made) == torch._C._dispatch_keys(expected)
    with mode:
        assert (made @ made.T).shape == (3, 3)


def test_a_copy_without_values_has_parameters_that_are_trained_or_not() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    model[0].bias.requires_grad_(False)
    mode = FakeTensorMode()
    copied = empty_copy(model, lambda tensor: fake_like(tensor, mode))
    for (name, tensor), (other, made) in zip(model.named_parameters(), copied.named_parameters(), strict=True):
        assert name == other
        assert isinstance(made, nn.Parameter)
        assert isinstance(made, FakeTensor)
        assert (made.requires_grad, made.is_leaf) == (tensor.requires_grad, True)
    assert all(isinstance(made, FakeTensor) and not made.requires_grad for made in copied.buffers())
    assert not isinstance(copied[1].running_mean, nn.Parameter)  # type: ignore[index]
