"""`mnist` and `mnist_conv`; where the images come from is tested in test_sources.py."""

import struct

import pytest
import torch

from cutset.models import TaskError, mnist, mnist_conv

factories = pytest.mark.parametrize("factory", [mnist, mnist_conv])


@factories
def test_without_data_it_can_be_planned_but_not_read(factory):
    task = factory()
    with torch.device("meta"):
        assert task.model()(*task.example(2).inputs).shape == (2, 10)
    with pytest.raises(TaskError, match=r"train-images-idx3-ubyte.*t10k-labels-idx1-ubyte") as caught:
        task.data("train")
    assert caught.value.fix == "--data mnist:DIR"


@factories
def test_bad_data_strings_are_refused_at_once(factory):
    with pytest.raises(TaskError, match="kind:DIR"):
        factory(data="mnist")


@factories
def test_example_is_like_the_data_and_fits_model_and_loss(factory, tmp_path):
    (tmp_path / "t10k-images-idx3-ubyte").write_bytes(struct.pack(">4I", 0x803, 2, 28, 28) + bytes(2 * 28 * 28))
    (tmp_path / "t10k-labels-idx1-ubyte").write_bytes(struct.pack(">2I", 0x801, 2) + bytes([3, 4]))
    task = factory(data=f"mnist:{tmp_path}")
    example, rows = task.example(2), task.data("test")
    for a, b in zip((*example.inputs, *example.targets), (*rows.inputs, *rows.targets), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
    assert task.loss(task.build(seed=0)(*rows.inputs), *rows.targets).item() == pytest.approx(2.3, abs=0.2)


@pytest.mark.parametrize(("factory", "parameters"), [(mnist, 669706), (mnist_conv, 80202)])
def test_parameters(factory, parameters):
    assert sum(p.numel() for p in factory().build(seed=0, device="meta").parameters()) == parameters


def test_steps_are_of_128_samples():
    assert mnist().batch == mnist_conv().batch == 128
