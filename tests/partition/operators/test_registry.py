"""The operator table: what all rules have in common."""

import pytest
import torch
from rule_calls import TRIALS, Given, assembled, assert_equal, drafted, given, random_boxes, rules_of, with_tensors
from torch import Tensor

from cutset.partition.draft.axis_inference import build_graph
from cutset.partition.ir.arguments import call_operator
from cutset.partition.ir.graph import Graph
from cutset.partition.ir.random_ops import random_tensor_name
from cutset.partition.operators.registry import RULE_MODULES, TABLE
from cutset.partition.operators.sharding.cost_class import CLASSES


def test_every_rule_names_a_cost_class() -> None:
    assert {name: rule.cost for name, rule in TABLE.items() if rule.cost not in CLASSES} == {}


def test_every_rule_is_in_one_module() -> None:
    assert set().union(*(rules_of(module) for module in RULE_MODULES)) == set(TABLE)


def masked(case: Given) -> tuple[Graph, dict[str, Tensor]]:
    """A call that draws, with its mask."""
    draft, values = drafted(case, False)
    graph = build_graph(draft)
    info = graph.tensors[random_tensor_name("op")]
    values[info.name] = (torch.rand(info.shape) > 0.4).to(torch.float64) / 0.6
    return graph, values


@pytest.mark.parametrize(
    "case",
    [
        given("dropout", torch.randn(4, 6, dtype=torch.float64), 0.4, True),
        given("scaled_dot_product_attention", *(torch.randn(2, 3, 4, 5, dtype=torch.float64),) * 3, None, 0.4),
    ],
    ids=["dropout", "attention"],
)
def test_boxes_of_what_draws_share_one_mask(case: Given) -> None:
    graph, values = masked(case)
    op = graph.ops[-1]
    whole = assembled(op, [op.nest.box], graph, values)
    for seed in range(1, TRIALS + 1):
        assert_equal(assembled(op, random_boxes(graph, op, seed), graph, values), whole)
    values[random_tensor_name("op")].fill_(1.0)
    without = {"dropout": {"train": False}, "scaled_dot_product_attention": {"dropout_p": 0.0}}
    plain = {k: with_tensors(v, values) for k, v in op.arguments.items()} | without[op.target.split(".")[1]]
    assert_equal(assembled(op, [op.nest.box], graph, values), call_operator(op.target, plain))
