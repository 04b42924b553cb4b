"""Small models with recurrent nets of all kinds, to cut."""

import functools
from typing import Any

import torch
import torch.nn.functional as F
from cutting import DOUBLE, Subject
from torch import Tensor, nn
from zoo import Case, per_token, real, tokens

from cutset.models.task import Data


class LanguageModel(nn.Module):
    """Predicts the next token: embedding, LSTM of two layers, head; dropout in between (Zaremba et al., 2014)."""

    def __init__(self, *, vocabulary: int = 30, width: int = 8, dropout: float = 0.4, layers: int = 2) -> None:
        super().__init__()
        self.embed, self.drop = nn.Embedding(vocabulary, width), nn.Dropout(dropout)
        self.lstm = nn.LSTM(width, width, layers, dropout=dropout, batch_first=True)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, x: Tensor) -> Tensor:
        hidden, _ = self.lstm(self.drop(self.embed(x)))
        scores: Tensor = self.head(self.drop(hidden))
        return scores


class Reader(nn.Module):
    """A recurrent net whose first states are given and whose last states count."""

    def __init__(self, kind: type[nn.RNNBase], **options: Any) -> None:
        super().__init__()
        self.rnn = kind(6, 8, **options)
        count, size = self.rnn.num_layers * (1 + self.rnn.bidirectional), self.rnn.proj_size or 8
        self.start = nn.Parameter(torch.randn(count, 1, size))
        self.cell = nn.Parameter(torch.randn(count, 1, 8))
        self.is_lstm = kind is nn.LSTM
        self.head = nn.Linear(size * (1 + self.rnn.bidirectional), 5)

    def forward(self, x: Tensor) -> Tensor:
        x = x.transpose(0, 1)
        start = self.start.expand(-1, x.shape[1], -1).contiguous()
        cell = self.cell.expand(-1, x.shape[1], -1).contiguous()
        output, last = self.rnn(x, (start, cell) if self.is_lstm else start)
        hidden, *others = last if self.is_lstm else (last,)
        scores: Tensor = self.head(output).sum(0) + hidden.sum() + sum(other.square().sum() for other in others)
        return scores


class Cells(nn.Module):
    """A loop of the user's over cells of three kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LSTMCell(6, 8), nn.GRUCell(8, 8)
        self.third, self.head = nn.RNNCell(8, 8), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        h = c = a = b = x.new_zeros(len(x), 8)
        for step in x.unbind(1):
            h, c = self.first(step, (h, c))
            a = self.second(h, a)
            b = self.third(a, b)
        scores: Tensor = self.head(b + c)
        return scores


def _sequences() -> Data:
    return Data((real(4, 5, 6),), (torch.randint(5, (4,)),))


def _read(kind: type[nn.RNNBase], **options: Any) -> Case:
    return Case(lambda: Reader(kind, **options), _sequences, F.cross_entropy)


RECURRENT = {
    "language_model": Case(LanguageModel, tokens(4, 6), per_token),
    "lstm_both_ways": _read(nn.LSTM, num_layers=2, bidirectional=True, dropout=0.3),
    "lstm_projected": _read(nn.LSTM, num_layers=2, proj_size=4, dropout=0.3),
    "gru": _read(nn.GRU, num_layers=3, dropout=0.3),
    "gru_both_ways": _read(nn.GRU, bidirectional=True),
    "rnn_tanh": _read(nn.RNN, num_layers=2, dropout=0.3),
    "rnn_relu": _read(nn.RNN, nonlinearity="relu", bias=False),
    "cells": Case(Cells, _sequences, F.cross_entropy),
}


@functools.cache
def unrolled(name: str, dtype: torch.dtype = DOUBLE) -> Subject:
    """A model of these in its unrolled form."""
    return Subject(RECURRENT[name], dtype, unrolled=True)


@functools.cache
def whole(name: str, dtype: torch.dtype = DOUBLE) -> Subject:
    """A model of these as torch computes it."""
    return Subject(RECURRENT[name], dtype)
