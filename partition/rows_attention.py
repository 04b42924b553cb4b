"""Rows of attention."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from .row import aligned, dims, row
from .signature import Call, Labels, Noise, Signature, Site


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
