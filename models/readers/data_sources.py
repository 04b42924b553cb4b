"""Data that the user has on disk, named "kind:DIR" or "kind:FILE", as in `--data mnist:~/data/mnist`."""

from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from ..task import Data, TaskError
from .idx import find_idx, read_idx

Reader = Callable[[str], Data]
MNIST = {"mnist": "DIR"}

MNIST_STEMS = {"train": ("train-images", "train-labels"), "test": ("t10k-images", "t10k-labels")}


def parse_data(text: str, kinds: Mapping[str, str] = MNIST) -> tuple[str, Path]:
    """Return kind and path of "kind:PATH", such as "mnist:DIR"; TaskError if the task does not take that kind.

    kinds: those that the task takes, each with what its path names, "DIR" or "FILE".
    """
    kind, colon, place = text.partition(":")
    (first, what), *_ = kinds.items()
    if not colon or not place:
        raise TaskError(f"data {text!r} is not of the form kind:{what}", fix=f"--data {first}:{what}")
    if kind not in kinds:
        raise TaskError(f"data kind {kind!r} is not known; known: {', '.join(kinds)}", fix=f"--data {first}:{what}")
    return kind, Path(place).expanduser()


def open_data(text: str) -> Reader:
    """Return the reader `read(split)` of "kind:DIR"; the folder is not touched before a split is read."""
    kind, folder = parse_data(text)
    return READERS[kind](folder)


def mnist_folder(folder: Path) -> Reader:
    """Return a reader of MNIST's four IDX files, or others of the same form.

    It reads images [n, 1, 28, 28], float32 scaled to 0..1, and labels [n], int64.
    """

    def read(split: str) -> Data:
        if split not in MNIST_STEMS:
            raise TaskError(f"split {split!r} is not known; known: {', '.join(MNIST_STEMS)}")
        image_stem, label_stem = MNIST_STEMS[split]
        image_path = find_idx(folder, image_stem, dimensions=3)
        label_path = find_idx(folder, label_stem, dimensions=1)
        images, labels = read_idx(image_path, dimensions=3), read_idx(label_path, dimensions=1)
        if len(images) != len(labels):
            raise TaskError(
                f"{image_path} holds {len(images)} images but {label_path} {len(labels)} labels",
                fix="take both files from the same download",
            )
        if not len(images) or images.shape[1:] != (28, 28):
            sizes = "x".join(map(str, images.shape))
            raise TaskError(f"{image_path} holds {sizes} pixels, expected images of 28x28", fix="check --data")
        if int(labels.max()) > 9:
            raise TaskError(f"{label_path} holds label {int(labels.max())}, expected 0 to 9", fix="check --data")
        return Data((images.unsqueeze(1).to(torch.float32).div_(255),), (labels.to(torch.int64),))

    return read


READERS: dict[str, Callable[[Path], Reader]] = {"mnist": mnist_folder}
