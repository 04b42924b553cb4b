"""Trained values are read box by box from files and from memory alike; test_evaluate.py has checkpoints."""

from pathlib import Path

import pytest
import torch
from descriptors import open_files
from safetensors.torch import save_file

from cutset.errors import CheckpointError
from cutset.tools.task.weight_source import FallbackWeights, InMemoryWeights, open_weights, read_tensors_from

TENSOR = torch.arange(12.0).reshape(3, 4)
BOX = ((1, 3), (0, 2))


def test_a_file_is_read_box_by_box_and_closed(tmp_path: Path) -> None:
    save_file({"a": TENSOR}, tmp_path / "a.safetensors")
    before = open_files()
    with open_weights(tmp_path / "a.safetensors") as found:
        assert (found.shape("a"), found.shape("b")) == ((3, 4), None)
        assert torch.equal(found.read_box("a", BOX, (3, 4)), TENSOR[1:3, :2])
        assert len(open_files() - before) == 1
    assert not open_files() - before


def test_a_folder_without_a_checkpoint_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=str(tmp_path)), open_weights(tmp_path):
        pass


def test_what_the_first_of_two_does_not_have_is_of_the_second() -> None:
    both = FallbackWeights(InMemoryWeights({"a": TENSOR}), InMemoryWeights({"a": -TENSOR, "b": TENSOR + 1}))
    assert torch.equal(both.read_box("a", BOX, (3, 4)), TENSOR[1:3, :2])
    assert torch.equal(both.read_box("b", BOX, (3, 4)), TENSOR[1:3, :2] + 1)
    assert both.shape("c") is None


def test_tensors_are_read_one_by_one_from_the_file(tmp_path: Path) -> None:
    tensors = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.tensor(3)}
    save_file(tensors, tmp_path / "initial.safetensors")
    value = read_tensors_from(str(tmp_path / "initial.safetensors"))
    assert all(torch.equal(value(name), tensor) for name, tensor in tensors.items())
