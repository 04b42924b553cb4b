"""Random boxes of every elementwise rule; and that dropout has torch's masks, the same ones wherever it is cut."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from cutting import Subject, assert_same, finest_cut, run_cut, run_plain
from rule_calls import (
    INF,
    TRIALS,
    Given,
    assembled,
    assert_boxes_are_the_whole,
    assert_equal,
    assert_has_no_written_rule,
    b,
    build,
    drafted,
    given,
    n,
    random_boxes,
    rules_called,
    rules_of,
    uncuttable,
    x,
)
from torch import Tensor, nn
from zoo import Case, images

from cutset.partition.dataflow.cut import one_machine_cut
from cutset.partition.draft.axis_inference import build_graph
from cutset.partition.ir.random_ops import random_tensor_name
from cutset.partition.operators.rules import elementwise as rules
from cutset.partition.operators.rules.elementwise import SEVERAL, SPECIAL, UNARY

# Of torch's own advice on how an operator is called, which some versions give once in a process.
pytestmark = pytest.mark.filterwarnings("ignore:torch.searchsorted.+non-contiguous:UserWarning")

OVERLOADS = {"to": "dtype", "where": "self", "masked_fill": "Scalar", "pow": "Tensor_Tensor"} | {
    name: "Tensor_Tensor" if name == "float_power" else "default"
    for name in (
        *("maximum", "minimum", "fmax", "fmin", "hypot", "logaddexp", "logaddexp2", "heaviside", "atan2", "isclose"),
        *(
            "special_xlogy",
            "special_xlog1py",
            "complex",
            "polar",
            "logical_and",
            "logical_or",
            "logical_xor",
            "addcmul",
            "addcdiv",
            "float_power",
            "floor_divide",
        ),
    )
}
TRUTH = ("logical_not", "logical_and", "logical_or", "logical_xor")
WHOLE_NUMBERS = ("bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not", "__and__", "__or__", "__xor__")
SHIFTS = ("bitwise_left_shift", "bitwise_right_shift", "__lshift__", "__rshift__")
POSITIVE = ("log", "log1p", "log2", "log10", "sqrt", "rsqrt", "lgamma", "digamma", "pow", "float_power", "xlogy")


def first(name: str, *shape: int) -> Tensor:
    """A tensor on which a function is defined."""
    if name in TRUTH:
        return b(*shape)
    if name in (*WHOLE_NUMBERS, *SHIFTS):
        return n(50, *shape)
    if name in ("asin", "acos", "atanh", "erfinv"):
        return x(*shape).tanh() * 0.9
    if name in ("logit", "acosh"):
        return x(*shape).sigmoid() + (name == "acosh")
    return x(*shape).abs() + 0.1 if name in POSITIVE else x(*shape)


def elementwise() -> dict[str, Given]:
    """Operators of one tensor, and of several that are broadcast."""
    settings: dict[str, tuple[Any, ...]] = {
        "clamp": (-0.5, 0.5),
        "clip": (-0.5, 0.5),
        "clamp_min": (0.1,),
        "clamp_max": (0.1,),
        "threshold": (0.1, 2.0),
        "leaky_relu": (0.2,),
        "to": (torch.float32,),
        "where": (x(4, 1), x(6)),
        "masked_fill": (b(4, 1), -INF),
        "lerp": (x(4, 1), x(6)),
        "addcmul": (x(4, 1), x(6)),
        "addcdiv": (x(4, 1), x(6).abs() + 0.5),
        "bitwise_left_shift": (n(3, 4, 1),),
        "bitwise_right_shift": (n(3, 4, 1),),
        "__lshift__": (n(3, 4, 1),),
        "__rshift__": (n(3, 4, 1),),
    }
    calls = {}
    for name in SPECIAL:
        inside = x(4, 6).sigmoid() if name in ("logit", "ndtri", "entr", "gammaln") else x(4, 6).tanh() * 0.9
        calls[f"special {name}"] = given(f"special_{name}", inside)
    for name in UNARY:
        target = f"aten.{name}.{OVERLOADS.get(name, 'default')}"
        calls[name] = given(target, first(name, 4, 6), *settings.get(name, ()))
    for name in SEVERAL:
        target = f"aten.{name}.{OVERLOADS.get(name, 'default' if name in ('addcmul', 'addcdiv') else 'Tensor')}"
        second = first(name, 4, 1) if name in (*TRUTH, *WHOLE_NUMBERS) else x(4, 1).abs() + 0.5
        one = b(4, 6) if name == "where" else first(name, 3, 4, 6)
        still = ("self", "other", "values") if name in ("floor_divide", "heaviside") else ()
        calls[name] = given(target, one, *settings.get(name, (second,)), still=still)
    return calls


def broadcasting() -> dict[str, Given]:
    return {
        "scalar": given("aten.add.Tensor", x(4, 6), 2.0),
        "zero-dim": given("aten.mul.Tensor", x(4, 6), x()),
        "outer": given("aten.sub.Tensor", x(4, 1, 3), x(5, 1)),
        "rounded": given("aten.div.Tensor_mode", x(4, 6), x(6).abs() + 0.5, rounding_mode="floor"),
        "whole numbers": given("aten.add.Tensor", n(9, 4, 6), n(9, 6), alpha=3),
        "widened": given("aten.mul.Tensor", n(9, 4, 6), x(6)),
        "clone": given("clone", x(4, 6), memory_format=torch.contiguous_format),
        "gelu tanh": given("gelu", x(4, 6), approximate="tanh"),
        "softplus": given("softplus", x(4, 6), 2.0, 1.0),
        "to other": given("aten.to.other", x(4, 6), x(4, 6).float()),
        "where number": given("aten.where.ScalarOther", b(4, 6), x(6), 2.0),
        "masked_fill tensor": given("aten.masked_fill.Tensor", x(4, 6), b(6), x()),
        "clamp by tensors": given("aten.clamp.Tensor", x(4, 6), x(6) - 1, x(4, 1) + 1),
    }


def others() -> dict[str, Given]:
    return {
        "conj": given("conj", torch.complex(x(4, 6), x(4, 6))),
        "real": given("real", torch.complex(x(4, 6), x(4, 6))),
        "imag": given("imag", torch.complex(x(4, 6), x(4, 6)).conj()),
        "searchsorted": given("aten.searchsorted.Tensor", x(7).sort()[0], x(4, 6), still=("sorted_sequence", "self")),
        "searchsorted rows": given("aten.searchsorted.Tensor", x(4, 7).sort(-1)[0], x(4, 6), right=True),
        "prelu": given("prelu", x(2, 4, 6), x(4)),
        "prelu single": given("prelu", x(2, 4), x(1)),
        "prelu vector": given("prelu", x(6), x(1)),
        "glu": given("glu", x(4, 12)),
        "glu rows": given("glu", x(6, 5), 0),
        "bucketize": given("aten.bucketize.Tensor", x(4, 6), torch.arange(-2.0, 2.0, dtype=torch.float64)),
        "isin": given("aten.isin.Tensor_Tensor", n(9, 4, 6), n(9, 3)),
    }


CALLS = build(elementwise, broadcasting, others)
DROPOUTS = {
    "feature": given("feature_dropout", x(4, 6, 3, 2), 0.4, True),
    "alpha": given("alpha_dropout", x(4, 6), 0.3, True),
    "feature alpha": given("feature_alpha_dropout", x(4, 6, 5), 0.3, True),
}


@pytest.mark.first_cases(5)
@pytest.mark.parametrize("finer", [False, True], ids=["", "finer"])
@pytest.mark.parametrize("name", CALLS)
def test_boxes_together_are_the_whole(name: str, finer: bool) -> None:
    assert_boxes_are_the_whole(CALLS[name], finer=finer)


def test_every_rule_has_a_call() -> None:
    assert rules_of(rules) == rules_called({**CALLS, **DROPOUTS}) | {"aten.dropout"}


def test_every_call_can_be_cut() -> None:
    assert uncuttable(CALLS) == set()


@pytest.mark.parametrize(
    "case",
    [
        given("aten.to.other", torch.zeros(4), torch.zeros(2, 3).double()),
        given("aten.view.dtype", torch.zeros(4), torch.int32),
        given("aten.isin.Scalar_Tensor", 3, torch.arange(4)),
    ],
    ids=lambda case: case.target,
)
def test_a_call_that_no_rule_describes_is_found_or_stays_whole(case: Given) -> None:
    assert_has_no_written_rule(case)


# Dropout -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", DROPOUTS.values(), ids=DROPOUTS)
def test_boxes_share_one_mask(case: Given) -> None:
    draft, values = drafted(case, False)
    graph = build_graph(draft)
    op, info = graph.ops[-1], graph.tensors[random_tensor_name("op")]
    values[info.name] = (torch.rand(info.shape) > 0.4).to(torch.float64) / 0.6
    whole = assembled(op, [op.nest.box], graph, values)
    for seed in range(1, TRIALS + 1):
        assert_equal(assembled(op, random_boxes(graph, op, seed), graph, values), whole)


@pytest.mark.parametrize("case", DROPOUTS.values(), ids=DROPOUTS)
def test_a_call_that_drops_nothing_draws_nothing(case: Given) -> None:
    for p, train in ((0.0, True), (0.5, False), (1.0, True)):
        draft, values = drafted(Given(case.target, (case.args[0], p, train), {}), False)
        graph = build_graph(draft)
        assert random_tensor_name("op") not in graph.tensors
        assert_equal(assembled(graph.ops[-1], random_boxes(graph, graph.ops[-1], 1), graph, values), values["out"])


class Drops(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.out = nn.Conv2d(2, 6, 3), nn.Conv2d(6, 4, 1), nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.alpha_dropout(F.selu(self.first(x)), 0.2, self.training)
        x = F.dropout2d(x, 0.3, self.training)
        x = F.feature_alpha_dropout(self.second(x), 0.2, self.training)
        x = F.dropout1d(x.flatten(2), 0.1, self.training)
        return self.out(F.dropout(x.mean(2), 0.1, self.training))


@pytest.mark.run
@pytest.mark.first_cases(1)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_the_masks_are_those_of_torch(dtype: torch.dtype) -> None:
    of = Subject(Case(Drops, images(4, 2, 6, 5)), dtype)
    assert all(op.is_cuttable for op in of.graph.ops)
    assert_same(run_cut(of, one_machine_cut(of.graph), micros=2), run_plain(of, micros=2), rtol=0.0)
    cut = run_cut(of, finest_cut(of.graph, 3), micros=2)
    assert_same(cut, run_plain(of, micros=2), rtol=1e-5 if dtype is torch.float32 else 1e-11)
