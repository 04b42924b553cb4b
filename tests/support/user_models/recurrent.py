"""A small language model with an LSTM of two layers, and its text: each token follows from the last two."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import cutset

TOKENS, WIDTH, LENGTH = 12, 32, 10


class LanguageModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.drop = nn.Embedding(TOKENS, WIDTH), nn.Dropout(0.1)
        self.lstm = nn.LSTM(WIDTH, WIDTH, 2, dropout=0.2, batch_first=True)
        self.head = nn.Linear(WIDTH, TOKENS)

    def forward(self, x: Tensor) -> Tensor:
        hidden, _ = self.lstm(self.drop(self.embed(x)))
        scores: Tensor = self.head(hidden)
        return scores


def _text(count: int) -> cutset.Data:
    tokens = torch.randint(TOKENS, (count, LENGTH + 1), generator=torch.Generator().manual_seed(count))
    for t in range(2, LENGTH + 1):
        tokens[:, t] = (tokens[:, t - 1] + 2 * tokens[:, t - 2]) % TOKENS
    return cutset.Data((tokens[:, :-1],), (tokens[:, 1:],))


def _loss(scores: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(scores.flatten(0, 1), targets.flatten())


def language_model() -> cutset.Task:
    data = {"train": _text(160), "test": _text(40)}

    def example(batch: int) -> cutset.Data:
        return data["train"].rows(torch.arange(batch))

    return cutset.Task("language_model", LanguageModel, _loss, example, data.__getitem__, batch=16)
