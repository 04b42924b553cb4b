"""Boxes of operators that take parts of a tensor, or put them."""

import torch
from rule_calls import Given, b, build, given, n, x
from rule_tests import RuleAndWholeCallTests

from cutset.partition.operators.rules import indexing


def c(*shape: int) -> torch.Tensor:
    """Complex numbers."""
    return torch.complex(x(*shape), x(*shape))


def by_numbers() -> dict[str, Given]:
    return {
        "select": given("aten.select.int", x(4, 5, 3), 1, 2),
        "select last": given("aten.select.int", x(4, 5), -1, -1),
        "select of several axes": given("aten.select.int", x(4, 6), 1, 4),
        "slice": given("aten.slice.Tensor", x(4, 9), 1, 2, 7, 1),
        "slice step": given("aten.slice.Tensor", x(4, 9), 1, 1, 9, 3),
        "slice negative": given("aten.slice.Tensor", x(9, 4), 0, -5, -1),
        "slice one": given("aten.slice.Tensor", x(4, 9), 1, 3, 4),
        "slice all": given("aten.slice.Tensor", x(4, 9), 1, 0, 2**63 - 1),
        "slice half": given("aten.slice.Tensor", x(3, 12), 1, 6, 12),
        "slice thirds": given("aten.slice.Tensor", x(3, 12), 1, 4, 12),
        "slice across": given("aten.slice.Tensor", x(3, 12), 1, 1, 11),
        "cat": given("cat", [x(2, 3), x(4, 3), x(3, 3)]),
        "cat columns": given("cat", [x(4, 3), x(4, 5)], -1),
        "cat equal": given("cat", [x(4, 6), x(4, 6)], -1),
        "cat chunks": given("cat", [x(4, 3), x(8, 3)], 0),
        "cat small": given("cat", [x(4, 1), x(4, 5)], 1),
        "cat widened": given("cat", [n(9, 4, 4), x(4, 6)], 1, still=("tensors0",)),
        "stack": given("stack", [x(4, 6), x(4, 6), x(4, 6)], 1),
        "stack last": given("stack", [x(4, 3), x(4, 3)], -1),
        "slice_scatter": given("slice_scatter", x(4, 9), x(4, 3), 1, 2, 8, 2),
        "select_scatter": given("select_scatter", x(4, 5, 3), x(4, 3), 1, 2),
        "slice_scatter complex": given("slice_scatter", c(4, 9), c(4, 3), 1, -7, 8, 2),
        "slice_scatter of the end, complex": given("slice_scatter", c(4, 6), c(2, 6), 0, 2, 2**63 - 1),
        "select_scatter complex": given("select_scatter", c(4, 5, 3), c(4, 3), 1, -2),
        "unfold": given("unfold", x(3, 9), 1, 3, 2),
        "unfold one": given("unfold", x(4, 3), 1, 3, 1),
        "unfold overlapping": given("unfold", x(8, 3), 0, 4, 1),
    }


def by_tensors() -> dict[str, Given]:
    return {
        "index_select": given("index_select", x(4, 7, 3), 1, n(7, 6)),
        "index_select vector": given("index_select", x(7), 0, n(7, 4)),
        "gather": given("gather", x(4, 7), 1, n(7, 4, 3)),
        "gather narrower": given("gather", x(6, 7, 5), 1, n(7, 4, 3, 5)),
        "gather one": given("gather", x(6, 7), -1, n(7, 1, 3)),
        "take_along_dim": given("take_along_dim", x(4, 7), n(7, 4, 5), 1),
        "take_along_dim broadcast": given("take_along_dim", x(4, 7, 1), n(7, 1, 5, 3), 1),
        "index": given("aten.index.Tensor", x(7, 4), [n(7, 5)]),
        "index two": given("aten.index.Tensor", x(3, 7, 5, 4), [None, n(7, 6, 1), n(5, 2)]),
        "index apart": given("aten.index.Tensor", x(7, 3, 5, 4), [n(7, 6), None, n(5, 6)]),
        "index first of all": given("aten.index.Tensor", x(7, 6), [n(7, 4, 1, 1), n(6, 1)]),
        "index_put": given("index_put", x(7, 4), [torch.tensor([5, 0, 3])], x(3, 4)),
        "index_put added": given("index_put", x(7, 4), [n(7, 9)], x(9, 1), True),
        "index_put inner": given("index_put", x(3, 7, 4), [None, torch.tensor([5, 0])], x(4)),
        "index_put mask": given("index_put", x(4, 6, 3), [b(4, 6)], x()),
        "scatter": given("aten.scatter.src", x(4, 7), 1, torch.tensor([[5, 0, 3]] * 4), x(4, 3)),
        "scatter narrower": given(
            "aten.scatter.src", x(6, 4, 3), 1, torch.tensor([[[2], [0]]] * 6), x(6, 3, 3), still=("src",)
        ),
        "scatter value": given("aten.scatter.value", x(4, 7), 1, n(7, 4, 2), 2.0),
        "scatter_add": given("scatter_add", x(4, 6), 1, n(6, 4, 9), x(4, 9)),
        "scatter_reduce": given("aten.scatter_reduce.two", x(4, 6), 1, n(6, 4, 9), x(4, 9), "amax"),
        "index_add": given("index_add", x(3, 5, 4), 1, n(5, 8), x(3, 8, 4), alpha=2),
        "index_copy": given("index_copy", x(3, 5), 1, torch.tensor([4, 0]), x(3, 2)),
        "index_fill": given("aten.index_fill.int_Scalar", x(3, 5), 1, torch.tensor([4, 0]), 2.0),
        "index_fill tensor": given("aten.index_fill.int_Tensor", x(3, 5), 1, torch.tensor([4, 0]), x()),
        "dispatch": given("cutset.dispatch.default", x(6, 4), b(6), 0, [0]),
        "dispatch any": given("cutset.dispatch.default", x(3, 6, 4), b(2, 6), 1, [1]),
        "dispatch pairs": given("cutset.dispatch.default", x(3, 6, 4), n(2, 3, 2, 6), 0, [0, 2]),
        "combine": given("cutset.combine.default", x(6, 4), b(6, 2), 0, [0]),
    }


class TestIndexing(RuleAndWholeCallTests):
    rules = indexing
    calls = build(by_numbers, by_tensors)
    whole_calls = (
        given("cat", [torch.zeros(0), torch.zeros(3)]),
        given("aten.slice.Tensor", torch.zeros(3, 4), 1, 2, 2),
        given("index_select", torch.tensor(3.0), 0, torch.tensor([0])),
        given("gather", torch.tensor(3.0), 0, torch.tensor(0)),
        given("take_along_dim", torch.zeros(3, 4), torch.tensor([5, 2])),
        given("aten.index.Tensor", torch.zeros(3, 4), [torch.tensor([True, False, True])]),
        given("index_put", torch.zeros(3), [torch.tensor([True, False, True])], torch.ones(2)),
        given("aten.scatter.value", torch.tensor(3.0), 0, torch.tensor(0), 1.0),
    )
