"""Boxes of reductions whose parts tell each other what they hold."""

import pytest
import torch
from rule_calls import INF, Given, build, given, n, x
from rule_tests import RuleAndWholeCallTests

from cutset.partition.operators.rules import split_reductions


def extremes() -> dict[str, Given]:
    calls = {}
    for name in ("amax", "amin"):
        calls[name] = given(name, x(4, 5, 6), [0, 2])
        calls[f"{name} kept"] = given(name, x(4, 6), [-1], True)
        calls[f"{name} of all"] = given(name, x(4, 6))
        calls[f"{name} of equals"] = given(name, n(3, 8, 6).to(torch.float64), [0])
    for name in ("max", "min"):
        for output in (0, 1):
            calls[f"{name} {output}"] = given(f"aten.{name}.dim", x(4, 6), 1, output=output)
            calls[f"{name} {output} kept"] = given(f"aten.{name}.dim", x(6, 4, 3), -3, True, output=output)
            calls[f"{name} {output} single"] = given(f"aten.{name}.dim", x(4, 6).float(), 1, output=output)
        calls[f"{name} of all"] = given(f"aten.{name}.default", n(3, 4, 6).to(torch.float64))
        calls[f"arg{name}"] = given(f"arg{name}", x(4, 6), 1)
        calls[f"arg{name} kept"] = given(f"arg{name}", x(4, 6).float(), 0, True)
    return calls


def others() -> dict[str, Given]:
    masked = x(4, 6).masked_fill(torch.tensor([True, False, True, True, True, True]), -INF)
    calls = {
        "logsumexp": given("logsumexp", x(4, 5, 6), [0, 1]),
        "logsumexp kept": given("logsumexp", x(4, 6), [-1], True),
        "logsumexp far": given("logsumexp", 1000 * x(4, 6), [1]),
        "logsumexp masked": given("logsumexp", masked, [1]),
        "logsumexp unbounded": given("logsumexp", -masked, [1]),
    }
    for name in ("var", "std"):
        calls[name] = given(f"aten.{name}.correction", x(4, 5, 6), [0, 2], correction=0, keepdim=True)
        calls[f"{name} dim"] = given(f"aten.{name}.dim", x(4, 5, 6), [1])
        calls[f"{name} dim biased"] = given(f"aten.{name}.dim", x(4, 5, 6), [1], False)
        calls[f"{name} of all"] = given(f"aten.{name}.default", 100 + x(4, 6))
        calls[f"{name} of equals"] = given(f"aten.{name}.dim", x(4, 1).repeat(1, 6), [1])
    return calls


class TestSplitReductions(RuleAndWholeCallTests):
    rules = split_reductions
    calls = build(extremes, others)
    whole_calls = (
        pytest.param(given("argmax", x(4, 6)), id="the index of all"),
        pytest.param(given("amax", n(9, 12), [0]), id="integers"),
    )
