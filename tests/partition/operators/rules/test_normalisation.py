"""Random boxes of every rule of normalisation against the whole operator."""

import torch
from rule_calls import Given, build, drafted, given, x
from rule_tests import RuleTests

from cutset.partition.draft.axis_inference import build_graph
from cutset.partition.operators.rules import normalisation as rules

STILL = ("running_mean", "running_var")


def layers() -> dict[str, Given]:
    statistics = (x(3), x(3).abs())
    return {
        "layer_norm": given("layer_norm", x(4, 5, 6), [6], x(6), x(6)),
        "layer_norm plain": given("layer_norm", x(4, 5, 6), [5, 6]),
        "rms_norm": given("rms_norm", x(4, 5, 6), [6], x(6)),
        "rms_norm plain": given("rms_norm", x(4, 5, 6), [5, 6], None, 1e-6),
        "batch_norm": given("batch_norm", x(4, 3, 5), x(3), x(3), None, None, True, 0.1, 1e-5, False),
        "batch_norm still": given(
            "batch_norm", x(4, 3, 5, 2), x(3), x(3), *statistics, False, 0.1, 1e-5, False, still=STILL
        ),
        "instance_norm": given("instance_norm", x(4, 3, 5, 2), x(3), x(3), None, None, True, 0.1, 1e-5, False),
        "instance_norm bare": given("instance_norm", x(4, 3, 7), None, None, None, None, True, 0.1, 1e-5, False),
        "instance_norm still": given(
            "instance_norm", x(4, 3, 5, 2), x(3), x(3), *statistics, False, 0.1, 1e-5, False, still=STILL
        ),
    }


def groups() -> dict[str, Given]:
    return {
        "group_norm": given("group_norm", x(2, 12, 3, 4), 4, x(12), x(12)),
        "group_norm of one": given("group_norm", x(3, 6, 5), 1, x(6), x(6)),
        "group_norm of each": given("group_norm", x(3, 6, 5), 6),
        "group_norm flat": given("group_norm", x(3, 6), 3, x(6), None),
        "weight_norm": given("_weight_norm", x(4, 3, 2), x(4, 1, 1), 0),
        "weight_norm inner": given("_weight_norm", x(4, 6), x(1, 6), 1),
    }


def exponentials() -> dict[str, Given]:
    return {
        "softmax": given("aten.softmax.int", x(4, 5, 6), -1),
        "log_softmax": given("aten.log_softmax.int", x(4, 5, 6), 1),
        "_softmax": given("_softmax", x(4, 6), 0, False),
        "_log_softmax": given("_log_softmax", x(4, 6), 1, False),
    }


class TestNormalisation(RuleTests):
    rules = rules
    calls = build(layers, groups, exponentials)


def test_groups_are_cut_and_what_is_in_a_group_is_not() -> None:
    case = given("group_norm", torch.zeros(2, 12, 5), 4)
    loops = build_graph(drafted(case, False)[0]).ops[-1].nest.loops
    assert [(loop.size, loop.kind) for loop in loops] == [(2, "parallel"), (4, "parallel"), (3, "fixed"), (5, "fixed")]
