"""Importing torchvision where its package was built for another torch: its two operators that it needs, in Python.

Its package on the index needs CUDA builds of torch for its own operators.
"""

import importlib
from typing import Any

import torch
from torch import Tensor

_LIBRARY = torch.library.Library("torchvision", "DEF")
for _name in ("nms", "qnms"):  # torchvision registers something for these on import
    _LIBRARY.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


def suppress_overlaps(dets: Tensor, scores: Tensor, iou_threshold: float) -> Tensor:
    """Return the numbers of the boxes that overlap no better one by more than the threshold, as torchvision does."""
    boxes = importlib.import_module("torchvision.ops.boxes")
    left, kept = scores.argsort(descending=True), []
    while left.numel():
        best, left = left[:1], left[1:]
        kept.append(best)
        left = left[boxes.box_iou(dets[best], dets[left])[0] <= iou_threshold]
    return torch.cat(kept) if kept else left


_LIBRARY.impl("nms", suppress_overlaps, "CPU")


def import_models() -> Any:
    """Return torchvision.models."""
    return importlib.import_module("torchvision.models")
