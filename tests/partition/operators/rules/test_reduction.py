"""Random boxes of every rule of reductions: sums and means, and operators along dimensions that stay whole."""

import torch
from rule_calls import Given, assert_has_no_written_rule, b, build, given, n, x
from rule_tests import RuleAndWholeCallTests

from cutset.partition.operators.rules import reduction
from cutset.partition.operators.rules.reduction import FUNCTION_SCANS, ORDER_STATISTICS, REDUCTIONS, SCANS


def scans() -> dict[str, Given]:
    several = ("cummax", "cummin", "sort")
    return (
        {name: given(name, x(4, 6), 1, output=0 if name in several else None) for name in (*SCANS, *FUNCTION_SCANS)}
        | {f"{name} indices": given(name, x(4, 6), -2, output=1) for name in several}
        | {
            "cumsum counts": given("cumsum", b(4, 6), 0),
            "cumsum as": given("cumsum", n(9, 4, 6), 0, dtype=torch.float64),
            "sort down": given("sort", x(4, 6), -1, True, output=0),
            "topk": given("topk", x(4, 6), 3, output=0),
            "topk indices": given("topk", x(6, 4), 2, 0, False, output=1),
            "diff": given("diff", x(4, 6), 2),
            "diff longer": given("diff", x(4, 6), 1, 0, x(1, 6), x(2, 6)),
            "diff of truth": given("diff", b(4, 6)),
        }
    )


DIMS = dict.fromkeys(("any", "all", "median"), "dim") | {"prod": "dim_int", "norm": "ScalarOpt_dim"}


def reductions() -> dict[str, Given]:
    calls = {}
    for name in (name for name in (*REDUCTIONS, *ORDER_STATISTICS) if name not in ("aminmax", "var_mean", "std_mean")):
        target = f"aten.{name}.{DIMS.get(name, 'default')}"
        more = {"kthvalue": (2,), "norm": (3,), "linalg_vector_norm": (2,)}.get(name, ())
        for output in (0, 1) if name in ORDER_STATISTICS else (None,):
            case = f"{name} {output or ''}".strip()
            calls[case] = given(target, x(4, 5, 6), *more, 1, output=output)
            calls[f"{case} kept"] = given(target, x(4, 5, 6), *more, -1, True, output=output)
    for name in ("var", "std"):
        for output in (0, 1):
            calls[f"{name}_mean {output}"] = given(f"aten.{name}_mean.correction", x(4, 5, 6), [-1], output=output)
    return calls | {
        "any dims": given("aten.any.dims", b(4, 5, 6), [0, 2]),
        "aminmax": given("aminmax", x(4, 6), dim=1, output=1),
    }


def pairs() -> dict[str, Given]:
    return {
        "cosine_similarity": given("cosine_similarity", x(4, 6), x(4, 6)),
        "cosine_similarity broadcast": given("cosine_similarity", x(4, 1, 6), x(3, 6), -1),
        "cosine_similarity first": given("cosine_similarity", x(4, 6), x(4, 6), 0),
        "pairwise_distance": given("pairwise_distance", x(4, 5, 6), x(5, 6)),
        "pairwise_distance kept": given("pairwise_distance", x(4, 6), x(4, 6), 1.0, 1e-6, True),
        "cross": given("linalg_cross", x(4, 3), x(1, 3)),
        "cross first": given("linalg_cross", x(3, 6), x(3, 6), dim=0),
        "cdist": given("cdist", x(2, 4, 3), x(5, 3), 1.0),
    }


def sums() -> dict[str, Given]:
    return {
        "mean": given("mean", x(4, 6)),
        "mean dims": given("aten.mean.dim", x(4, 5, 6), [0, -1]),
        "mean keep": given("aten.mean.dim", x(4, 5, 6), [1], True),
        "mean rounded": given("aten.mean.dim", x(4, 5).float(), [0], dtype=torch.float64),
        "mean of numbers": given("aten.mean.dim", n(9, 4, 5), [0], dtype=torch.float64),
        "sum": given("sum", x(4, 6)),
        "sum dims": given("aten.sum.dim_IntList", x(4, 5, 6), [1, 2]),
        "sum keep": given("aten.sum.dim_IntList", x(4, 5, 6), [-1], True),
        "sum counts": given("sum", b(4, 6)),
        "sum of none": given("aten.sum.dim_IntList", x(4, 6), []),
        "sum as": given("aten.sum.dim_IntList", n(9, 4, 6), [0], dtype=torch.float32),
        "sum of one column": given("aten.sum.dim_IntList", x(4, 1), [1], True),
        "nansum": given("nansum", x(4, 6).masked_fill(b(4, 6), float("nan")), [1]),
        "count_nonzero": given("aten.count_nonzero.dim_IntList", n(3, 4, 6), [0]),
        "count_nonzero all": given("count_nonzero", n(3, 4, 6)),
    }


def test_reductions_of_everything_stay_whole() -> None:
    for name in ("prod", "any", "median", "norm"):
        assert_has_no_written_rule(given(f"aten.{name}.{'Scalar' if name == 'norm' else 'default'}", x(4, 6)))


class TestReduction(RuleAndWholeCallTests):
    rules = reduction
    calls = build(scans, reductions, pairs, sums)
    whole_calls = (given("topk", torch.tensor(3.0), 1, output=0),)
