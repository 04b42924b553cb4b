"""Random boxes of every rule of pooling against the whole operator."""

import torch
from rule_calls import Given, build, drafted, given, x
from rule_tests import RuleTests

from cutset.partition.draft.axis_inference import build_graph
from cutset.partition.operators.rules import pooling as rules


def maxima() -> dict[str, Given]:
    return {
        "max_pool1d": given("max_pool1d", x(2, 3, 11), [3], [2], [1]),
        "max_pool2d": given("max_pool2d", x(2, 3, 8, 9), [2, 2]),
        "max_pool2d padded": given("max_pool2d", x(2, 3, 9, 9), [3, 3], [2, 2], [1, 1]),
        "max_pool2d dilated": given("max_pool2d", x(2, 3, 9, 9), [3], [1], [1], [2]),
        "max_pool2d ceil": given("max_pool2d", x(2, 3, 8, 8), [3, 3], [2, 2], [0, 0], [1, 1], True),
        "max_pool2d ceil, padded": given("max_pool2d", x(2, 3, 7, 10), [2, 3], [3, 3], [1, 1], [1, 1], True),
        "max_pool2d unbatched": given("max_pool2d", x(3, 8, 8), [2, 2]),
        "max_pool2d of points": given("max_pool2d", x(2, 3, 4, 8), [1, 1], [1, 2]),
        "max_pool3d": given("max_pool3d", x(1, 2, 5, 6, 4), [2, 3, 1], [2, 1, 1], [1, 1, 0], [1, 1, 1], True),
    }


def means() -> dict[str, Given]:
    return {
        "avg_pool1d": given("avg_pool1d", x(2, 3, 11), [3], [2], [1]),
        "avg_pool1d ceil": given("avg_pool1d", x(2, 3, 10), [3], [2], [1], True, False),
        "avg_pool2d": given("avg_pool2d", x(2, 3, 8, 9), [2, 3], [1, 2]),
        "avg_pool2d padded": given("avg_pool2d", x(2, 3, 8, 8), [3, 3], [2, 2], [1, 1]),
        "avg_pool2d exclusive": given("avg_pool2d", x(2, 3, 8, 8), [3, 3], [2, 2], [1, 1], False, False),
        "avg_pool2d ceil": given("avg_pool2d", x(2, 3, 8, 8), [3, 3], [2, 2], [1, 1], True),
        "avg_pool2d ceil, exclusive": given("avg_pool2d", x(2, 3, 9, 8), [4, 3], [3, 2], [1, 1], True, False),
        "avg_pool2d divisor": given("avg_pool2d", x(2, 3, 8, 8), [3, 3], [2, 2], [1, 1], True, True, 5),
        "avg_pool3d": given("avg_pool3d", x(1, 2, 5, 6, 4), [2, 3, 1], [2, 1, 1], [1, 1, 0], True, False),
    }


def adaptive() -> dict[str, Given]:
    return {
        "to one": given("adaptive_avg_pool2d", x(2, 3, 5, 6), [1, 1]),
        "dividing": given("adaptive_avg_pool2d", x(2, 3, 8, 6), [4, 2]),
        "uneven": given("adaptive_avg_pool2d", x(2, 3, 13, 9), [6, 4]),
        "larger": given("adaptive_avg_pool2d", x(2, 3, 3, 2), [7, 6]),
        "as it is": given("adaptive_avg_pool2d", x(2, 3, 4, 6), [4, 3]),
        "unbatched": given("adaptive_avg_pool2d", x(3, 4, 6), [1, 3]),
        "line": given("adaptive_avg_pool1d", x(2, 3, 11), [4]),
        "line to one": given("adaptive_avg_pool1d", x(2, 3, 11), [1]),
        "volume": given("adaptive_avg_pool3d", x(1, 2, 5, 4, 6), [2, 1, 6]),
    }


class TestPooling(RuleTests):
    rules = rules
    calls = build(maxima, means, adaptive)


def test_a_mean_over_the_image_is_a_sum_that_can_be_cut() -> None:
    graph = build_graph(drafted(given("adaptive_avg_pool2d", torch.zeros(2, 3, 5, 7), [1, 1]), False)[0])
    kinds = {(loop.size, loop.kind) for loop in graph.ops[-1].nest.loops}
    assert {(5, "reduction"), (7, "reduction")} <= kinds
