"""Boxes of operators that make a tensor of nothing, or look at where an element stands."""

import pytest
import torch
from rule_calls import (
    Given,
    assert_has_no_written_rule,
    b,
    build,
    drafted,
    given,
    n,
    run_box,
    x,
)
from rule_tests import RuleTests

from cutset.partition.draft.axis_inference import build_graph
from cutset.partition.operators.rules import creation as rules

# Of torch's own advice on how an operator is called, which some versions give once in a process.
pytestmark = pytest.mark.filterwarnings("ignore:torch.meshgrid. in an upcoming release:UserWarning")


def made() -> dict[str, Given]:
    return {
        "full": given("full", [4, 6], 2.5, dtype=torch.float64),
        "zeros": given("zeros", [4, 6], dtype=torch.int64),
        "ones": given("ones", [4, 1, 6]),
        "arange": given("arange", 7),
        "arange real": given("aten.arange.start", 0.1, 7.3),
        "arange step": given("aten.arange.start_step", 9, -4, -2),
        "linspace": given("linspace", 0.0, 1.0, 11),
        "logspace": given("logspace", 0.0, 1.0, 9),
        "tril_indices": given("tril_indices", 4, 5, -1),
        "triu_indices": given("triu_indices", 4, 4),
        "meshgrid": given("meshgrid", [x(4), x(5), x(6)], output=1),
        "meshgrid xy": given("aten.meshgrid.indexing", [x(4), x(5), x(6)], indexing="xy", output=0),
        "eye": given("eye", 5),
        "eye wide": given("aten.eye.m", 4, 6, dtype=torch.bool),
        "tril": given("tril", x(5, 6)),
        "tril below": given("tril", x(2, 6, 4), -2),
        "triu": given("triu", x(2, 5, 6), 1),
        "triu of truth": given("triu", b(6, 6)),
        "one_hot": given("one_hot", n(5, 3, 4), 5),
        "diag_embed": given("diag_embed", x(3, 4), 1),
        "diag_embed first": given("diag_embed", x(3, 4), 0, 0, 2),
    }


class TestCreation(RuleTests):
    rules = rules
    calls = build(made)
    uncalled = frozenset({"aten.scalar_tensor", "aten.empty"})


@pytest.mark.parametrize(
    "case",
    [
        given("one_hot", torch.tensor([1, 0, 2])),
        given("scalar_tensor", 2.5),
        given("full", [], 2.5),
        given("zeros", [0, 3]),
    ],
    ids=lambda case: case.target,
)
def test_a_call_that_no_rule_describes_is_found_or_stays_whole(case: Given) -> None:
    assert_has_no_written_rule(case)


def test_a_box_of_an_empty_tensor_has_its_shape() -> None:
    graph = build_graph(drafted(given("aten.empty.memory_format", [4, 6]), False)[0])
    op = graph.ops[-1]
    (part,) = run_box(op, ((0, 4), (2, 5)), {}, graph.tensors)
    assert part.shape == (4, 3)
