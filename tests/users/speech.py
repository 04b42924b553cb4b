"""Spoken digits: windows of various lengths of log-mel frames, told apart by a convolution over time."""

from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import cutset

FILE = Path(__file__).resolve().parents[3] / "shared" / "data" / "fsdd" / "fsdd_logmel40x32.npz"


class Windows(Dataset):
    def __init__(self, split: str) -> None:
        file, self.split = np.load(FILE), split
        chosen = file["test"] == (split == "test")
        self.frames, self.labels = file["X"][chosen].reshape(-1, 40, 32), file["y"][chosen]

    def __len__(self) -> int:
        return len(self.frames)

    def __getitem__(self, number: int):
        length = int(torch.randint(25, 41, ())) if self.split == "train" else 40  # another one in every epoch
        return torch.from_numpy(self.frames[number]).float()[:length], int(self.labels[number])


class Listener(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.near, self.far = nn.Conv1d(32, 128, 5, padding=2), nn.Conv1d(128, 128, 5, padding=2)
        self.head = nn.Linear(128, 10)

    def forward(self, frames, lengths):
        hidden = self.far(self.near(frames.transpose(1, 2)).relu()).relu()
        there = torch.arange(hidden.shape[-1]) < lengths[:, None]
        return self.head((hidden * there[:, None]).sum(-1) / lengths[:, None])


def task() -> cutset.Task:
    data = lambda split: DataLoader(Windows(split), collate_fn=cutset.PadTo(40, lengths=True), num_workers=1)
    return cutset.Task("speech", Listener, nn.functional.cross_entropy, data=data, batch=32)
