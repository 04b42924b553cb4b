"""Tensors that several processes write: seen by all at once, found by what was told alone, and gone with the last."""

import gc
import multiprocessing
import os

import msgspec
import pytest
import torch
from descriptors import open_files
from shared_writer import write_five

from cutset.ps.server.shared_tensors import SharedTensorLocation, SharedTensors, TensorRegion
from cutset.runtime.channel.shared_memory import Offer

TENSORS = {
    "value": torch.arange(5000, dtype=torch.float32),
    "counts": torch.zeros(3, dtype=torch.int64),
    "none": torch.zeros(0),
    "sum": torch.ones(1025, dtype=torch.float64),
}


LAYOUT = {name: (tensor.dtype, tensor.numel()) for name, tensor in TENSORS.items()}


@pytest.fixture
def made():
    shared = SharedTensors.create(LAYOUT)
    for name, tensor in TENSORS.items():
        shared.tensors[name].copy_(tensor)
    return shared


def test_all_see_what_one_writes(made):
    found = SharedTensors.attach(made.location)
    assert list(found.tensors) == list(TENSORS)
    for name, tensor in TENSORS.items():
        assert torch.equal(found.tensors[name], tensor)
    found.tensors["counts"][2] = 7
    made.tensors["value"].mul_(2)
    assert made.tensors["counts"].tolist() == [0, 0, 7]
    assert torch.equal(found.tensors["value"], 2 * TENSORS["value"])


def test_new_memory_is_zero():
    assert not any(tensor.any() for tensor in SharedTensors.create(LAYOUT).tensors.values())


def test_each_begins_at_a_page(made):
    assert all(tensor.data_ptr() % 4096 == 0 for name, tensor in made.tensors.items() if name != "none")


@pytest.mark.run
def test_another_process_writes_too(made):
    plain = msgspec.to_builtins(made.location, builtin_types=(bytes,))
    process = multiprocessing.get_context("spawn").Process(target=write_five, args=(plain,))
    process.start()
    process.join(60)
    assert process.exitcode == 0
    assert made.tensors["counts"].tolist() == [5, 0, 0]


@pytest.mark.run
def test_nothing_is_left_of_it():
    gc.collect()
    before = _traces()
    made = SharedTensors.create(LAYOUT)
    found = SharedTensors.attach(made.location)
    where, value = made.location, found.tensors["value"].fill_(3)
    del made, found
    gc.collect()
    assert (value == 3).all()  # who has it mapped keeps it
    with pytest.raises(OSError, match=r"No such file|no shared memory|another one"):
        SharedTensors.attach(where)
    del value
    assert not _traces() - before


def _traces() -> set[object]:
    """Named shared memory, and the files that this process has open."""
    return set(os.listdir("/dev/shm")) | open_files()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"pid": 2**22 - 1}, "No such file"),
        ({"token": bytes(16)}, "another one"),
        ({"size": 8192}, "not of the size"),
    ],
)
def test_other_memory_is_refused(made, change, said):
    offer = msgspec.structs.replace(made.location.offer, **change)
    with pytest.raises(OSError, match=said):
        SharedTensors.attach(SharedTensorLocation(offer, made.location.regions))


@pytest.mark.parametrize(
    "spot",
    [
        TensorRegion("value", "float32", 4096, 1 << 20),
        TensorRegion("value", "float32", 0, 4),
        TensorRegion("value", "float32", 4096, -1),
        TensorRegion("value", "object", 4096, 1),
    ],
)
def test_places_outside_are_refused(made, spot):
    with pytest.raises(OSError, match="does not hold"):
        SharedTensors.attach(SharedTensorLocation(made.location.offer, [spot]))


def test_repr_names_what_is_there(made):
    assert "value float32[5000]" in repr(made)
    assert isinstance(made.location.offer, Offer)
