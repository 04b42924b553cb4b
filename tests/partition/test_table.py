"""The operator table: what its files have in common."""

import pytest
import torch
from row_calls import TRIALS, Given, assembled, assert_equal, drafted, given, random_boxes, rows_of, with_tensors
from torch import Tensor

from cutset.partition.ir.arguments import call
from cutset.partition.ir.graph import Graph
from cutset.partition.ir.random_ops import noise_name
from cutset.partition.capture.axis_inference import resolve
from cutset.partition.operators.registry import FILES_OF_ROWS, TABLE


def test_every_row_is_in_one_file() -> None:
    assert set().union(*(rows_of(module) for module in FILES_OF_ROWS)) == set(TABLE)


def masked(case: Given) -> tuple[Graph, dict[str, Tensor]]:
    """A call that draws, with its mask."""
    draft, values = drafted(case, False)
    graph = resolve(draft)
    info = graph.tensors[noise_name("op")]
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
    values[noise_name("op")].fill_(1.0)
    without = {"dropout": {"train": False}, "scaled_dot_product_attention": {"dropout_p": 0.0}}
    plain = {k: with_tensors(v, values) for k, v in op.arguments.items()} | without[op.target.split(".")[1]]
    assert_equal(assembled(op, [op.nest.box], graph, values), call(op.target, plain))
