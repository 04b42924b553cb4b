"""Boxes of operators that rearrange or repeat whole dimensions, and of the store into a buffer."""

import pytest
import torch
from rule_calls import (
    Given,
    assembled,
    assert_has_no_written_rule,
    build,
    drafted,
    given,
    x,
)
from rule_tests import RuleTests

from cutset.partition.draft.axis_inference import build_graph
from cutset.partition.operators.rules import movement as rules


def views() -> dict[str, Given]:
    return {
        "reshape": given("reshape", x(4, 6), [2, 2, 3, 2]),
        "reshape merge": given("reshape", x(2, 3, 4), [6, 4]),
        "reshape both": given("reshape", x(4, 6), [8, -1]),
        "reshape of ones": given("reshape", x(1, 4, 1, 6), [4, 1, 6, 1]),
        "reshape in part": given("reshape", x(5, 4, 6), [5, 3, 8]),
        "reshape around": given("reshape", x(2, 4, 6, 3), [2, 3, 8, 3]),
        "flatten": given("aten.flatten.using_ints", x(2, 3, 4), 1),
        "unflatten": given("aten.unflatten.int", x(2, 12), 1, [3, 4]),
        "unsqueeze": given("unsqueeze", x(4, 6), 1),
        "squeeze": given("aten.squeeze.dim", x(4, 1, 6), 1),
        "expand": given("expand", x(4, 1, 3), [2, 4, 5, -1]),
        "broadcast_to": given("broadcast_to", x(4, 1), [3, 4, 5]),
        "transpose": given("aten.transpose.int", x(2, 3, 4), 0, -1),
        "t": given("t", x(3, 4)),
        "t of a vector": given("t", x(4)),
        "permute": given("permute", x(2, 3, 4), [2, 0, 1]),
    }


def repetition() -> dict[str, Given]:
    return {
        "repeat": given("repeat", x(4, 3), [2, 3]),
        "repeat new": given("repeat", x(4, 1), [3, 1, 5]),
        "tile": given("tile", x(3, 4), [2]),
        "interleave": given("aten.repeat_interleave.self_int", x(2, 4, 3), 3, 1),
        "interleave last": given("aten.repeat_interleave.self_int", x(2, 4), 2, -1),
        "interleave flat": given("aten.repeat_interleave.self_int", x(2, 4), 3),
    }


def other_orders() -> dict[str, Given]:
    return {
        "flip": given("flip", x(4, 5, 6), [0, -1]),
        "flip none": given("flip", x(4, 5), []),
        "roll": given("roll", x(4, 5, 6), [2], [1]),
        "roll both": given("roll", x(4, 5, 6), [2, -1], [1, 2]),
        "rot90": given("rot90", x(4, 5, 6), 1, [0, 2]),
        "view_as_complex": given("view_as_complex", x(4, 6, 2)),
        "view_as_real": given("view_as_real", torch.complex(x(4, 6), x(4, 6))),
        "diagonal": given("diagonal", x(4, 5, 6), 1, 0, -1),
    }


class TestMovement(RuleTests):
    rules = rules
    calls = build(views, repetition, other_orders)
    uncalled = frozenset({"aten.copy_"})


@pytest.mark.parametrize(
    "case",
    [
        given("reshape", torch.zeros(4, 6), [3, 8]),
        given("roll", torch.arange(24.0).reshape(4, 6), [5]),
        given("aten.repeat_interleave.self_Tensor", torch.arange(3.0), torch.tensor([2, 0, 1])),
    ],
    ids=lambda case: case.target,
)
def test_a_call_that_no_rule_describes_is_found_or_stays_whole(case: Given) -> None:
    assert_has_no_written_rule(case)


def test_boxes_of_a_store_overwrite_their_part() -> None:
    state, new = torch.zeros(4, 6), torch.arange(6.0)
    draft, values = drafted(given("copy_", state.clone(), new), False)
    graph = build_graph(draft)
    values["self"] = state
    box = ((0, 4), (2, 5))
    assembled(graph.ops[-1], [box], graph, values)
    assert torch.equal(state[:, 2:5], new[2:5].expand(4, 3))
    assert state.sum() == 4 * new[2:5].sum()
