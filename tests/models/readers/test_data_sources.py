"""Data named "kind:DIR"."""

import gzip
import struct
from pathlib import Path

import pytest
import torch

from cutset.models.readers.data_sources import open_data, parse_data
from cutset.models.task import TaskError


def write_mnist(folder: Path, *, images: int = 3, labels: int = 3, side: int = 28, label: int = 9) -> Path:
    for stem in ("train", "t10k"):
        pixels = bytes(i % 256 for i in range(images * side * side))
        packed = gzip.compress(struct.pack(">4I", 0x803, images, side, side) + pixels)
        (folder / f"{stem}-images-idx3-ubyte.gz").write_bytes(packed)
        (folder / f"{stem}-labels.idx1-ubyte").write_bytes(struct.pack(">2I", 0x801, labels) + bytes([label] * labels))
    return folder


def test_parse_data():
    assert parse_data("mnist:a/b:c") == ("mnist", Path("a/b:c"))
    assert parse_data("mnist:~/x") == ("mnist", Path.home() / "x")


@pytest.mark.parametrize("text", ["", "mnist", "mnist:", "/data/mnist"])
def test_other_forms_are_refused(text):
    with pytest.raises(TaskError, match="not of the form kind:DIR") as caught:
        parse_data(text)
    assert caught.value.fix == "--data mnist:DIR"


def test_unknown_kinds_are_refused():
    with pytest.raises(TaskError, match="'imagenet' is not known; known: mnist"):
        parse_data("imagenet:/data")


@pytest.mark.parametrize("split", ["train", "test"])
def test_mnist_images_are_scaled_and_labels_are_classes(tmp_path, split):
    data = open_data(f"mnist:{write_mnist(tmp_path)}")(split)
    (images,), (labels,) = data.inputs, data.targets
    assert (images.shape, images.dtype) == ((3, 1, 28, 28), torch.float32)
    assert images.flatten()[:256].tolist() == pytest.approx([i / 255 for i in range(256)])
    assert (labels.tolist(), labels.dtype) == ([9, 9, 9], torch.int64)


@pytest.mark.parametrize(
    ("written", "facts"),
    [
        ({"images": 3, "labels": 2}, r"train-images-idx3-ubyte\.gz holds 3 images but .*train-labels.* 2 labels"),
        ({"side": 27}, "holds 3x27x27 pixels, expected images of 28x28"),
        ({"images": 0, "labels": 0}, "holds 0x28x28 pixels"),
        ({"label": 26}, "holds label 26, expected 0 to 9"),
    ],
    ids=["counts", "size", "none", "label"],
)
def test_files_that_are_not_mnist_are_refused(tmp_path, written, facts):
    read = open_data(f"mnist:{write_mnist(tmp_path, **written)}")
    with pytest.raises(TaskError, match=facts) as caught:
        read("train")
    assert caught.value.fix


def test_missing_folder_and_file_are_named(tmp_path):
    with pytest.raises(TaskError, match="nowhere does not exist"):
        open_data(f"mnist:{tmp_path / 'nowhere'}")("train")
    next(write_mnist(tmp_path).glob("t10k-images*")).unlink()
    with pytest.raises(TaskError, match="has no file t10k-images-idx3-ubyte"):
        open_data(f"mnist:{tmp_path}")("test")


def test_unknown_splits_are_refused(tmp_path):
    with pytest.raises(TaskError, match="'valid' is not known; known: train, test"):
        open_data(f"mnist:{tmp_path}")("valid")
