"""A small GPT on the letters of Shakespeare: perplexity, no decay for biases and norms."""

import functools
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset

import cutset

FILE = Path(__file__).resolve().parents[3] / "shared" / "data" / "text" / "tinyshakespeare.txt"
CONTEXT, WIDTH = 64, 64


class Text(Dataset):
    def __init__(self, split: str) -> None:
        text = FILE.read_text()
        self.letters = {letter: n for n, letter in enumerate(sorted(set(text)))}
        part = text[:400_000] if split == "train" else text[-40_000:]
        self.ids = torch.tensor([self.letters[letter] for letter in part])

    def __len__(self) -> int:
        return (len(self.ids) - 1) // CONTEXT

    def __getitem__(self, number: int):
        window = self.ids[number * CONTEXT : (number + 1) * CONTEXT + 1]
        return window[:-1], window[1:]


class Gpt(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(65, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        block = functools.partial(nn.TransformerEncoderLayer, WIDTH, 4, 4 * WIDTH, 0.0, "gelu", batch_first=True)
        self.blocks = nn.ModuleList(block(norm_first=True) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 65)

    def forward(self, ids):
        hidden = self.words(ids) + self.places.weight
        mask = torch.full((CONTEXT, CONTEXT), float("-inf")).triu(1)
        for block in self.blocks:
            hidden = block(hidden, src_mask=mask)
        return self.head(self.norm(hidden))


def task() -> cutset.Task:
    loss = lambda logits, following: functional.cross_entropy(logits.flatten(0, 1), following.flatten())
    metrics = {"perplexity": cutset.Perplexity()}
    return cutset.Task("shakespeare", Gpt, loss, data=Text, correct=None, metrics=metrics, batch=32)
