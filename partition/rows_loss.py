"""Rows of losses: a mean divides a sum by what the whole batch counts."""

import math
from collections.abc import Iterable

from torch import Tensor

from .row import aligned, dims, row, together
from .signature import Call, Labels, Signature, Site

NONE, MEAN = 0, 1  # aten's codes of a loss's reduction


def _classified(call: Call) -> Tensor:
    if call["reduction"] != MEAN:
        return call.plain()
    target, weight, total = call.whole["target"], call["weight"], call.plain(reduction=2)
    if target.is_floating_point():
        return total / (target.numel() / target.shape[1])
    valid = target != call["ignore_index"]
    divisor: Tensor = valid.sum() if weight is None else weight[target[valid]].sum()
    return total / divisor


@row(
    *(f"aten.{name}" for name in ("cross_entropy_loss", "nll_loss", "nll_loss_nd", "nll_loss2d")),
    local=_classified,
)
def classified(site: Site) -> Signature | None:
    """Mean over samples of -log softmax(x)[target] or -x[target]; classes stay whole.

    The divisor is taken from the whole target.
    """
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


def _together(site_or_call: Site | Call, names: Iterable[str]) -> tuple[int, ...]:
    return together(*(site_or_call.shape(name) for name in names))


def _pointwise(call: Call) -> Tensor:
    if call["reduction"] != MEAN:
        return call.plain()
    return call.plain(reduction=2) / math.prod(_together(call, (operand.argument for operand in call.op.nest.operands)))


# fmt: off
POINTWISE = (
    "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "soft_margin_loss", "poisson_nll_loss", "kl_div",
    "binary_cross_entropy", "binary_cross_entropy_with_logits", "hinge_embedding_loss", "margin_ranking_loss",
)
# fmt: on


@row(*(f"aten.{name}" for name in POINTWISE), local=_pointwise)
def pointwise(site: Site) -> Signature | None:
    """Mean or sum of f(x[..], target[..], ..), all broadcast."""
    full = _together(site, site.tensors)
    labels = dims(len(full))
    operands: dict[str, Labels] = {name: aligned(t.shape, full, labels) for name, t in site.tensors.items()}
    if site["reduction"] == NONE:
        return Signature(operands, labels, work=3.0)
    return Signature(operands, [], summed=frozenset(labels), work=3.0)


def _along_last(call: Call) -> Tensor:
    if call["reduction"] != MEAN:
        return call.plain()
    return call.plain(reduction=2) / math.prod(_together(call, FEATURES[call.op.row])[:-1])


FEATURES = {
    "aten.cosine_embedding_loss": ("input1", "input2"),
    "aten.triplet_margin_loss": ("anchor", "positive", "negative"),
}


@row(*FEATURES, local=_along_last)
def along_last(site: Site) -> Signature | None:
    """Mean or sum over samples of a function of vectors, which stay whole."""
    full = _together(site, FEATURES[site.target.rsplit(".", 1)[0]])
    labels = dims(len(full) - 1)
    operands: dict[str, Labels] = {}
    for name, tensor in site.tensors.items():
        shape = tensor.shape if name == "target" else tensor.shape[:-1]
        vector = [] if name == "target" else [None]
        operands[name] = [*aligned(shape, full[:-1], labels), *vector]
    if site["reduction"] == NONE:
        return Signature(operands, labels, work=3.0 * full[-1])
    return Signature(operands, [], summed=frozenset(labels), work=3.0 * full[-1])
