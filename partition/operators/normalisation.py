"""Rows of normalisation and softmax."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .sharding_rule import Summary, dims, row
from .signature import Call, Label, Labels, Parts, Signature, Site
from .partial_reductions import (
    EXPONENTIALS,
    MOMENTS,
    exponentials_joined,
    exponentials_of,
    moments_joined,
    moments_of,
)


@row("aten.layer_norm", "aten.rms_norm")
def layer_norm(site: Site) -> Signature | None:
    """The last dimensions are normalised together and stay whole."""
    labels = dims(len(site.output.shape))
    last = labels[len(labels) - len(site["normalized_shape"]) :]
    operands: dict[str, Labels] = {"input": labels}
    operands |= {name: last for name in ("weight", "bias") if site[name] is not None}
    return Signature(operands, labels, fixed=frozenset(last), work=5.0)


def _batch_moments(call: Call) -> Tensor:
    x: Tensor = call["input"].to(call.dtype)
    return moments_of(x, [d for d in range(x.dim()) if d != 1])


def _joint_batch_norm(call: Call) -> Tensor:
    x, parts = call["input"], call.parts
    assert parts is not None
    count, mean, squares = moments_joined(parts.flatten(2))
    if call["running_mean"] is not None:
        with torch.no_grad():
            for name, now in (("running_mean", mean), ("running_var", squares / (count - 1))):
                call[name].lerp_(now.to(call[name].dtype), call["momentum"])
    gain, shift = (None if call[name] is None else call[name].to(parts.dtype) for name in ("weight", "bias"))
    y: Tensor = _Normalised.apply(x.to(parts.dtype), mean, squares / count, gain, shift, call["eps"])  # type: ignore[no-untyped-call]
    return y.to(x.dtype)


class _Normalised(torch.autograd.Function):
    """A batch norm by given statistics, with gradients of these too."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, mean: Tensor, variance: Tensor, gain: Tensor | None, shift: Tensor | None, eps: float
    ) -> Tensor:
        ctx.save_for_backward(x, mean, variance, gain)
        ctx.eps = eps
        return F.batch_norm(x, mean, variance, gain, shift, False, 0.0, eps)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        x, mean, variance, gain = ctx.saved_tensors
        scale = torch.ones_like(mean) if gain is None else gain
        back = torch.ops.aten.native_batch_norm_backward
        of_x, of_gain, of_shift = back(
            gradients[0], x, scale, mean, variance, None, None, False, ctx.eps, [True, True, True]
        )
        inverse = (variance + ctx.eps).rsqrt()
        of_mean, of_variance = -scale * inverse * of_shift, -0.5 * scale * inverse.square() * of_gain
        of_gain, of_shift = (
            g if wanted else None for g, wanted in zip((of_gain, of_shift), ctx.needs_input_grad[3:5], strict=True)
        )
        return of_x, of_mean, of_variance, of_gain, of_shift, None


@row("aten.batch_norm", summary=Summary(MOMENTS, _batch_moments, _joint_batch_norm, reads=("input",)))
def batch_norm(site: Site) -> Signature | None:
    """Channel by channel; in training the parts of batch and space tell each other their statistics.

    The first of them keeps the running ones.
    """
    labels = dims(len(site.output.shape))
    operands: dict[str, Labels] = {"input": labels}
    running = ("running_mean", "running_var")
    operands |= {name: [labels[1]] for name in ("weight", "bias", *running) if site[name] is not None}
    if not site["training"]:
        return Signature(operands, labels, work=5.0)
    joined = frozenset(label for label in labels if label != labels[1])
    return Signature(operands, labels, joined=joined, once=frozenset(running), work=5.0)


@row("aten.instance_norm")
def instance_norm(site: Site) -> Signature | None:
    """Channel by channel and sample by sample; running statistics are of the whole batch."""
    labels = dims(len(site.output.shape))
    operands: dict[str, Labels] = {"input": labels}
    names = ("weight", "bias", "running_mean", "running_var")
    operands |= {name: [labels[1]] for name in names if site[name] is not None}
    fixed = set(labels[2:] if site["use_input_stats"] else ())
    fixed |= set(labels[:1] if site["running_mean"] is not None and site["use_input_stats"] else ())
    return Signature(operands, labels, fixed=frozenset(fixed), work=5.0)


def _group_norm(call: Call) -> Tensor:
    of_a_group = call.shape()[1] // call["num_groups"]
    return call.plain(num_groups=call.local_shape[1] // of_a_group)


@row("aten.group_norm", local=_group_norm)
def group_norm(site: Site) -> Signature | None:
    """Groups of channels, and samples, by themselves; a group and its space stay whole."""
    groups, (_, channels, *space) = site["num_groups"], site.output.shape
    grouped = Parts((("g", groups), ("c", channels // groups)))
    labels: list[Label] = ["b", grouped, *dims(len(space), "p")]
    operands: dict[str, Labels] = {"input": labels}
    operands |= {name: [grouped] for name in ("weight", "bias") if site[name] is not None}
    return Signature(operands, labels, fixed=frozenset({"c", *dims(len(space), "p")}), work=5.0)


@row("aten._weight_norm")
def weight_norm(site: Site) -> Signature | None:
    """w = v * g / |v|, the norm over all dimensions but `dim` (Salimans and Kingma 2016)."""
    labels, dim = dims(len(site.output.shape)), site["dim"]
    kept = {labels[dim % len(labels)]} if dim != -1 else set()  # -1 is one norm of all
    scale: list[Label] = [label if label in kept else None for label in labels[-len(site.shape("g")) :]]
    return Signature({"v": labels, "g": scale if site.shape("g") else []}, labels, fixed=frozenset(labels) - kept)


def _exponentials(call: Call) -> Tensor:
    x: Tensor = call["self"].to(call.dtype)
    return exponentials_of(x, [call["dim"] % x.dim()])


def _joint_softmax(call: Call) -> Tensor:
    assert call.parts is not None
    x: Tensor = call["self"].to(call.parts.dtype)
    beside = [1 if d == call["dim"] % x.dim() else size for d, size in enumerate(x.shape)]
    y = x - exponentials_joined(call.parts).reshape(beside)
    return (y if "log" in call.op.row else y.exp()).to(call.dtype)


@row(
    *(f"aten.{name}" for name in ("softmax", "log_softmax", "_softmax", "_log_softmax")),
    summary=Summary(EXPONENTIALS, _exponentials, _joint_softmax),
)
def softmax(site: Site) -> Signature | None:
    """Normalised along `dim`, whose parts tell each other their largest and their sum of exponentials."""
    labels = dims(len(site.output.shape))
    return Signature({"self": labels}, labels, joined=frozenset({labels[site["dim"]]} if labels else ()), work=4.0)
