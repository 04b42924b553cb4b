"""The operator table: one row per ATen operator says how its loops run over axes, and how to run one box of it.

An operator without a row is opaque: one block, always correct. Coverage grows by adding rows; each is tested by running
random boxes against the whole operator (tests/partition/test_table.py).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from .signature import At, Call, Flat, Label, Labels, Noise, Signature, Site, Sliding

Sign = Callable[[Site], Signature | None]
Local = Callable[[Call], Tensor]


@dataclass
class Row:
    """sign: labels of a call, or None where this call is opaque; local: runs a box that is not the whole operator.

    moves: the operator only moves data, so that the local form serves every box.
    """

    name: str
    sign: Sign
    local: Local | None = None
    moves: bool = False


TABLE: dict[str, Row] = {}


def row(*names: str, local: Local | None = None, moves: bool = False) -> Callable[[Sign], Sign]:
    """Enter a signature under ATen names without overload."""

    def enter(sign: Sign) -> Sign:
        for name in names:
            TABLE[name] = Row(name, sign, local, moves)
        return sign

    return enter


def find(target: str) -> Row | None:
    """The row of "aten.linear.default"."""
    return TABLE.get(target.rsplit(".", 1)[0])


def dims(rank: int, prefix: str = "d") -> list[str]:
    """Labels d0, d1, ..."""
    return [f"{prefix}{i}" for i in range(rank)]


def aligned(shape: Sequence[int], out: Sequence[int], labels: Sequence[Label]) -> list[Label]:
    """Labels of an operand that broadcasts to `out`: aligned at the right, whole where its size is one."""
    tail = labels[len(out) - len(shape) :]
    return [
        label if size == full else None
        for size, full, label in zip(shape, out[len(out) - len(shape) :], tail, strict=True)
    ]


def _fits(shape: Sequence[int], out: Sequence[int]) -> bool:
    """Whether a shape broadcasts to `out`."""
    pairs = zip(reversed(shape), reversed(out), strict=False)
    return len(shape) <= len(out) and all(size in (1, full) for size, full in pairs)


# Elementwise, with broadcasting ------------------------------------------------------------------------------------

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
    if any(not _fits(t.shape, out) for t in site.tensors.values()):  # `to` the dtype of a tensor of another shape
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


# Moving data -------------------------------------------------------------------------------------------------------


def _reshape(call: Call) -> Tensor:
    x: Tensor = call["self"]
    return x.reshape(call.local_shape)


@row(
    *(f"aten.{name}" for name in ("reshape", "flatten", "unflatten", "unsqueeze", "squeeze")),
    local=_reshape,
)
def view(site: Site) -> Signature | None:
    """The flattened index stays; axes split and merge."""
    return Signature({"self": Flat()}, Flat(), work=0.0)


@row("aten.expand", local=lambda call: call["self"].expand(call.local_shape))
def expand(site: Site) -> Signature | None:
    """Broadcast to a larger shape."""
    out = site.output.shape
    labels = dims(len(out))
    return Signature({"self": aligned(site.shape("self"), out, labels)}, labels, work=0.0)


@row("aten.transpose", "aten.t", "aten.permute")
def transpose(site: Site) -> Signature | None:
    """y[.., j, .., i, ..] = x[.., i, .., j, ..]"""
    rank = len(site.output.shape)
    labels, order = dims(rank), list(range(rank))
    if site["dims"] is not None:
        order = [d % rank for d in site["dims"]]
    elif site["dim0"] is not None:
        a, b = site["dim0"] % rank, site["dim1"] % rank
        order[a], order[b] = order[b], order[a]
    else:
        order.reverse()
    return Signature({"self": labels}, [labels[d] for d in order], work=0.0)


def _select(call: Call) -> Tensor:
    x: Tensor = call["self"]
    dim = call["dim"] % x.dim()
    return x.select(dim, 0) if call.narrowed("self", dim) else call.plain()


@row("aten.select", local=_select, moves=True)
def select(site: Site) -> Signature | None:
    """y[..] = x[.., index, ..]"""
    shape = site.shape("self")
    dim = site["dim"] % len(shape)
    index = site["index"] % shape[dim]
    labels = dims(len(shape))
    read: list[Label] = [At(index, index + 1) if d == dim else label for d, label in enumerate(labels)]
    return Signature({"self": read}, [label for d, label in enumerate(labels) if d != dim], work=0.0)


def _slice(call: Call) -> Tensor:
    x: Tensor = call["self"]
    dim = call["dim"] % x.dim()
    if not call.narrowed("self", dim):
        return call.plain()
    return x[(slice(None),) * dim + (slice(None, None, call["step"]),)]


@row("aten.slice", local=_slice, moves=True)
def slice_(site: Site) -> Signature | None:
    """y[.., i, ..] = x[.., start + i * step, ..]"""
    shape, out = site.shape("self"), site.output.shape
    dim, step = site["dim"] % len(shape), site["step"]
    if not out[dim]:
        return None
    start = site["start"] or 0
    start = min(max(start + shape[dim] if start < 0 else start, 0), shape[dim])
    labels = dims(len(shape))
    read: list[Label] = list(labels)
    read[dim] = Sliding(labels[dim], step, start, 1, covers=False) if out[dim] > 1 else At(start, start + 1)
    return Signature({"self": read}, labels, work=0.0)


def _cat(call: Call) -> Tensor:
    parts = [t for t in call["tensors"] if t is not None]
    return parts[0].clone() if len(parts) == 1 else torch.cat(parts, call["dim"])


@row("aten.cat", local=_cat)
def cat(site: Site) -> Signature | None:
    """y = x0, x1, ... one behind the other along `dim`."""
    labels = dims(len(site.output.shape))
    dim = (site["dim"] or 0) % len(labels)
    operands: dict[str, Labels] = {}
    offset = 0
    for i, tensor in enumerate(site["tensors"]):
        if len(tensor.shape) != len(labels):
            return None
        read: list[Label] = list(labels)
        read[dim] = Sliding(labels[dim], 1, -offset, 1) if tensor.shape[dim] > 1 else At(0, 1)
        operands[f"tensors[{i}]"] = read
        offset += tensor.shape[dim]
    small = any(tensor.shape[dim] <= 1 for tensor in site["tensors"])
    return Signature(operands, labels, fixed=frozenset({labels[dim]} if small else ()), work=0.0)


STORE = "aten.copy_.default"


def _store(call: Call) -> Tensor:
    buffer: Tensor = call["self"]
    with torch.no_grad():
        return buffer.copy_(call["src"])


@row("aten.copy_", local=_store, moves=True)
def store(site: Site) -> Signature | None:
    """The buffer `self` becomes `src`: how a model's state changes in a step."""
    out = site.output.shape
    labels = dims(len(out))
    return Signature({"self": labels, "src": aligned(site.shape("src"), out, labels)}, labels, work=0.0)


# Contractions ------------------------------------------------------------------------------------------------------


@row("aten.linear")
def linear(site: Site) -> Signature | None:
    """y[.., n] = sum_k x[.., k] W[n, k] + b[n]"""
    lead = dims(len(site.shape("input")) - 1)
    if len(site.shape("weight")) != 2:
        return None
    operands: dict[str, Labels] = {"input": [*lead, "k"], "weight": ["n", "k"]}
    if site["bias"] is not None:
        operands["bias"] = ["n"]
    return Signature(operands, [*lead, "n"], summed=frozenset({"k"}), once=frozenset({"bias"}), work=2.0)


@row("aten.matmul", "aten.mm", "aten.bmm")
def matmul(site: Site) -> Signature | None:
    """y[.., i, j] = sum_k a[.., i, k] b[.., k, j], the leading dimensions broadcast."""
    right_name = "other" if site["other"] is not None else "mat2"
    left, right = site.shape("self"), site.shape(right_name)
    if len(left) < 2 or len(right) < 2:
        return None
    out = site.output.shape
    lead = dims(len(out) - 2, "b")
    operands = {
        "self": [*aligned(left[:-2], out[:-2], lead), "i", "k"],
        right_name: [*aligned(right[:-2], out[:-2], lead), "k", "j"],
    }
    return Signature(operands, [*lead, "i", "j"], summed=frozenset({"k"}), work=2.0)


@row("aten.embedding")
def embedding(site: Site) -> Signature | None:
    """y[.., d] = W[index[..], d]; the table is read whole along its rows."""
    if site["scale_grad_by_freq"]:  # counts the indices of the whole batch
        return None
    lead = dims(len(site.shape("indices")), "i")
    return Signature({"weight": [None, "d"], "indices": lead}, [*lead, "d"])


# Windows: convolution, pooling, local filters ----------------------------------------------------------------------


def _per_dim(value: int | Sequence[int], rank: int) -> list[int]:
    values = [value] if isinstance(value, int) else list(value)
    return values * rank if len(values) == 1 else values


def _padded(call: Call, argument: str, first: int, windows: Sequence[tuple[int, int, int]], fill: float) -> Tensor:
    """The local operand with the padding that this box's windows (stride, padding, extent) reach beyond the edges."""
    pads: list[int] = []
    for d, (stride, padding, extent) in enumerate(windows, start=first):
        if not call.narrowed(argument, d):
            pads = [padding, padding, *pads]
            continue
        start, stop = call.output_interval(d)
        low, high = call.interval(argument, d)
        want_low, want_high = start * stride - padding, (stop - 1) * stride - padding + extent
        # An uncut loop may read beyond its last window: the edge that the stride leaves over.
        pads = [low - want_low, max(0, want_high - high), *pads]
    return F.pad(call[argument], pads, value=fill) if any(pads) else call[argument]


def _convolution_windows(call_or_site: Call | Site, rank: int) -> list[tuple[int, int, int]] | None:
    kernel = call_or_site.shape("weight")[2:]
    dilation = _per_dim(call_or_site["dilation"], rank)
    padding = call_or_site["padding"]
    extents = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    if padding == "valid":
        padding = 0
    elif padding == "same":
        if any(extent % 2 == 0 for extent in extents):
            return None
        padding = [extent // 2 for extent in extents]
    return list(zip(_per_dim(call_or_site["stride"], rank), _per_dim(padding, rank), extents, strict=True))


def _convolution(call: Call) -> Tensor:
    rank = len(call.shape("weight")) - 2
    windows = _convolution_windows(call, rank)
    if windows is None or not call.cut_along(range(2, 2 + rank)):
        return call.plain()
    convolve = (F.conv1d, F.conv2d, F.conv3d)[rank - 1]
    x = _padded(call, "input", 2, windows, 0.0)
    stride, dilation = call["stride"], call["dilation"]
    return convolve(x, call["weight"], call["bias"], stride, 0, dilation, call["groups"])


@row("aten.conv1d", "aten.conv2d", "aten.conv3d", local=_convolution)
def convolution(site: Site) -> Signature | None:
    """y[b, o, p..] = sum_{c, q..} x[b, c, p * stride - padding + q * dilation] W[o, c, q..] + bias[o]"""
    shape = site.shape("weight")
    rank = len(shape) - 2
    windows = _convolution_windows(site, rank)
    if windows is None or len(site.shape("input")) != rank + 2 or any(pad >= extent for _, pad, extent in windows):
        return None
    space = dims(rank, "p")
    grouped = site["groups"] != 1
    slide = [Sliding(p, s, -pad, e) for p, (s, pad, e) in zip(space, windows, strict=True)]
    whole: list[Label] = [None] * rank
    operands: dict[str, Labels] = {
        "input": ["b", None if grouped else "c", *slide],
        "weight": [None, None, *whole] if grouped else ["o", "c", *whole],
    }
    if site["bias"] is not None:
        operands["bias"] = [None if grouped else "o"]
    work = 2.0 * math.prod(shape[2:]) * (shape[1] if grouped else 1)
    return Signature(
        operands,
        ["b", "o", *space],
        summed=frozenset() if grouped else frozenset({"c"}),
        fixed=frozenset({"o"} if grouped else ()),
        once=frozenset({"bias"}),
        work=work,
    )


def _pool_windows(call_or_site: Call | Site, rank: int) -> list[tuple[int, int, int]]:
    kernel = _per_dim(call_or_site["kernel_size"], rank)
    stride = _per_dim(call_or_site["stride"] or kernel, rank)
    dilation = _per_dim(call_or_site["dilation"] or 1, rank)
    extents = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    return list(zip(stride, _per_dim(call_or_site["padding"], rank), extents, strict=True))


def _pool(call: Call) -> Tensor:
    rank, full = 2, len(call.shape())
    if not call.cut_along(range(full - rank, full)):
        return call.plain()
    edge = -math.inf if "max_pool" in call.op.target else 0.0
    x = _padded(call, "self", full - rank, _pool_windows(call, rank), edge)
    return call.plain(self=x, padding=[0] * rank)


@row("aten.max_pool2d", "aten.avg_pool2d", local=_pool)
def pool(site: Site) -> Signature | None:
    """y[.., p..] = max or mean over a window of x[.., p * stride - padding + q..]"""
    rank = 2
    windows = _pool_windows(site, rank)
    lead, space = dims(len(site.output.shape) - rank), dims(rank, "p")
    uneven = site["ceil_mode"] or (site["count_include_pad"] is False and any(pad for _, pad, _ in windows))
    slide = [Sliding(p, s, -pad, e) for p, (s, pad, e) in zip(space, windows, strict=True)]
    fixed = frozenset(space) if uneven else frozenset()
    return Signature(
        {"self": [*lead, *slide]}, [*lead, *space], fixed=fixed, work=float(math.prod(w[2] for w in windows))
    )


@row("cutset.local2d")
def local2d(site: Site) -> Signature | None:
    """y[b, o, r, s] = sum_{c, i, j} x[b, c, r * stride + i, s * stride + j] W[r, s, o, c, i, j] + bias[o, r, s]"""
    stride, (*_, high, wide) = site["stride"], site.shape("weight")
    operands: dict[str, Labels] = {
        "x": ["b", "c", Sliding("r", stride, 0, high), Sliding("s", stride, 0, wide)],
        "weight": ["r", "s", "o", "c", None, None],
    }
    if site["bias"] is not None:
        operands["bias"] = ["o", "r", "s"]
    return Signature(
        operands, ["b", "o", "r", "s"], summed=frozenset({"c"}), once=frozenset({"bias"}), work=2.0 * high * wide
    )


# Normalisation, softmax, attention ---------------------------------------------------------------------------------


@row("aten.layer_norm")
def layer_norm(site: Site) -> Signature | None:
    """The last dimensions are normalised together and stay whole."""
    labels = dims(len(site.output.shape))
    last = labels[len(labels) - len(site["normalized_shape"]) :]
    operands: dict[str, Labels] = {"input": labels}
    operands |= {name: last for name in ("weight", "bias") if site[name] is not None}
    return Signature(operands, labels, fixed=frozenset(last), work=5.0)


@row("aten.batch_norm")
def batch_norm(site: Site) -> Signature | None:
    """Channel by channel; the statistics of a training batch keep batch and space whole."""
    labels = dims(len(site.output.shape))
    operands: dict[str, Labels] = {"input": labels}
    names = ("weight", "bias", "running_mean", "running_var")
    operands |= {name: [labels[1]] for name in names if site[name] is not None}
    fixed = frozenset(label for i, label in enumerate(labels) if site["training"] and i != 1)
    return Signature(operands, labels, fixed=fixed, work=5.0)


@row("aten.softmax", "aten.log_softmax", "aten._softmax", "aten._log_softmax")
def softmax(site: Site) -> Signature | None:
    """Normalised along `dim`, which stays whole."""
    labels = dims(len(site.output.shape))
    return Signature({"self": labels}, labels, fixed=frozenset({labels[site["dim"]]} if labels else ()), work=4.0)


def _attention(call: Call) -> Tensor:
    if call.noise is None:
        return call.plain()
    # As torch's own composite does it (aten::_scaled_dot_product_attention_math), with the mask drawn beforehand.
    q, k, v, mask = call["query"], call["key"], call["value"], call["attn_mask"]
    scale = math.sqrt(call["scale"] if call["scale"] is not None else 1.0 / math.sqrt(q.shape[-1]))
    scores = torch.matmul(q * scale, k.transpose(-2, -1) * scale)
    if call["is_causal"]:
        mask = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).tril()
    if mask is not None and mask.dtype == torch.bool:
        mask = torch.zeros_like(mask, dtype=q.dtype).masked_fill_(mask.logical_not(), -math.inf)
    if mask is not None:
        scores = scores + mask
    weights = torch._safe_softmax(scores, -1) if mask is not None else torch.softmax(scores, -1)
    return torch.matmul(weights * call.noise, v)


@row("aten.scaled_dot_product_attention", local=_attention)
def attention(site: Site) -> Signature | None:
    """y[.., l, v] = sum_s softmax_s(q[.., l, :] . k[.., s, :]) V[.., s, v]; sequences of keys stay whole."""
    q, k, v, out = site.shape("query"), site.shape("key"), site.shape("value"), site.output.shape
    if site["enable_gqa"] or len(q) < 3:
        return None
    lead = dims(len(out) - 2, "b")
    operands: dict[str, Labels] = {
        "query": [*aligned(q[:-2], out[:-2], lead), "l", None],
        "key": [*aligned(k[:-2], out[:-2], lead), None, None],
        "value": [*aligned(v[:-2], out[:-2], lead), None, "v"],
    }
    if site["attn_mask"] is not None:
        shape = site.shape("attn_mask")
        operands["attn_mask"] = [*aligned(shape[:-1], out[:-1], [*lead, "l"]), None]
    p, scores = site["dropout_p"], (*out[:-1], k[-2])
    noise = Noise(scores, _contiguous(scores), site["query"].dtype, p, [*lead, "l", None]) if 0 < p < 1 else None
    return Signature(
        operands,
        [*lead, "l", "v"],
        fixed=frozenset({"l"} if site["is_causal"] else ()),
        work=2.0 * k[-2] * (q[-1] + v[-1]) / v[-1],
        noise=noise,
    )


def _contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(math.prod(shape[d + 1 :]) for d in range(len(shape)))


# Sums and losses ---------------------------------------------------------------------------------------------------


def _reduced(site_or_call: Site | Call, rank: int) -> list[int]:
    given = site_or_call["dim"]
    if given is None or given == []:
        return list(range(rank))
    return [d % rank for d in ([given] if isinstance(given, int) else given)]


def _reduce(call: Call) -> Tensor:
    shape = call.shape("self")
    over = _reduced(call, len(shape))
    x: Tensor = call["self"]
    total = x.sum(over, keepdim=bool(call["keepdim"]), dtype=call["dtype"])
    return total / math.prod(shape[d] for d in over) if ".mean." in call.op.target else total


@row("aten.mean", "aten.sum", local=_reduce)
def reduce(site: Site) -> Signature | None:
    """The reduced dimensions are summed; a mean is a sum divided by the whole count."""
    labels = dims(len(site.shape("self")))
    over = {labels[d] for d in _reduced(site, len(labels))}
    output: list[Label] = [None if label in over else label for label in labels]
    if not site["keepdim"]:
        output = [label for label in labels if label not in over]
    return Signature({"self": labels}, output, summed=frozenset(over))


NONE, MEAN = 0, 1  # aten's codes of a loss's reduction


def _cross_entropy(call: Call) -> Tensor:
    if call["reduction"] != MEAN:
        return call.plain()
    target, weight, total = call.whole["target"], call["weight"], call.plain(reduction=2)
    if target.is_floating_point():
        return total / (target.numel() / target.shape[1])
    valid = target != call["ignore_index"]
    divisor: Tensor = valid.sum() if weight is None else weight[target[valid]].sum()
    return total / divisor


@row("aten.cross_entropy_loss", local=_cross_entropy)
def cross_entropy(site: Site) -> Signature | None:
    """Mean over samples of -log softmax(x)[target]; classes stay whole. The divisor is taken from the whole target."""
    x, target = site.shape("self"), site.shape("target")
    if len(x) < 2:
        return None
    rest = dims(len(x) - 2)
    classes = ["b", None, *rest]
    operands: dict[str, Labels] = {"self": classes, "target": classes if len(target) == len(x) else ["b", *rest]}
    if site["weight"] is not None:
        operands["weight"] = [None]
    if site["reduction"] == NONE:
        return Signature(operands, ["b", *rest], work=float(5 * x[1]))
    again = frozenset({"target"} if site["reduction"] == MEAN else ())
    return Signature(operands, [], summed=frozenset({"b", *rest}), again=again, work=float(5 * x[1]))


def _pointwise_loss(call: Call) -> Tensor:
    if call["reduction"] != MEAN:
        return call.plain()
    return call.plain(reduction=2) / math.prod(call.shape("self"))


@row(
    *(f"aten.{name}" for name in ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss")),
    "aten.binary_cross_entropy_with_logits",
    local=_pointwise_loss,
)
def pointwise_loss(site: Site) -> Signature | None:
    """Mean or sum of f(x[..], target[..])"""
    x = site.shape("self")
    if x != site.shape("target") or site["weight"] is not None or site["pos_weight"] is not None:
        return None
    labels = dims(len(x))
    operands: dict[str, Labels] = {"self": labels, "target": labels}
    if site["reduction"] == NONE:
        return Signature(operands, labels)
    return Signature(operands, [], summed=frozenset(labels), work=3.0)
