"""Boxes of losses."""

from typing import Any

import torch
from rule_calls import Given, b, build, given, n, x
from rule_tests import RuleAndWholeCallTests

from cutset.partition.operators.rules import loss


def classified() -> dict[str, Given]:
    score, soft, weight = x(6, 5), x(6, 5).softmax(1), torch.rand(5, dtype=torch.float64)
    labels, image, images = n(5, 6), n(5, 2, 3, 4), x(2, 5, 3, 4)
    entropy = {
        "": (score, labels),
        "weighted": (score, labels, weight),
        "ignored": (score, labels, weight, 1, 2),
        "summed": (score, labels, None, 2),
        "none": (score, labels, weight, 0),
        "smoothed": (score, labels, weight, 1, 3, 0.2),
        "smoothed plain": (score, labels, None, 1, -100, 0.1),
        "soft": (score, soft, weight),
        "soft smoothed": (score, soft, None, 1, -100, 0.2),
        "spatial": (images, image, weight, 1, 1),
        "soft spatial": (images, images.softmax(1)),
    }
    likelihood = {
        "nll_loss": (score, labels, weight),
        "nll_loss summed": (score, labels, weight, 2, 3),
        "nll_loss none": (score, labels, weight, 0),
        "nll_loss_nd": (score, labels, None, 1, 2),
        "nll_loss_nd spatial": (images, image, weight, 1, 1),
        "nll_loss2d": (images, image),
    }
    return {
        f"entropy {name}": given("cross_entropy_loss", *args, still=("weight",)) for name, args in entropy.items()
    } | {name: given(name.split()[0], *args, still=("weight",)) for name, args in likelihood.items()}


def pointwise() -> dict[str, Given]:
    target, reduce = torch.rand(4, 6, dtype=torch.float64), {"mean": 1, "sum": 2, "none": 0}
    sign, shares = torch.where(b(4, 6), 1.0, -1.0).double(), x(4, 6).sigmoid()
    calls: dict[str, tuple[Any, ...]] = {
        "mse_loss": (x(4, 6), target),
        "l1_loss": (x(4, 6), target),
        "smooth_l1_loss": (x(4, 6), target),
        "huber_loss": (x(4, 6), target),
        "mse_loss broadcast": (x(4, 6), target[0]),
        "l1_loss broadcast": (x(4, 1), x(3, 1, 6)),
        "soft_margin_loss": (x(4, 6), sign),
        "kl_div": (x(4, 6).log_softmax(1), target),
        "binary_cross_entropy": (shares, target),
        "binary_cross_entropy weighted": (shares, target, x(6).abs()),
        "binary_cross_entropy_with_logits": (x(4, 6), target),
        "binary_cross_entropy_with_logits weighted": (x(4, 6), target, x(4, 1).abs(), x(6).abs()),
        "hinge_embedding_loss": (x(4, 6), sign, 0.5),
        "margin_ranking_loss": (x(4, 6), x(4, 6), sign, 0.5),
        "cosine_embedding_loss": (x(4, 6), x(4, 6), sign[:, 0], 0.5),
        "triplet_margin_loss": (x(4, 6), x(4, 6), x(4, 6)),
        "triplet_margin_loss broadcast": (x(3, 4, 6), x(1, 4, 6), x(3, 1, 6)),
    }
    return {
        f"{name} {how}": given(name.split()[0], *args, reduction=code, still=("target", "weight", "pos_weight"))
        for name, args in calls.items()
        for how, code in reduce.items()
    } | {
        "poisson_nll_loss": given("poisson_nll_loss", x(4, 6), target, True, True, 1e-8, 1, still=("target",)),
        "poisson_nll_loss summed": given("poisson_nll_loss", x(4, 6), target, True, False, 1e-8, 2),
        "kl_div of logarithms": given("kl_div", x(4, 6), x(4, 6), 1, log_target=True),
    }


class TestLoss(RuleAndWholeCallTests):
    rules = loss
    calls = build(classified, pointwise)
    whole_calls = (
        given("cross_entropy_loss", torch.zeros(5), torch.tensor(1)),
        given("nll_loss", torch.zeros(5), torch.tensor(1)),
    )
