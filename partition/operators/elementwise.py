"""Rows of elementwise operators, with broadcasting, and of dropout."""

import math

from torch import Tensor

from .sharding_rule import aligned, dims, fits, row
from .signature import Call, Label, Labels, Noise, Parts, Signature, Site

# fmt: off
ACTIVATIONS = (
    "relu", "relu6", "gelu", "tanh", "sigmoid", "silu", "leaky_relu", "elu", "selu", "celu", "mish", "softplus",
    "hardtanh", "hardswish", "hardsigmoid", "log_sigmoid", "hardshrink", "softshrink", "threshold",
)
UNARY = (
    *ACTIVATIONS, "exp", "exp2", "expm1", "log", "log1p", "log2", "log10", "sqrt", "rsqrt", "neg", "abs", "square",
    "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh", "sinc", "reciprocal",
    "erf", "erfc", "erfinv", "lgamma", "digamma", "logit", "deg2rad", "rad2deg", "floor", "ceil", "round", "trunc",
    "frac", "sign", "sgn", "signbit", "nan_to_num", "isnan", "isinf", "isfinite", "isneginf", "isposinf",
    "logical_not", "bitwise_not", "clamp", "clamp_min", "clamp_max", "clip", "positive", "clone", "contiguous",
    "conj_physical", "angle", "detach", "alias", "to", "_to_copy", "lift_fresh_copy",
)
SPECIAL = (
    "digamma", "entr", "erf", "erfc", "erfcx", "erfinv", "exp2", "expit", "expm1", "gammaln", "i0", "i0e", "i1", "i1e",
    "log1p", "log_ndtr", "logit", "ndtr", "ndtri", "psi", "round", "sinc",
)
SEVERAL = (
    "add", "sub", "rsub", "subtract", "mul", "multiply", "div", "divide", "true_divide", "floor_divide", "fmod",
    "remainder", "pow", "float_power", "maximum", "minimum", "fmax", "fmin", "atan2", "hypot", "copysign", "logaddexp",
    "logaddexp2", "xlogy", "special_xlogy", "special_xlog1py", "heaviside", "complex", "polar", "lerp", "addcmul",
    "addcdiv", "where", "masked_fill", "eq", "ne", "lt", "le", "gt", "ge", "not_equal", "less", "less_equal", "greater",
    "greater_equal", "isclose", "logical_and", "logical_or", "logical_xor", "bitwise_and", "bitwise_or", "bitwise_xor",
    "__and__", "__or__", "__xor__", "bitwise_left_shift", "bitwise_right_shift", "__lshift__", "__rshift__",
)
# fmt: on


@row(*(f"aten.{name}" for name in (*UNARY, *SEVERAL, *(f"special_{name}" for name in SPECIAL))))
def elementwise(site: Site) -> Signature | None:
    """y[..] = f(a[..], b[..], ...), each operand broadcast to y."""
    out = site.output.shape
    if any(not fits(t.shape, out) for t in site.tensors.values()):  # `to` the dtype of a tensor of another shape
        return None
    labels = dims(len(out))
    return Signature({name: aligned(t.shape, out, labels) for name, t in site.tensors.items()}, labels)


@row(
    *(f"aten.{name}" for name in ("conj", "real", "imag")),
    local=lambda call: call.plain().resolve_conj().resolve_neg(),
    moves=True,
)
def part_of_complex(site: Site) -> Signature | None:
    """y[..] of x[..], with its own memory: a lazy conjugate cannot be sent."""
    labels = dims(len(site.output.shape))
    return Signature({"self": labels}, labels, work=0.0)


@row("aten.prelu")
def prelu(site: Site) -> Signature | None:
    """y[b, c, ..] = x where it is positive, else weight[c] x; a single weight is for all channels."""
    labels = dims(len(site.output.shape))
    single = site.shape("weight") in ((), (1,)) or len(labels) < 2
    weight: list[Label] = [None if single else labels[1]] * len(site.shape("weight"))
    return Signature({"self": labels, "weight": weight}, labels)


@row("aten.glu")
def glu(site: Site) -> Signature | None:
    """y[.., i, ..] = x[.., 0, i, ..] sigmoid(x[.., 1, i, ..])"""
    labels = dims(len(site.output.shape))
    dim = site["dim"] % len(labels)
    read: list[Label] = list(labels)
    read[dim] = Parts(((None, 2), (labels[dim], site.output.shape[dim])))
    return Signature({"self": read}, labels, work=3.0)


@row("aten.searchsorted")
def searched(site: Site) -> Signature | None:
    """y[.., i] = where x[.., i] belongs in the sorted table[.., :]; a single table is for all."""
    table, labels = site.shape("sorted_sequence"), dims(len(site.output.shape))
    if "self" not in site.tensors or site.shape("self") != site.output.shape or not labels:
        return None
    read: list[Label] = [*(labels[:-1] if len(table) > 1 else []), None]
    operands: dict[str, Labels] = {"self": labels, "sorted_sequence": read}
    if "sorter" in site.tensors:
        operands["sorter"] = read
    return Signature(operands, labels)


@row("aten.bucketize", "aten.isin")
def looked_up(site: Site) -> Signature | None:
    """y[..] = f(x[..], table), the table whole."""
    labels = dims(len(site.output.shape))
    first, *others = site.tensors
    if site.shape(first) != site.output.shape:  # a number looked up in a tensor
        return None
    return Signature({first: labels} | {name: [None] * len(site.shape(name)) for name in others}, labels)


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
