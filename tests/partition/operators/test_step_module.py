"""Copies of steps: a language model keeps no keys and values for a next token."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from cutset.partition.capture.export import capture
from cutset.partition.operators.step_module import StepModule, copy_step

DEPTH, WIDTH = 9, 8


@dataclass
class Configuration:
    """As of a model of transformers."""

    use_cache: bool = True
    width: int = WIDTH


class Cache:
    """Keeps what layers compute, as `transformers.DynamicCache` does."""

    def __init__(self) -> None:
        self.kept: dict[int, Tensor] = {}

    def update(self, value: Tensor, index: int) -> Tensor:
        self.kept[index] = torch.cat([self.kept.get(index, value.new_zeros(0, WIDTH)), value])
        return self.kept[index]


class CachingLayer(nn.Module):
    """Keeps its values where it gets a cache. index: where."""

    def __init__(self, configuration: Configuration, index: int) -> None:
        super().__init__()
        self.config, self.index = configuration, index
        self.values, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, cache: Cache | None) -> Tensor:
        values = self.values(x)
        return x + self.out(values if cache is None else cache.update(values, self.index))


class LanguageModel(nn.Module):
    """Returns its cache, too."""

    def __init__(self) -> None:
        super().__init__()
        self.config = Configuration()
        self.layers = nn.ModuleList(CachingLayer(self.config, i) for i in range(DEPTH))

    def forward(self, x: Tensor, use_cache: bool | None = None) -> tuple[Tensor, Cache | None]:
        cache = Cache() if (self.config.use_cache if use_cache is None else use_cache) else None
        for layer in self.layers:
            x = layer(x, cache)
        return x, cache


class Explicit(nn.Module):
    """Asks for the cache, and reads it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = LanguageModel()

    def forward(self, x: Tensor) -> Tensor:
        output, cache = self.inner(x, use_cache=True)
        return torch.as_tensor(output + cache.kept[2])


def compute_loss(output: tuple[Tensor, Cache | None], target: Tensor) -> Tensor:
    return (output[0] - target).square().mean()


def test_keys_and_values_are_not_kept() -> None:
    x, model = torch.zeros(4, WIDTH), LanguageModel()
    graph, _ = capture(model, compute_loss, (x,), (x,))
    assert {op.target for op in graph.ops if "cat" in op.target} == set()
    assert sum(op.target == "aten.linear.default" for op in graph.ops) == 2 * DEPTH


def test_but_where_the_model_asks_for_them() -> None:
    x, model = torch.zeros(4, WIDTH), Explicit()
    graph, _ = capture(model, lambda output, target: (output - target).square().mean(), (x,), (x,))
    assert sum(op.target == "aten.cat.default" for op in graph.ops) == DEPTH


def test_the_configuration_of_the_user_stays() -> None:
    model = LanguageModel()
    copied = copy_step(StepModule(model, compute_loss), lambda tensor: tensor.detach().clone())
    assert model.config.use_cache
    assert all(layer.config is model.config for layer in model.layers)
    configuration = copied.model.config
    assert configuration == Configuration(use_cache=False)
    assert all(layer.config is configuration for layer in copied.model.layers)
