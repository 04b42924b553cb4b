"""A model that branches on values, cut over two processes from the command line, against plain torch."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from places import USER_MODELS
from plain_training import train_plainly
from safetensors.torch import load_file
from torch import nn

from cutset.models.task import Task
from cutset.partition.operators.leaf_module import LEAF_MODULE
from cutset.partition.placement.placement_file import Placement, load
from cutset.tools.task.load_task import TaskSpec, load_task

BRANCHING = USER_MODELS / "branching.py"
CUTSET = Path(sys.executable).with_name("cutset")
EPOCHS, LR, SEED = 4, 0.05, 3


def cutset(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [str(CUTSET), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)


@pytest.fixture(scope="module")
def task() -> Iterator[Task]:
    path = sys.path[:]
    yield load_task(TaskSpec(f"{BRANCHING}:branching"))
    sys.path[:] = path


@pytest.fixture(scope="module")
def placement(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("plan") / "cut.json"
    done = cutset("plan", f"{BRANCHING}:branching", "--machines", 2, "--leaf-modules", "layers.*.1", "-o", file)
    assert done.returncode == 0, done.stderr
    return file


def machines_of_leaf_modules(placement: Placement) -> list[int]:
    """Where each leaf module is; it is never divided."""
    leaves = [op for op in placement.ops if op.op == LEAF_MODULE]
    assert all(len(op.boxes) == 1 for op in leaves)
    return [op.boxes[0].machine for op in leaves]


@torch.no_grad()
def evaluated(task: Task, model: nn.Module) -> float:
    """The share of right answers, batch by batch as the run tests: a gate looks at all of a batch."""
    assert task.data is not None
    test, right = task.data("test"), 0
    for start in range(0, len(test), task.batch):
        batch, rows = test.rows(torch.arange(start, start + task.batch).clamp(max=len(test) - 1)), len(test) - start
        right += task.correct(model(*batch.inputs)[:rows], *(t[:rows] for t in batch.targets))
    return right / len(test)


def test_a_placement_remembers_its_leaf_modules_and_is_checked_with_them(placement: Path) -> None:
    found = load(placement)
    assert found.leaf_modules == ["layers.*.1"]
    assert len(machines_of_leaf_modules(found)) == 2
    done = cutset("check", placement, f"{BRANCHING}:branching")
    assert done.stdout == f"{placement} fits {BRANCHING}:branching: 2 machines\n", done.stderr


def test_two_processes_train_it_as_plain_torch_does(task: Task, placement: Path, tmp_path: Path) -> None:
    options = ["--optimizer", "sgd", "--lr", LR, "--epochs", EPOCHS, "--seed", SEED, "--no-baseline", "--json"]
    done = cutset("train", f"{BRANCHING}:branching", "--placement", placement, *options, "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    pairs = {(link["source"], link["target"]) for link in result["links"]}
    assert {("worker-0.0", "worker-0.1"), ("worker-0.1", "worker-0.0")} <= pairs
    weights, model = load_file(tmp_path / "model.safetensors"), train_plainly(task, seed=SEED, lr=LR, epochs=EPOCHS)
    assert weights["layers.1.1.norm.num_batches_tracked"] == EPOCHS * 12
    torch.testing.assert_close(weights, dict(model.state_dict()), rtol=1e-10, atol=1e-12)
    assert result["rows"][0]["test_accuracy"] == evaluated(task, model.eval())


def test_without_an_option_the_same_leaf_modules_are_found(placement: Path, tmp_path: Path) -> None:
    done = cutset("plan", f"{BRANCHING}:branching", "--machines", 2, "-o", tmp_path / "cut.json")
    assert done.returncode == 0, done.stderr
    assert load(tmp_path / "cut.json") == load(placement)
    assert "branching.py:" in done.stdout
    assert "(if x.mean() > 0.05:), in module layers.0.1 (Gate)" in " ".join(done.stdout.split())


def test_leaf_modules_beside_a_placement_are_refused(placement: Path) -> None:
    done = cutset("train", f"{BRANCHING}:branching", "--placement", placement, "--leaf-modules", "last")
    assert done.returncode == 2
    assert "error E228: --leaf-modules has no effect with --placement" in done.stderr
