"""Rows of attention."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from .sharding_rule import aligned, dims, row
from .signature import Call, Label, Labels, Noise, Parts, Signature, Site


def _causal(call: Call) -> Tensor:
    """What the queries of this box may attend to: key s of query l where s <= l."""
    keys: int = call["key"].shape[-2]
    return torch.arange(keys) <= call.indices(-2)[:, None]


def _attention(call: Call) -> Tensor:
    if call.noise is not None:
        return _dropped(call, call.noise)
    if not call["is_causal"] or not call.cut_along([len(call.shape()) - 2]):
        return call.plain()
    return call.plain(attn_mask=_causal(call), is_causal=False)


def _dropped(call: Call, noise: Tensor) -> Tensor:
    """As torch's own composite does it (aten::_scaled_dot_product_attention_math), with the mask drawn beforehand."""
    dtype = call["query"].dtype
    q, k, v = (call[name].to(_inner(dtype)) for name in ("query", "key", "value"))
    mask = call["attn_mask"]
    if call["enable_gqa"]:
        k, v = (t.repeat_interleave(q.shape[-3] // t.shape[-3], -3) for t in (k, v))
    scale = math.sqrt(call["scale"] if call["scale"] is not None else 1.0 / math.sqrt(q.shape[-1]))
    scores = torch.matmul(q * scale, k.transpose(-2, -1) * scale)
    if call["is_causal"]:
        mask = _causal(call)
    if mask is not None and mask.dtype == torch.bool:
        mask = torch.zeros_like(mask, dtype=q.dtype).masked_fill_(mask.logical_not(), -math.inf)
    if mask is not None:
        scores = scores + mask
    weights = torch._safe_softmax(scores, -1) if mask is not None else torch.softmax(scores, -1)
    return torch.matmul(weights * noise, v).to(dtype)


def _inner(dtype: torch.dtype) -> torch.dtype:
    """In which the composite computes, and draws, what it is given in `dtype`."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


@row("aten.scaled_dot_product_attention", local=_attention)
def attention(site: Site) -> Signature | None:
    """y[.., l, v] = sum_s softmax_s(q[.., l, :] . k[.., s, :]) V[.., s, v]; sequences of keys stay whole.

    With `enable_gqa` head (g, r) of the queries attends to head g of keys and values.
    """
    q, k, v, out = site.shape("query"), site.shape("key"), site.shape("value"), site.output.shape
    lead: list[Label] = list(dims(len(out) - 2, "b"))
    keys, values = aligned(k[:-2], out[:-2], lead), aligned(v[:-2], out[:-2], lead)
    if site["enable_gqa"]:
        if len(q) < 3 or not len(q) == len(k) == len(v) or k[-3] != v[-3]:
            return None
        lead[-1] = Parts((("g", k[-3]), ("r", q[-3] // k[-3])))
        keys[-1] = values[-1] = "g"
    operands: dict[str, Labels] = {
        "query": [*aligned(q[:-2], out[:-2], lead), "l", None],
        "key": [*keys, None, None],
        "value": [*values, None, "v"],
    }
    if site["attn_mask"] is not None:
        shape = site.shape("attn_mask")
        operands["attn_mask"] = [*aligned(shape[:-1], out[:-1], [*lead, "l"]), None]
    p, scores = site["dropout_p"], (*out[:-1], k[-2])
    drawn = str(_inner(getattr(torch, site["query"].dtype))).removeprefix("torch.")
    noise = Noise(scores, _contiguous(scores), drawn, p, [*lead, "l", None]) if 0 < p < 1 else None
    work = 2.0 * k[-2] * (q[-1] + v[-1]) / v[-1]
    return Signature(operands, [*lead, "l", "v"], work=work, noise=noise)


def _contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(math.prod(shape[d + 1 :]) for d in range(len(shape)))
