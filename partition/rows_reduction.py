"""Rows of sums, means and losses."""

import math

from torch import Tensor

from .row import dims, row
from .signature import Call, Label, Labels, Signature, Site


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
