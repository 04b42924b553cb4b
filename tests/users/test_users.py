"""The six trainings of this folder: as users have them, in few lines, as good by replicas and cut as in one process."""

import ast
import importlib
import math
import os
import runpy
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from places import SHARED
from safetensors.torch import load_file

import cutset

HERE = Path(__file__).parent
OUTSIDE = HERE.parent / "outside"
LINES = 40  # of a user's own, at most; imports, blank lines and docstrings aside

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


class Case(NamedTuple):
    """A training: what of shared data it needs; its options; its score, and by how much that may be worse."""

    name: str
    needs: str
    options: dict[str, Any]
    score: str
    worse: float
    cuts: bool = True


CASES = [
    Case("digits", "mnist", {"optimizer": "adam", "lr": 0.001, "lr_schedule": "cosine:warmup=0.05"}, "accuracy", 0.02),
    Case("shakespeare", "text", {"optimizer": "adamw", "lr": 0.001, "groups": ["dims<2:weight_decay=0"]}, "loss", 0.1),
    Case("house_prices", "", {"optimizer": "adam", "lr": 0.001, "epochs": 25, "patience": 5}, "loss", 0.05),
    Case("speech", "fsdd", {"optimizer": "adam", "lr": 0.001, "epochs": 15}, "accuracy", 0.03),
    Case("clicks", "", {"optimizer": "adam", "lr": 0.002}, "accuracy", 0.01, cuts=False),
    Case("sentiment", "", {"optimizer": "adamw", "lr": 0.001, "epochs": 10, "lr_schedule": "cosine"}, "right", 0.05),
]


@pytest.fixture(autouse=True)
def surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run where the table of house prices may be written, and transformers finds any torchvision good enough."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(OUTSIDE))
    importlib.import_module("torchvision_operators")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(OUTSIDE / "at_start"), str(OUTSIDE)]))


def task_of(case: Case) -> str:
    if case.needs and not (SHARED / "data" / case.needs).is_dir():
        pytest.skip(f"shared/data/{case.needs} is not there")
    if case.name == "sentiment":
        pytest.importorskip("transformers", reason="it is not installed")
    if case.name == "house_prices":
        runpy.run_path(str(HERE / "house_prices.py"))["write_table"]()
    return f"{HERE / case.name}.py:task"


def score_of(case: Case, row: dict[str, Any]) -> float:
    """The score of a row, of which more is better: the best one where the best weights are kept, else the last."""
    points = row["curve"] if "patience" in case.options else row["curve"][-1:]
    if case.score == "loss":
        return max(-float(point["test_loss"]) for point in points)
    return max(
        float(point["test_accuracy"] if case.score == "accuracy" else point["metrics"][case.score]) for point in points
    )


@pytest.mark.parametrize("path", sorted(HERE.glob("[a-z]*.py")), ids=lambda path: path.stem)
def test_each_is_short(path: Path) -> None:
    if path == Path(__file__):
        return
    tree = ast.parse(path.read_text())
    counted = set[int]()
    for node in ast.walk(tree):
        is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if isinstance(node, ast.stmt) and not isinstance(node, ast.Import | ast.ImportFrom) and not is_text:
            counted |= {node.lineno, getattr(node, "end_lineno", node.lineno)}
    assert len(counted) <= LINES


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_replicas_are_as_good_as_one_process(case: Case, tmp_path: Path) -> None:
    result = cutset.train(task_of(case), replicas=2, out=tmp_path / "run", **{"epochs": 1, **case.options})
    alone, together = result["rows"]
    assert score_of(case, together) > score_of(case, alone) - case.worse


@pytest.mark.parametrize("case", [case for case in CASES if case.cuts], ids=lambda case: case.name)
def test_a_cut_model_is_as_good_as_one_process(case: Case, tmp_path: Path) -> None:
    options = {"epochs": 1, **case.options, "machines": 2, "method": "sync"}
    result = cutset.train(task_of(case), out=tmp_path / "run", **options)
    alone, together = result["rows"]
    assert math.isclose(score_of(case, together), score_of(case, alone), abs_tol=case.worse)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_run_that_resumes_in_the_middle_of_an_epoch_has_the_bits_of_one_that_did_not(
    case: Case, tmp_path: Path
) -> None:
    options = {"epochs": 1, **case.options, "replicas": 2, "method": "sync", "baseline": False}
    options.pop("patience", None)
    task = task_of(case)
    result = cutset.train(task, out=tmp_path / "whole", checkpoint_every=20, keep_checkpoints=1000, **options)
    steps = result["settings"]["steps per replica"]
    checkpoints = sorted((tmp_path / "whole" / "checkpoints").iterdir(), key=lambda path: int(path.name))
    middle = checkpoints[len(checkpoints) // 3]
    assert not isinstance(steps, int) or 20 * int(middle.name) < steps
    cutset.train(task, out=tmp_path / "resumed", resume=middle, **options)
    whole, resumed = (load_file(tmp_path / run / "model.safetensors") for run in ("whole", "resumed"))
    assert all(whole[name].equal(resumed[name]) for name in whole)
