"""`cutset inspect`: the facts about a model, as data and as a table."""

import sys
from typing import Any

import pytest
import torch
from places import USER_MODELS
from torch import Tensor, nn

from cutset.models.task import Task, make_example_batches
from cutset.tools.report.inspect_report import describe_capture, print_inspection
from cutset.tools.task.capture_task import capture_task
from cutset.tools.task.load_task import TaskSpec

GOOD = USER_MODELS / "good.py"


class Mixed(nn.Module):
    """Has an operator that can be cut though the table does not know it, and one that cannot."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        spectrum = torch.fft.rfft(x).abs()
        return self.last(spectrum @ torch.linalg.matrix_exp(spectrum.T @ spectrum))


@pytest.fixture
def mixed() -> dict[str, Any]:
    example = make_example_batches(((10,),), classes=3)
    task = Task("own", Mixed, nn.functional.cross_entropy, example, batch=4)
    return describe_capture(capture_task(TaskSpec("own"), task))


@pytest.fixture
def facts(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setattr(sys, "path", sys.path[:])
    return describe_capture(capture_task(TaskSpec(f"{GOOD}:task")))


def test_the_totals_are_those_of_the_model(facts: dict[str, Any]) -> None:
    parameters = 8 * 16 + 16 + 16 * 3 + 3
    assert (facts["task"], facts["batch"], facts["parameters"]) == ("clouds", 8, parameters)
    assert facts["parameter_bytes"] == 4 * parameters
    assert facts["flops_forward"] == sum(op["flops"] for op in facts["ops"])
    assert sum(op["share"] for op in facts["ops"]) == pytest.approx(1)
    assert (facts["cuttable_share"], facts["opaque"]) == (1.0, [])


def test_an_operator_has_a_rule_a_place_and_loops(facts: dict[str, Any]) -> None:
    linear = facts["ops"][0]
    assert (linear["name"], linear["op"], linear["sharding_rule"], linear["module"]) == (
        "linear",
        "aten.linear.default",
        "aten.linear",
        "0",
    )
    assert linear["flops"] == 2 * 8 * 16 * 8
    assert [(loop["size"], loop["kind"]) for loop in linear["loops"]] == [
        (8, "parallel"),
        (16, "parallel"),
        (8, "reduction"),
    ]
    relu = facts["ops"][1]
    assert [loop["axis"] for loop in relu["loops"]] == [loop["axis"] for loop in linear["loops"][:2]]


def test_operators_without_a_written_sharding_rule_are_listed(mixed: dict[str, Any]) -> None:
    assert (mixed["found"], mixed["opaque"]) == (["aten.fft_rfft.default"], ["aten.linalg_matrix_exp.default"])
    assert 0 < mixed["cuttable_share"] < 1
    fourier, exponential = (next(op for op in mixed["ops"] if name in op["op"]) for name in ("rfft", "matrix_exp"))
    assert (fourier["sharding_rule"], fourier["cuttable"]) == ("found", True)
    assert [(loop["size"], loop["kind"]) for loop in fourier["loops"]] == [(4, "parallel"), (6, "fixed")]
    assert (exponential["sharding_rule"], exponential["cuttable"]) == ("opaque", False)
    assert exponential["source"].startswith("test_inspect_report.py:")


def test_the_table_reads_as_the_facts(mixed: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    print_inspection(mixed)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["operator", "module", "rule", "loops", "FLOP", "share"]
    shown = {line.split()[0]: line for line in lines[2 : 2 + len(mixed["ops"])]}
    assert list(shown) == [op["name"] for op in mixed["ops"]]
    assert "4 3 +6" in shown["linear"]
    assert "found" in shown["fft_rfft"]
    assert "opaque" in shown["linalg_matrix_exp"]
    assert f"own: {mixed['parameters']} parameters, " in "\n".join(lines)
    assert lines[-2] == f"With a rule found by running them on made-up operands: {', '.join(mixed['found'])}"
    assert lines[-1] == f"Without a sharding rule, so never cut inside: {', '.join(mixed['opaque'])}"
