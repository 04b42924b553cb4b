"""Handwritten digits from the files of MNIST: a convolutional net, images moved and turned at random."""

import gzip
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset

import cutset

FOLDER = Path(__file__).resolve().parents[3] / "shared" / "data" / "mnist"


def read(name: str, skip: int) -> np.ndarray:
    return np.frombuffer(gzip.decompress((FOLDER / name).read_bytes()), np.uint8, offset=skip)


class Digits(Dataset):
    def __init__(self, split: str) -> None:
        kind, self.count = ("train", 12_000) if split == "train" else ("t10k", 2_000)
        self.images = read(f"{kind}-images-idx3-ubyte.gz", 16).reshape(-1, 28, 28)
        self.labels, self.moves = read(f"{kind}-labels-idx1-ubyte.gz", 8), split == "train"

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int):
        image = torch.from_numpy(self.images[number].copy())[None].float() / 255
        if self.moves:
            image = image.roll(tuple(torch.randint(-2, 3, (2,)).tolist()), (1, 2))
        return image, int(self.labels[number])


def net() -> nn.Module:
    features = [nn.Conv2d(1, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 5), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*features, nn.Flatten(), nn.Linear(512, 128), nn.ReLU(), nn.Linear(128, 10))


def task() -> cutset.Task:
    return cutset.Task("digits", net, nn.functional.cross_entropy, data=Digits, batch=64)
