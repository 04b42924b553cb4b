"""Rows of contractions: linear layers, matrix products, embeddings."""

from .row import aligned, dims, row
from .signature import Labels, Signature, Site


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
