"""Sharding rules of attention."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ..sharding.cost_class import ATTENTION
from ..sharding.sharding_rule import align_labels, make_labels, sharding_rule
from ..sharding.signature import Call, Composite, DropoutMask, Label, Labels, Signature, Site


def _causal(call: Call) -> Tensor:
    """Return which keys the queries of this box may attend to, bool [l, s]: those where s <= l."""
    keys: int = call["key"].shape[-2]
    return torch.arange(keys) <= call.indices(-2)[:, None]


def _attention(call: Call) -> Tensor:
    if call.mask is not None:
        return _attention_with_mask(call, call.mask)
    if not call["is_causal"] or not call.is_cut_along([len(call.shape()) - 2]):
        return call.run_torch()
    return call.run_torch(attn_mask=_causal(call), is_causal=False)


def _attention_with_mask(call: Call, dropout_mask: Tensor) -> Tensor:
    """Compute what torch's composite does (aten::_scaled_dot_product_attention_math), the dropout mask drawn before."""
    dtype = call["query"].dtype
    q, k, v = (call[name].to(_compute_dtype(dtype)) for name in ("query", "key", "value"))
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
    return torch.matmul(weights * dropout_mask, v).to(dtype)


def _compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which the composite computes, and draws, for operands of `dtype`."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


@sharding_rule("aten.scaled_dot_product_attention", cost=ATTENTION, local=_attention)
def attention(site: Site) -> Signature | None:
    """y[.., l, v] = sum_s softmax_s(q[.., l, :] . k[.., s, :]) V[.., s, v]; sequences of keys stay whole.

    With `enable_gqa` head (g, r) of the queries attends to head g of keys and values.
    """
    q, k, v, out = site.shape("query"), site.shape("key"), site.shape("value"), site.output.shape
    lead: list[Label] = list(make_labels(len(out) - 2, "b"))
    keys, values = align_labels(k[:-2], out[:-2], lead), align_labels(v[:-2], out[:-2], lead)
    if site["enable_gqa"]:
        if len(q) < 3 or not len(q) == len(k) == len(v) or k[-3] != v[-3]:
            return None
        lead[-1] = Composite((("g", k[-3]), ("r", q[-3] // k[-3])))
        keys[-1] = values[-1] = "g"
    operands: dict[str, Labels] = {
        "query": [*align_labels(q[:-2], out[:-2], lead), "l", None],
        "key": [*keys, None, None],
        "value": [*values, None, "v"],
    }
    if site["attn_mask"] is not None:
        shape = site.shape("attn_mask")
        operands["attn_mask"] = [*align_labels(shape[:-1], out[:-1], [*lead, "l"]), None]
    p, scores = site["dropout_p"], (*out[:-1], k[-2])
    mask_dtype = str(_compute_dtype(getattr(torch, site["query"].dtype))).removeprefix("torch.")
    dropout_mask = DropoutMask(scores, _contiguous(scores), mask_dtype, p, [*lead, "l", None]) if 0 < p < 1 else None
    work = 2.0 * k[-2] * (q[-1] + v[-1]) / v[-1]
    return Signature(operands, [*lead, "l", "v"], work=work, mask=dropout_mask)


def _contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(math.prod(shape[d + 1 :]) for d in range(len(shape)))
