"""Rows of the kinds of dropout besides the plain one: of whole channels, and with a mean and a variance that stay."""

import math

import torch
from torch import Tensor

from .sharding_rule import dims, row
from .signature import Call, Label, Noise, Signature, Site

ALPHA = 1.7580993408473766  # -(scale * alpha) of a SELU (Klambauer et al. 2017), as ATen has it


def _feature_dropout(call: Call) -> Tensor:
    x: Tensor = call["input"]
    return call.plain() if call.noise is None else x * call.noise


@row("aten.feature_dropout", local=_feature_dropout)
def feature_dropout(site: Site) -> Signature | None:
    """Whole channels are dropped: y[b, c, ..] = x[b, c, ..] * mask[b, c] / (1 - p)"""
    labels = dims(len(site.output.shape))
    return Signature({"input": labels}, labels, noise=_of_channels(site, labels))


def _of_channels(site: Site, labels: list[str]) -> Noise | None:
    """The mask of whole channels, as ATen's make_feature_noise."""
    p, x = site["p"], site["input"]
    if not site["train"] or not 0 < p < 1:
        return None
    shape = (*x.shape[:2], *[1] * (len(x.shape) - 2))
    drawn: list[Label] = [*labels[:2], *[None] * (len(x.shape) - 2)]
    return Noise(shape, (x.shape[1], *[1] * (len(shape) - 1)), x.dtype, p, drawn)


def _alpha_dropout(call: Call) -> Tensor:
    """As ATen's _dropout_impl, with the mask drawn beforehand."""
    if call.noise is None:
        return call.plain()
    x, p, kept = call["input"], call["p"], (call.noise != 0).to(call.noise.dtype)
    a = 1.0 / math.sqrt((ALPHA * ALPHA * p + 1) * (1 - p))
    shift = kept.add(-1).mul_(ALPHA * a).add_(ALPHA * a * p)
    return torch.mul(x, kept.mul_(a)).add_(shift)


@row("aten.alpha_dropout", local=_alpha_dropout)
def alpha_dropout(site: Site) -> Signature | None:
    """y = a * (x * mask + alpha' * (1 - mask)) + b keeps mean and variance (Klambauer et al. 2017)."""
    labels = dims(len(site.output.shape))
    p, x = site["p"], site["input"]
    drawn = Noise(x.shape, x.stride, x.dtype, p, labels) if site["train"] and 0 < p < 1 else None
    return Signature({"input": labels}, labels, noise=drawn)


@row("aten.feature_alpha_dropout", local=_alpha_dropout)
def feature_alpha_dropout(site: Site) -> Signature | None:
    """Alpha dropout of whole channels."""
    labels = dims(len(site.output.shape))
    return Signature({"input": labels}, labels, noise=_of_channels(site, labels))
