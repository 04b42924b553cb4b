"""Small models in which sizes depend on data: masks, experts, packed sequences, samples."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from zoo import Case, classes, images, real

from cutset.models.task import Data


class Experts(nn.Module):
    """A mixture of experts, each of which gets the tokens that the gate sends it. dropout: within an expert."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.first, self.gate, self.head = nn.Linear(8, 8), nn.Linear(8, 3), nn.Linear(8, 5)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Dropout(dropout), nn.Linear(16, 8)) for _ in range(3)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        weights, chosen = self.gate(x).softmax(-1).topk(2)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            token, rank = torch.where(chosen == number)
            out.index_add_(0, token, expert(x[token]) * weights[token, rank, None])
        return self.head(F.dropout(out, 0.3, self.training) if self.experts[0][2].p else out)


class ExpertsOfSequences(nn.Module):
    """A mixture of experts by masks over sequences of tokens, each of which goes to one expert."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.gate, self.head = nn.Linear(8, 12), nn.Linear(12, 3), nn.Linear(12, 5)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 12)) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        weights, chosen = self.gate(x).softmax(-1).max(-1)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            mask = chosen == number
            out[mask] += expert(x[mask]) * weights[mask][:, None]
        return self.head(x + out).mean(1)


class Masked(nn.Module):
    """Computes only where a mask says so, with a norm over what is left, and puts the result back in place."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.inner, self.head = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 5)
        self.norm = nn.BatchNorm1d(8)

    def forward(self, x: Tensor) -> Tensor:
        mask = x[:, 0] > -0.5
        h = self.first(x).relu()
        out = h.clone()
        out[mask] = self.norm(self.inner(h[mask]))
        return self.head(out) * mask.sum().item()


class Packed(nn.Module):
    """An LSTM over sequences of their own lengths."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.lstm, self.head = nn.Embedding(9, 6), nn.LSTM(6, 7, batch_first=True), nn.Linear(7, 5)

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        packed = pack_padded_sequence(self.embed(tokens), lengths, batch_first=True, enforce_sorted=False)
        out, (last, _) = self.lstm(packed)
        padded, _ = pad_packed_sequence(out, batch_first=True, total_length=tokens.shape[1])
        return self.head(last[-1] + padded.mean(1))


class Upsampled(nn.Module):
    """Repeats each frame as often as a predictor says, as vocoders do, and takes the mean."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.length, self.head = nn.Linear(6, 8), nn.Linear(8, 1), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x).tanh()
        times = 1 + (4 * self.length(h).sigmoid().squeeze(-1)).long()
        long = h.repeat_interleave(times.flatten(), 0)
        groups = torch.repeat_interleave(torch.arange(x.shape[0]), times.flatten())
        return self.head(torch.zeros_like(h).index_add(0, groups, long) / times[:, None])


class Unseen(nn.Module):
    """Has a code for each different value, of which it takes those that occur."""

    def __init__(self) -> None:
        super().__init__()
        self.codes, self.head = nn.Embedding(9, 6), nn.Linear(6, 5)

    def forward(self, tokens: Tensor) -> Tensor:
        values, where = tokens.unique(return_inverse=True)
        return self.head(self.codes(values)[where].mean(1))


def loss_of_masked(output: Tensor, target: Tensor) -> Tensor:
    kept = target != 0
    return F.cross_entropy(output[kept], target[kept])


def sequences() -> Data:
    return Data((classes(9, 4, 6), torch.tensor([3, 6, 1, 4])), (classes(5, 4),))


def linear() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 5))


DYNAMIC_CASES = {
    "experts": Case(Experts, images(12, 8)),
    "experts with dropout": Case(lambda: Experts(0.2), images(12, 8)),
    "experts of sequences": Case(ExpertsOfSequences, lambda: Data((real(4, 6, 8),), (classes(5, 4),))),
    "masked": Case(Masked, images(12, 6)),
    "packed": Case(Packed, sequences),
    "upsampled": Case(Upsampled, images(6, 6)),
    "unseen": Case(Unseen, lambda: Data((classes(9, 4, 6),), (classes(5, 4),))),
    "masked loss": Case(linear, lambda: Data((real(9, 6),), (classes(5, 9),)), loss_of_masked),
}
