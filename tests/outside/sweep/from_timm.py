"""Models of timm: the smallest of each family, with ten classes and images as small as it takes."""

import importlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torchvision_operators import import_models

from .selection import BATCH, Entry, Trial, choose_smallest, name_family

CLASSES = 10


def list_entries() -> list[Entry]:
    """Return the entries of timm. Counting the parameters of all its models without values takes minutes."""
    timm = _import_timm()
    names = timm.list_models()
    builders = (
        (name_family(timm.model_entrypoint(name).__module__, name), name, lambda name=name: _build(name))
        for name in names
    )
    return [Entry("timm", name, family) for family, name in choose_smallest(builders)]


def list_trials(entry: Entry) -> Iterator[Trial]:
    """Yield the ways in which a model may run, smallest images first."""
    for side in (64, 96):
        yield Trial(f"{side} x {side}", lambda: _build(entry.name), lambda s=side: _images(s))
    for side in (64, 128, 224):
        yield Trial(f"img_size={side}", lambda v=side: _build(entry.name, img_size=v), lambda s=side: _images(s))
    for side in (128, 224, 256, 320, 384):
        yield Trial(f"{side} x {side}", lambda: _build(entry.name), lambda s=side: _images(s))


def _import_timm() -> Any:
    import_models()  # which timm imports
    return importlib.import_module("timm")


def _build(name: str, **options: Any) -> nn.Module:
    model: nn.Module = _import_timm().create_model(name, num_classes=CLASSES, **options)
    return model


def _images(side: int) -> Mapping[str, Tensor]:
    return {"": torch.randn(BATCH, 3, side, side)}
