"""`cutset inspect`: the facts about a model, as data and as a table."""

import sys
from typing import Any

import pytest
from places import USER_MODELS
from torch import Tensor, nn

from cutset.models.task import Task, make_example_batches
from cutset.tools.report.inspect_report import describe_capture, print_inspection
from cutset.tools.task.capture_task import capture_task
from cutset.tools.task.load_task import TaskSpec

GOOD = USER_MODELS / "good.py"


class Recurrent(nn.Module):
    """Has an operator that the table does not know."""

    def __init__(self) -> None:
        super().__init__()
        self.memory, self.last = nn.LSTM(8, 6, batch_first=True), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.memory(x)[0][:, -1])


@pytest.fixture
def recurrent() -> dict[str, Any]:
    example = make_example_batches(((5, 8),), classes=3)
    task = Task("own", Recurrent, nn.functional.cross_entropy, example, batch=4)
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


def test_operators_without_a_sharding_rule_are_listed(recurrent: dict[str, Any]) -> None:
    assert "aten.lstm.input" in recurrent["opaque"]
    assert 0 < recurrent["cuttable_share"] < 1
    lstm = next(op for op in recurrent["ops"] if op["op"] == "aten.lstm.input")
    assert not lstm["cuttable"]
    assert lstm["source"].startswith("test_inspect_report.py:")


def test_the_table_reads_as_the_facts(recurrent: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    print_inspection(recurrent)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["operator", "module", "rule", "loops", "FLOP", "share"]
    shown = {line.split()[0]: line for line in lines[2 : 2 + len(recurrent["ops"])]}
    assert list(shown) == [op["name"] for op in recurrent["ops"]]
    assert "4 3 +6" in shown["linear"]
    assert "opaque" in shown["lstm"]
    parameters = recurrent["parameters"]
    assert f"own: {parameters} parameters, " in "\n".join(lines)
    assert lines[-1] == f"Without a sharding rule, so never cut inside: {', '.join(recurrent['opaque'])}"
