"""Models that no library has in its registry, written as users write them: one entry each."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from . import written_models as m
from .selection import BATCH, Entry, Trial

LENGTH = 8


def list_entries() -> list[Entry]:
    """Return the entries that are written here."""
    return [Entry("written", name) for name in sorted(MODELS)]


def list_trials(entry: Entry) -> Iterator[Trial]:
    """Yield the one way in which a model runs."""
    build, inputs = MODELS[entry.name]
    yield Trial("as written", build, inputs, loss_inside=entry.name == "WGAN-GP critic")


def _features() -> Mapping[str, Tensor]:
    return {"": torch.randn(BATCH, m.FEATURES)}


def _sequence() -> Mapping[str, Tensor]:
    return {"": torch.randn(BATCH, LENGTH, m.FEATURES)}


def _words() -> Mapping[str, Tensor]:
    return {"": torch.randint(1, m.WORDS, (BATCH, LENGTH))}


def _padded_words() -> Mapping[str, Tensor]:
    words, lengths = torch.randint(1, m.WORDS, (BATCH, LENGTH)), _lengths()
    return {"": words.masked_fill(torch.arange(LENGTH) >= lengths[:, None], 0)}


def _lengths() -> Tensor:
    return torch.tensor([8, 5, 3, 6])


def _graphs() -> Mapping[str, Tensor]:
    return {"x": torch.randn(BATCH, m.NODES, m.FEATURES), "edges": torch.randint(0, m.NODES, (BATCH, 2, 30))}


def _layers(change: Callable[[nn.Module], nn.Module]) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(change(nn.Linear(m.FEATURES, m.WIDTH)), nn.ReLU(), nn.Linear(m.WIDTH, m.FEATURES))


def _lazy() -> nn.Module:
    return nn.Sequential(nn.LazyLinear(m.WIDTH), nn.ReLU(), nn.LazyLinear(m.FEATURES))


def _lazy_tried() -> nn.Module:
    model = _lazy()
    model(torch.zeros(1, m.FEATURES))
    return model


def _plain() -> nn.Module:
    return nn.Sequential(nn.Linear(m.FEATURES, m.WIDTH), nn.ReLU(), nn.Linear(m.WIDTH, m.FEATURES))


Model = tuple[Callable[[], nn.Module], Callable[[], Mapping[str, Any]]]
MODELS: dict[str, Model] = {
    "LSTM language model": (lambda: m.RecurrentLanguageModel(nn.LSTM), _words),
    "GRU language model": (lambda: m.RecurrentLanguageModel(nn.GRU), _words),
    "packed LSTM": (
        lambda: m.RecurrentLanguageModel(nn.LSTM, packed=True),
        lambda: {"x": _padded_words()[""], "lengths": _lengths()},
    ),
    "LSTM cells in a loop": (m.CellLoop, _sequence),
    "GCN": (m.GraphConvolution, _graphs),
    "GATv2": (m.GraphAttention, _graphs),
    "FNO": (m.FourierOperator, lambda: {"": torch.randn(BATCH, 1, 16, 16)}),
    "S4": (m.StateSpace, _sequence),
    "WGAN-GP critic": (
        m.PenalizedCritic,
        lambda: {"real": torch.randn(BATCH, m.FEATURES), "fake": torch.randn(BATCH, m.FEATURES)},
    ),
    "padding mask": (m.MaskedEncoder, _padded_words),
    "boolean index, assignment": (lambda: m.BooleanIndex("assignment"), _features),
    "boolean index, mean": (lambda: m.BooleanIndex("mean"), _features),
    "nonzero": (lambda: m.BooleanIndex("nonzero"), _features),
    "sampling": (lambda: m.Sampling(distribution=False), _features),
    "sampling, torch.distributions": (lambda: m.Sampling(distribution=True), _features),
    "custom autograd function": (m.Binary, _features),
    "complex numbers": (m.ComplexLayer, _features),
    "weight_norm": (_layers(parametrizations.weight_norm), _features),
    "spectral_norm": (_layers(parametrizations.spectral_norm), _features),
    "old weight_norm": (_layers(torch.nn.utils.weight_norm), _features),
    "old spectral_norm": (_layers(torch.nn.utils.spectral_norm), _features),
    "LazyLinear": (_lazy, _features),
    "LazyLinear, called once": (_lazy_tried, _features),
    "torch.compile": (lambda: torch.compile(_plain()), _features),
    "scripted": (lambda: torch.jit.script(_plain()), _features),
    "cache in place": (m.CachedAttention, _sequence),
    "own statistics, in place": (lambda: m.OwnStatistics(assigned=False), _features),
    "own statistics, assigned": (lambda: m.OwnStatistics(assigned=True), _features),
}
