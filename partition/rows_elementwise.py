"""Rows of elementwise operators, with broadcasting, and of dropout."""

import math

from torch import Tensor

from .row import aligned, dims, fits, row
from .signature import Call, Noise, Signature, Site

# fmt: off
UNARY = (
    "relu", "relu6", "gelu", "tanh", "sigmoid", "silu", "leaky_relu", "elu", "selu", "celu", "mish", "softplus",
    "hardtanh", "hardswish", "hardsigmoid", "log_sigmoid", "exp", "log", "sqrt", "rsqrt", "neg", "abs", "square", "sin",
    "cos", "reciprocal", "clamp", "clamp_min", "clamp_max", "clone", "contiguous", "detach", "alias", "to", "_to_copy",
    "logical_not", "bitwise_not", "erf", "floor", "ceil", "round", "sign", "isnan", "lift_fresh_copy", "threshold",
)
BINARY = (
    "add", "sub", "rsub", "mul", "div", "pow", "maximum", "minimum", "where", "eq", "ne", "lt", "le", "gt", "ge",
    "logical_and", "logical_or", "logical_xor", "bitwise_and", "bitwise_or", "masked_fill", "fmod", "remainder",
)
# fmt: on


@row(*(f"aten.{name}" for name in (*UNARY, *BINARY)))
def elementwise(site: Site) -> Signature | None:
    """y[..] = f(a[..], b[..], ...), each operand broadcast to y."""
    out = site.output.shape
    if any(not fits(t.shape, out) for t in site.tensors.values()):  # `to` the dtype of a tensor of another shape
        return None
    labels = dims(len(out))
    return Signature({name: aligned(t.shape, out, labels) for name, t in site.tensors.items()}, labels)


def _dropout(call: Call) -> Tensor:
    x: Tensor = call["input"]
    return call.plain() if call.noise is None else x * call.noise


@row("aten.dropout", local=_dropout)
def dropout(site: Site) -> Signature | None:
    """y = x * mask / (1 - p); the mask is drawn for the whole tensor and cut, so that it does not depend on the cut."""
    labels = dims(len(site.output.shape))
    p, x = site["p"], site["input"]
    noise = Noise(x.shape, x.stride, x.dtype, p, labels) if site["train"] and 0 < p < 1 and math.prod(x.shape) else None
    return Signature({"input": labels}, labels, noise=noise)
