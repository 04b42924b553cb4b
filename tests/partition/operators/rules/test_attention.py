"""Boxes of attention."""

import torch
from rule_calls import Given, b, build, given, x
from rule_tests import RuleTests

from cutset.partition.operators.rules import attention as rules


def attention() -> dict[str, Given]:
    mask, causal = b(3, 1, 4, 5) | (torch.arange(5) == 0), {"is_causal": True}
    q, k, v = x(3, 2, 4, 6), x(3, 2, 5, 6), x(3, 2, 5, 7)
    calls = {
        "": (q, k, v),
        "masked": (q, k, v, mask),
        "added": (q, k, v, x(4, 5)),
        "3-d": (x(3, 4, 6), x(3, 5, 6), x(3, 5, 6)),
        "2-d": (x(4, 6), x(5, 6), x(5, 6)),
        "one head": (q, x(3, 1, 5, 6), x(3, 1, 5, 7)),
    }
    causals = {
        "causal": (q, x(3, 2, 4, 6), x(3, 2, 4, 7)),
        "causal long": (x(2, 6, 4), x(2, 4, 4), x(2, 4, 4)),
        "causal wide": (q, k, v),
    }
    grouped = {
        "grouped": (x(2, 6, 4, 5), x(2, 3, 4, 5), x(2, 3, 4, 5)),
        "grouped 3-d": (x(4, 3, 5), x(2, 6, 5), x(2, 6, 5)),
    }
    name = "scaled_dot_product_attention"
    return (
        {key: given(name, *args) for key, args in calls.items()}
        | {"scaled": given(name, q, k, v, mask, scale=0.3)}
        | {key: given(name, *args, **causal) for key, args in causals.items()}
        | {key: given(name, *args, enable_gqa=True) for key, args in grouped.items()}
        | {"grouped causal": given(name, *grouped["grouped"], enable_gqa=True, **causal)}
        | {"grouped masked": given(name, *grouped["grouped"], x(6, 4, 4), enable_gqa=True)}
    )


class TestAttention(RuleTests):
    rules = rules
    calls = build(attention)
