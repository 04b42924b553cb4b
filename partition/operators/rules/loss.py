"""Sharding rules of losses: a mean divides a sum by what the whole batch counts."""

import math
from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import Tensor

from ..sharding.cost_class import LOSS
from ..sharding.partial_reductions import EXPONENTIALS, combine_exponentials, compute_exponentials
from ..sharding.sharding_rule import Summary, align_labels, broadcast_shape, make_labels, sharding_rule
from ..sharding.signature import Call, Labels, Signature, Site

NONE, MEAN, SUM = 0, 1, 2  # aten's codes of a loss's reduction
IGNORED = -100


def _divide_by_count(call: Call, total: Tensor) -> Tensor:
    """Divide a sum over samples by the count, or weight, of the whole target, if the mean is wanted."""
    if call["reduction"] != MEAN:
        return total
    target, weight = call.whole["target"], call["weight"]
    if target.is_floating_point():
        return total / (target.numel() / target.shape[1])
    valid = target != call["ignore_index"]
    divisor: Tensor = valid.sum() if weight is None else weight[target[valid]].sum()
    return total / divisor


def _without_mean(call: Call) -> int:
    return SUM if call["reduction"] == MEAN else int(call["reduction"])


def _entropy(call: Call) -> Tensor:
    return _divide_by_count(call, call.run_torch(reduction=_without_mean(call)))


def _local_targets(call: Call) -> tuple[Tensor, Tensor]:
    """Return the target's position among the classes of this box, and whether it is one of them."""
    classes, target, count = call.indices(1, "self"), call["target"], call.shape("self")[1]
    position_of = torch.full((count,), -1).index_copy(0, classes, torch.arange(len(classes)))
    counted = target != call["ignore_index"]
    outside = target[counted & ((target < 0) | (target >= count))]
    if outside.numel():
        raise IndexError(f"Target {outside[0].item()} is out of bounds.")  # as torch says it
    position = position_of[torch.where(counted, target, 0)]
    return position.clamp_min(0), counted & (position >= 0)


def _summarise_entropy(call: Call) -> Tensor:
    x: Tensor = call["self"].to(call.dtype)
    position, here = _local_targets(call)
    score = torch.where(here, x.gather(1, position[:, None]).squeeze(1), 0)
    return torch.cat([compute_exponentials(x, [1]), score[None, None]], dim=1)


def _combine_entropy(call: Call) -> Tensor:
    target, weight, parts = call["target"], call["weight"], call.summaries
    assert parts is not None
    counted = target != call["ignore_index"]
    of_sample = combine_exponentials(parts[:, :EXPONENTIALS]) - parts[:, EXPONENTIALS].sum(0)
    of_sample = torch.where(counted, of_sample.reshape(target.shape), 0)
    if weight is not None:
        of_sample = of_sample * weight[torch.where(counted, target, 0)]
    return _divide_by_count(call, of_sample if call["reduction"] == NONE else of_sample.sum()).to(call.dtype)


@sharding_rule(
    "aten.cross_entropy_loss",
    cost=LOSS,
    local=_entropy,
    summary=Summary(3, _summarise_entropy, _combine_entropy, reads=("self", "target")),
)
def cross_entropy(site: Site) -> Signature | None:
    """Mean over samples of -log softmax(x)[target], the divisor taken from the whole target.

    Parts of the classes exchange a softmax's summaries and the target's score.
    """
    signature = _over_all_classes(site)
    by_index = len(site.shape("target")) < len(site.shape("self"))
    if signature is None or not by_index or site["label_smoothing"]:
        return signature
    return replace(_with_classes(signature), non_additive=frozenset({"c"}), work=5.0)


def _over_all_classes(site: Site) -> Signature | None:
    """Label a mean over samples of a function of all classes."""
    x, target = site.shape("self"), site.shape("target")
    if len(x) < 2:
        return None
    rest = make_labels(len(x) - 2)
    classes = ["b", None, *rest]
    operands: dict[str, Labels] = {"self": classes, "target": classes if len(target) == len(x) else ["b", *rest]}
    if site["weight"] is not None:
        operands["weight"] = [None]
    if site["reduction"] == NONE:
        return Signature(operands, ["b", *rest], work=float(5 * x[1]))
    again = frozenset({"target"} if site["reduction"] == MEAN else ())
    return Signature(operands, [], summed=frozenset({"b", *rest}), again=again, work=float(5 * x[1]))


def _with_classes(signature: Signature) -> Signature:
    b, _, *rest = signature.operands["self"]
    return replace(signature, operands={**signature.operands, "self": [b, "c", *rest]})


def _nll_loss(call: Call) -> Tensor:
    position, here = _local_targets(call)
    weight = None if call["weight"] is None else call["weight"][call.indices(1, "self")]
    target = torch.where(here, position, IGNORED)
    arguments = {"target": target, "weight": weight, "ignore_index": IGNORED, "reduction": _without_mean(call)}
    return _divide_by_count(call, call.run_torch(**arguments))


@sharding_rule("aten.nll_loss", "aten.nll_loss_nd", "aten.nll_loss2d", cost=LOSS, local=_nll_loss)
def nll_loss(site: Site) -> Signature | None:
    """Mean over samples of -x[target], the divisor taken from the whole target; parts of the classes add up."""
    signature = _over_all_classes(site)
    if signature is None:
        return None
    return replace(_with_classes(signature), summed=signature.summed | {"c"}, work=1.0)


def _common_shape(site_or_call: Site | Call, names: Iterable[str]) -> tuple[int, ...]:
    return broadcast_shape(*(site_or_call.shape(name) for name in names))


def _pointwise(call: Call) -> Tensor:
    if call["reduction"] != MEAN:
        return call.run_torch()
    return call.run_torch(reduction=2) / math.prod(
        _common_shape(call, (operand.argument for operand in call.op.nest.operands))
    )


# fmt: off
POINTWISE = (
    "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "soft_margin_loss", "poisson_nll_loss", "kl_div",
    "binary_cross_entropy", "binary_cross_entropy_with_logits", "hinge_embedding_loss", "margin_ranking_loss",
)
# fmt: on


@sharding_rule(*(f"aten.{name}" for name in POINTWISE), cost=LOSS, local=_pointwise)
def pointwise(site: Site) -> Signature | None:
    """Mean or sum of f(x[..], target[..], ..), all broadcast."""
    full = _common_shape(site, site.tensors)
    labels = make_labels(len(full))
    operands: dict[str, Labels] = {name: align_labels(t.shape, full, labels) for name, t in site.tensors.items()}
    if site["reduction"] == NONE:
        return Signature(operands, labels, work=3.0)
    return Signature(operands, [], summed=frozenset(labels), work=3.0)


def _along_last(call: Call) -> Tensor:
    if call["reduction"] != MEAN:
        return call.run_torch()
    return call.run_torch(reduction=2) / math.prod(_common_shape(call, FEATURES[call.op.sharding_rule])[:-1])


FEATURES = {
    "aten.cosine_embedding_loss": ("input1", "input2"),
    "aten.triplet_margin_loss": ("anchor", "positive", "negative"),
}


@sharding_rule(*FEATURES, cost=LOSS, local=_along_last)
def along_last(site: Site) -> Signature | None:
    """Mean or sum over samples of a function of vectors, which stay whole."""
    full = _common_shape(site, FEATURES[site.target.rsplit(".", 1)[0]])
    labels = make_labels(len(full) - 1)
    operands: dict[str, Labels] = {}
    for name, tensor in site.tensors.items():
        shape = tensor.shape if name == "target" else tensor.shape[:-1]
        vector = [] if name == "target" else [None]
        operands[name] = [*align_labels(shape, full[:-1], labels), *vector]
    if site["reduction"] == NONE:
        return Signature(operands, labels, work=3.0 * full[-1])
    return Signature(operands, [], summed=frozenset(labels), work=3.0 * full[-1])
