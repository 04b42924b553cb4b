"""Models of torchvision: the smallest of each family, with ten classes and small images."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torchvision_operators import import_models

from .selection import BATCH, Entry, Trial, choose_smallest, name_family

CLASSES = 10


def list_entries() -> list[Entry]:
    """Return the entries of torchvision."""
    models = import_models()
    builders = (
        (name_family(_builder(name).__module__, name), name, lambda name=name: _build(name))
        for name in models.list_models()
    )
    return [Entry("torchvision", name, family) for family, name in choose_smallest(builders)]


def list_trials(entry: Entry) -> Iterator[Trial]:
    """Yield the ways in which a model may run, smallest images first."""
    module = _builder(entry.name).__module__
    sides = (64, 128, 224, 299)
    if ".detection." in module:
        yield Trial("64 x 64", lambda: Detector(_build(entry.name, **DETECTOR)), lambda: _scenes(64), loss_inside=True)
        yield Trial("320 x 320", lambda: Detector(_build(entry.name)), lambda: _scenes(320), loss_inside=True)
    elif ".optical_flow." in module:
        yield Trial("128 x 128", lambda: _build(entry.name), lambda: _pairs(128))
    elif ".video." in module:
        for frames, side in ((8, 32), (16, 64), (16, 112), (16, 224)):
            shape = (BATCH, 3, frames, side, side)
            yield Trial(f"{frames} x {side} x {side}", lambda: _classifier(entry.name), lambda s=shape: _images(s))
    else:
        for side in sides:
            shape = (BATCH, 3, side, side)
            yield Trial(f"{side} x {side}", lambda: _classifier(entry.name), lambda s=shape: _images(s))
        for side in sides:
            shape = (BATCH, 3, side, side)
            yield Trial(
                f"image_size={side}", lambda v=side: _classifier(entry.name, image_size=v), lambda s=shape: _images(s)
            )


DETECTOR: dict[str, Any] = {"min_size": 64, "max_size": 64, "num_classes": CLASSES}


class Detector(nn.Module):
    """A detector whose images and boxes come as tensors. In training it gives the sum of its losses."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, images: Tensor, boxes: Tensor, labels: Tensor, masks: Tensor, keypoints: Tensor) -> Any:
        targets = [
            {"boxes": b, "labels": n, "masks": m, "keypoints": k}
            for b, n, m, k in zip(boxes, labels, masks, keypoints, strict=True)
        ]
        found = self.inner(list(images), targets if self.training else None)
        return sum(found.values()) if self.training else found


def _builder(name: str) -> Any:
    return import_models().get_model_builder(name)


def _build(name: str, **options: Any) -> nn.Module:
    if ".detection." in _builder(name).__module__ or ".segmentation." in _builder(name).__module__:
        options["weights_backbone"] = None
    model: nn.Module = _builder(name)(weights=None, **options)
    return model


def _classifier(name: str, **options: Any) -> nn.Module:
    return _build(name, num_classes=CLASSES, **options)


def _images(shape: tuple[int, ...]) -> Mapping[str, Tensor]:
    return {"": torch.randn(shape)}


def _pairs(side: int) -> Mapping[str, Tensor]:
    return {"image1": torch.rand(BATCH, 3, side, side) * 2 - 1, "image2": torch.rand(BATCH, 3, side, side) * 2 - 1}


def _scenes(side: int) -> Mapping[str, Tensor]:
    """Return images with two boxes each."""
    corner = torch.rand(BATCH, 2, 2) * side / 2
    boxes = torch.cat([corner, corner + side / 4 + torch.rand(BATCH, 2, 2) * side / 4], 2)
    return {
        "images": torch.rand(BATCH, 3, side, side),
        "boxes": boxes,
        "labels": torch.ones(BATCH, 2, dtype=torch.int64),
        "masks": torch.randint(0, 2, (BATCH, 2, side, side), dtype=torch.uint8),
        "keypoints": boxes.mean(2)[..., None, None].repeat(1, 1, 17, 3),
    }
