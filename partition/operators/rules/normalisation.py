"""Sharding rules of normalisation and softmax."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..sharding.cost_class import NORMALISATION
from ..sharding.partial_reductions import (
    EXPONENTIALS,
    MOMENTS,
    combine_exponentials,
    combine_moments,
    compute_exponentials,
    compute_moments,
)
from ..sharding.sharding_rule import Summary, make_labels, sharding_rule
from ..sharding.signature import Call, Composite, Label, Labels, Signature, Site


@sharding_rule("aten.layer_norm", "aten.rms_norm", cost=NORMALISATION)
def layer_norm(site: Site) -> Signature | None:
    """The last dimensions are normalised together and stay whole."""
    labels = make_labels(len(site.output.shape))
    last = labels[len(labels) - len(site["normalized_shape"]) :]
    operands: dict[str, Labels] = {"input": labels}
    operands |= {name: last for name in ("weight", "bias") if site[name] is not None}
    return Signature(operands, labels, fixed=frozenset(last), work=5.0)


def _summarise_batch(call: Call) -> Tensor:
    x: Tensor = call["input"].to(call.dtype)
    return compute_moments(x, [d for d in range(x.dim()) if d != 1])


def _combine_batch_norm(call: Call) -> Tensor:
    x, parts = call["input"], call.summaries
    assert parts is not None
    count, mean, squares = combine_moments(parts.flatten(2))
    if call["running_mean"] is not None:
        with torch.no_grad():
            for name, now in (("running_mean", mean), ("running_var", squares / (count - 1))):
                call[name].lerp_(now.to(call[name].dtype), call["momentum"])
    gain, shift = (None if call[name] is None else call[name].to(parts.dtype) for name in ("weight", "bias"))
    y: Tensor = _BatchNormByStatistics.apply(x.to(parts.dtype), mean, squares / count, gain, shift, call["eps"])  # type: ignore[no-untyped-call]
    return y.to(x.dtype)


class _BatchNormByStatistics(torch.autograd.Function):
    """A batch norm by given statistics, with gradients of the statistics too."""

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


@sharding_rule(
    "aten.batch_norm",
    cost=NORMALISATION,
    summary=Summary(MOMENTS, _summarise_batch, _combine_batch_norm, reads=("input",)),
)
def batch_norm(site: Site) -> Signature | None:
    """Channel by channel; in training the parts of batch and space exchange their statistics.

    The first part keeps the running statistics.
    """
    labels = make_labels(len(site.output.shape))
    operands: dict[str, Labels] = {"input": labels}
    running = ("running_mean", "running_var")
    operands |= {name: [labels[1]] for name in ("weight", "bias", *running) if site[name] is not None}
    if not site["training"]:
        return Signature(operands, labels, work=5.0)
    non_additive = frozenset(label for label in labels if label != labels[1])
    return Signature(operands, labels, non_additive=non_additive, once=frozenset(running), work=5.0)


@sharding_rule("aten.instance_norm", cost=NORMALISATION)
def instance_norm(site: Site) -> Signature | None:
    """Channel by channel and sample by sample; running statistics are of the whole batch."""
    labels = make_labels(len(site.output.shape))
    operands: dict[str, Labels] = {"input": labels}
    names = ("weight", "bias", "running_mean", "running_var")
    operands |= {name: [labels[1]] for name in names if site[name] is not None}
    fixed = set(labels[2:] if site["use_input_stats"] else ())
    fixed |= set(labels[:1] if site["running_mean"] is not None and site["use_input_stats"] else ())
    return Signature(operands, labels, fixed=frozenset(fixed), work=5.0)


def _group_norm(call: Call) -> Tensor:
    of_a_group = call.shape()[1] // call["num_groups"]
    return call.run_torch(num_groups=call.local_shape[1] // of_a_group)


@sharding_rule("aten.group_norm", cost=NORMALISATION, local=_group_norm)
def group_norm(site: Site) -> Signature | None:
    """Groups of channels, and samples, by themselves; a group and its space stay whole."""
    groups, (_, channels, *space) = site["num_groups"], site.output.shape
    grouped = Composite((("g", groups), ("c", channels // groups)))
    labels: list[Label] = ["b", grouped, *make_labels(len(space), "p")]
    operands: dict[str, Labels] = {"input": labels}
    operands |= {name: [grouped] for name in ("weight", "bias") if site[name] is not None}
    return Signature(operands, labels, fixed=frozenset({"c", *make_labels(len(space), "p")}), work=5.0)


@sharding_rule("aten._weight_norm", cost=NORMALISATION)
def weight_norm(site: Site) -> Signature | None:
    """w = v * g / |v|, the norm over all dimensions but `dim` (Salimans and Kingma 2016)."""
    labels, dim = make_labels(len(site.output.shape)), site["dim"]
    kept = {labels[dim % len(labels)]} if dim != -1 else set()  # -1 is one norm of all
    scale: list[Label] = [label if label in kept else None for label in labels[-len(site.shape("g")) :]]
    return Signature({"v": labels, "g": scale if site.shape("g") else []}, labels, fixed=frozenset(labels) - kept)


def _summarise_softmax(call: Call) -> Tensor:
    x: Tensor = call["self"].to(call.dtype)
    return compute_exponentials(x, [call["dim"] % x.dim()])


def _combine_softmax(call: Call) -> Tensor:
    assert call.summaries is not None
    x: Tensor = call["self"].to(call.summaries.dtype)
    beside = [1 if d == call["dim"] % x.dim() else size for d, size in enumerate(x.shape)]
    y = x - combine_exponentials(call.summaries).reshape(beside)
    return (y if "log" in call.op.sharding_rule else y.exp()).to(call.dtype)


@sharding_rule(
    *(f"aten.{name}" for name in ("softmax", "log_softmax", "_softmax", "_log_softmax")),
    cost=NORMALISATION,
    summary=Summary(EXPONENTIALS, _summarise_softmax, _combine_softmax),
)
def softmax(site: Site) -> Signature | None:
    """Normalised along `dim`, whose parts exchange their largest value and their sum of exponentials."""
    labels = make_labels(len(site.output.shape))
    return Signature(
        {"self": labels}, labels, non_additive=frozenset({labels[site["dim"]]} if labels else ()), work=4.0
    )
