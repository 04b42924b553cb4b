"""Sharding rules of elementwise operators, with broadcasting, and of dropout."""

import math

import torch
from torch import Tensor

from ..sharding.cost_class import COPY, ELEMENTWISE, FUNCTION, VIEW
from ..sharding.sharding_rule import align_labels, is_broadcastable, make_labels, sharding_rule
from ..sharding.signature import Call, Composite, DropoutMask, Label, Labels, Signature, Site

# Operators of one tensor and of several, those apart that cost what a transcendental function does.
# fmt: off
UNARY_FUNCTIONS = (
    "gelu", "tanh", "sigmoid", "silu", "elu", "selu", "celu", "mish", "softplus", "log_sigmoid", "exp", "exp2",
    "expm1", "log", "log1p", "log2", "log10", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "asinh",
    "acosh", "atanh", "sinc", "erf", "erfc", "erfinv", "lgamma", "digamma", "logit",
)
UNARY_ARITHMETIC = (
    "relu", "relu6", "leaky_relu", "hardtanh", "hardswish", "hardsigmoid", "hardshrink", "softshrink", "threshold",
    "sqrt", "rsqrt", "neg", "abs", "square", "reciprocal", "deg2rad", "rad2deg", "floor", "ceil", "round", "trunc",
    "frac", "sign", "sgn", "signbit", "nan_to_num", "isnan", "isinf", "isfinite", "isneginf", "isposinf",
    "logical_not", "bitwise_not", "clamp", "clamp_min", "clamp_max", "clip", "conj_physical", "angle",
)
COPIES = ("clone", "_to_copy")
VIEWS = ("positive", "contiguous", "detach", "alias", "to", "lift_fresh_copy")
UNARY = (*UNARY_FUNCTIONS, *UNARY_ARITHMETIC, *COPIES, *VIEWS)
SPECIAL = (
    "digamma", "entr", "erf", "erfc", "erfcx", "erfinv", "exp2", "expit", "expm1", "gammaln", "i0", "i0e", "i1", "i1e",
    "log1p", "log_ndtr", "logit", "ndtr", "ndtri", "psi", "round", "sinc",
)
SEVERAL_FUNCTIONS = ("fmod", "remainder", "pow", "float_power", "atan2", "logaddexp", "logaddexp2", "xlogy")
SEVERAL_ARITHMETIC = (
    "add", "sub", "rsub", "subtract", "mul", "multiply", "div", "divide", "true_divide", "floor_divide", "maximum",
    "minimum", "fmax", "fmin", "hypot", "copysign", "special_xlogy", "special_xlog1py", "heaviside", "complex",
    "polar", "lerp", "addcmul", "addcdiv", "where", "masked_fill", "eq", "ne", "lt", "le", "gt", "ge", "not_equal",
    "less", "less_equal", "greater", "greater_equal", "isclose", "logical_and", "logical_or", "logical_xor",
    "bitwise_and", "bitwise_or", "bitwise_xor", "__and__", "__or__", "__xor__", "bitwise_left_shift",
    "bitwise_right_shift", "__lshift__", "__rshift__",
)
SEVERAL = (*SEVERAL_FUNCTIONS, *SEVERAL_ARITHMETIC)
# fmt: on


@sharding_rule(*(f"aten.{name}" for name in (*UNARY_FUNCTIONS, *SEVERAL_FUNCTIONS)), cost=FUNCTION)
@sharding_rule(*(f"aten.{name}" for name in (*UNARY_ARITHMETIC, *SEVERAL_ARITHMETIC)), cost=ELEMENTWISE)
@sharding_rule(*(f"aten.special_{name}" for name in SPECIAL), cost=ELEMENTWISE)
@sharding_rule(*(f"aten.{name}" for name in COPIES), cost=COPY)
@sharding_rule(*(f"aten.{name}" for name in VIEWS), cost=VIEW)
def elementwise(site: Site) -> Signature | None:
    """y[..] = f(a[..], b[..], ...), each operand broadcast to y."""
    out = site.output.shape
    if any(
        not is_broadcastable(t.shape, out) for t in site.tensors.values()
    ):  # `to` the dtype of a tensor of another shape
        return None
    labels = make_labels(len(out))
    return Signature({name: align_labels(t.shape, out, labels) for name, t in site.tensors.items()}, labels)


@sharding_rule(
    *(f"aten.{name}" for name in ("conj", "real", "imag")),
    cost=ELEMENTWISE,
    local=lambda call: call.run_torch().resolve_conj().resolve_neg(),
    moves_data=True,
)
def part_of_complex(site: Site) -> Signature | None:
    """y[..] of x[..], with its own memory: a lazy conjugate cannot be sent."""
    labels = make_labels(len(site.output.shape))
    return Signature({"self": labels}, labels, work=0.0)


@sharding_rule("aten.prelu", cost=ELEMENTWISE)
def prelu(site: Site) -> Signature | None:
    """y[b, c, ..] = x where it is positive, else weight[c] x; a single weight is for all channels."""
    labels = make_labels(len(site.output.shape))
    single = site.shape("weight") in ((), (1,)) or len(labels) < 2
    weight: list[Label] = [None if single else labels[1]] * len(site.shape("weight"))
    return Signature({"self": labels, "weight": weight}, labels)


@sharding_rule("aten.glu", cost=ELEMENTWISE)
def glu(site: Site) -> Signature | None:
    """y[.., i, ..] = x[.., 0, i, ..] sigmoid(x[.., 1, i, ..])"""
    labels = make_labels(len(site.output.shape))
    dim = site["dim"] % len(labels)
    read: list[Label] = list(labels)
    read[dim] = Composite(((None, 2), (labels[dim], site.output.shape[dim])))
    return Signature({"self": read}, labels, work=3.0)


@sharding_rule("aten.searchsorted", cost=ELEMENTWISE)
def searchsorted(site: Site) -> Signature | None:
    """y[.., i] = where x[.., i] belongs in the sorted table[.., :]; a single table is for all."""
    table, labels = site.shape("sorted_sequence"), make_labels(len(site.output.shape))
    if "self" not in site.tensors or site.shape("self") != site.output.shape or not labels:
        return None
    read: list[Label] = [*(labels[:-1] if len(table) > 1 else []), None]
    operands: dict[str, Labels] = {"self": labels, "sorted_sequence": read}
    if "sorter" in site.tensors:
        operands["sorter"] = read
    return Signature(operands, labels)


@sharding_rule("aten.bucketize", "aten.isin", cost=ELEMENTWISE)
def table_lookup(site: Site) -> Signature | None:
    """y[..] = f(x[..], table), the table whole."""
    labels = make_labels(len(site.output.shape))
    first, *others = site.tensors
    if site.shape(first) != site.output.shape:  # a number looked up in a tensor
        return None
    return Signature({first: labels} | {name: [None] * len(site.shape(name)) for name in others}, labels)


def _dropout(call: Call) -> Tensor:
    x: Tensor = call["input"]
    return call.run_torch() if call.mask is None else x * call.mask


@sharding_rule("aten.dropout", cost=ELEMENTWISE, local=_dropout)
def dropout(site: Site) -> Signature | None:
    """y = x * mask / (1 - p); the mask is drawn for the whole tensor and cut, so that it does not depend on the cut."""
    labels = make_labels(len(site.output.shape))
    p, x = site["p"], site["input"]
    mask = (
        DropoutMask(x.shape, x.stride, x.dtype, p, labels)
        if site["train"] and 0 < p < 1 and math.prod(x.shape)
        else None
    )
    return Signature({"input": labels}, labels, mask=mask)


ALPHA = 1.7580993408473766  # -(scale * alpha) of a SELU (Klambauer et al. 2017), as ATen has it


def _feature_dropout(call: Call) -> Tensor:
    x: Tensor = call["input"]
    return call.run_torch() if call.mask is None else x * call.mask


@sharding_rule("aten.feature_dropout", cost=ELEMENTWISE, local=_feature_dropout)
def feature_dropout(site: Site) -> Signature | None:
    """Whole channels are dropped: y[b, c, ..] = x[b, c, ..] * mask[b, c] / (1 - p)"""
    labels = make_labels(len(site.output.shape))
    return Signature({"input": labels}, labels, mask=_channel_mask(site, labels))


def _channel_mask(site: Site, labels: list[str]) -> DropoutMask | None:
    """Return the mask of whole channels, as ATen's make_feature_noise draws it; None where nothing is dropped."""
    p, x = site["p"], site["input"]
    if not site["train"] or not 0 < p < 1:
        return None
    shape = (*x.shape[:2], *[1] * (len(x.shape) - 2))
    mask_labels: list[Label] = [*labels[:2], *[None] * (len(x.shape) - 2)]
    return DropoutMask(shape, (x.shape[1], *[1] * (len(shape) - 1)), x.dtype, p, mask_labels)


def _alpha_dropout(call: Call) -> Tensor:
    """Compute what ATen's _dropout_impl does, with the mask drawn beforehand."""
    if call.mask is None:
        return call.run_torch()
    x, p, kept = call["input"], call["p"], (call.mask != 0).to(call.mask.dtype)
    a = 1.0 / math.sqrt((ALPHA * ALPHA * p + 1) * (1 - p))
    shift = kept.add(-1).mul_(ALPHA * a).add_(ALPHA * a * p)
    return torch.mul(x, kept.mul_(a)).add_(shift)


@sharding_rule("aten.alpha_dropout", cost=ELEMENTWISE, local=_alpha_dropout)
def alpha_dropout(site: Site) -> Signature | None:
    """y = a * (x * mask + alpha' * (1 - mask)) + b keeps mean and variance (Klambauer et al. 2017)."""
    labels = make_labels(len(site.output.shape))
    p, x = site["p"], site["input"]
    mask = DropoutMask(x.shape, x.stride, x.dtype, p, labels) if site["train"] and 0 < p < 1 else None
    return Signature({"input": labels}, labels, mask=mask)


@sharding_rule("aten.feature_alpha_dropout", cost=ELEMENTWISE, local=_alpha_dropout)
def feature_alpha_dropout(site: Site) -> Signature | None:
    """Alpha dropout of whole channels."""
    labels = make_labels(len(site.output.shape))
    return Signature({"input": labels}, labels, mask=_channel_mask(site, labels))
