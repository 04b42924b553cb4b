"""The scripts of docs/guide/own_loop.md before and after they were moved: few lines differ, and both train as well."""

import difflib
import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pytest
import torch
from places import ROOT

MIGRATION = ROOT / "docs" / "migration"
PROGRAMS = Path(sys.executable).parent
CHANGED = 8  # lines of a script, at most
OUTSIDE = ROOT / "tests" / "outside"
WITH_TORCHVISION = {"PYTHONPATH": os.pathsep.join([str(OUTSIDE / "at_start"), str(OUTSIDE)])}


def lines(name: str) -> list[str]:
    return (MIGRATION / name).read_text().splitlines()[1:]  # without the docstring


def run(*command: object, folder: Path, environment: Mapping[str, str] = MappingProxyType({})) -> str:
    words, variables = list(map(str, command)), {**os.environ, **environment}
    done = subprocess.run(words, cwd=folder, env=variables, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def read_number(said: str, name: str) -> float:
    return float(re.findall(rf"{name} ([\d.]+)", said)[-1])


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """A text to train on: the documentation of this project."""
    path = tmp_path / "text.txt"
    path.write_text("".join(page.read_text() for page in sorted((ROOT / "docs" / "guide").glob("*.md"))))
    return path


@pytest.mark.parametrize("name", ["loop", "gpt"])
def test_few_lines_change(name: str) -> None:
    changes = list(difflib.ndiff(lines(f"{name}_before.py"), lines(f"{name}_after.py")))
    assert 0 < sum(change.startswith("+ ") for change in changes) <= CHANGED


@pytest.mark.slow
def test_a_moved_loop_trains_alone_as_before(tmp_path: Path) -> None:
    before, after = (
        run(sys.executable, MIGRATION / f"loop_{which}.py", folder=tmp_path) for which in ("before", "after")
    )
    assert after == before


@pytest.mark.slow
def test_a_moved_gpt_trains_alone_as_before_and_together_as_well(tmp_path: Path, text: Path) -> None:
    options = [text, "--steps", 120, "--out"]
    before = run(sys.executable, MIGRATION / "gpt_before.py", *options, "before.pt", folder=tmp_path)
    after = run(sys.executable, MIGRATION / "gpt_after.py", *options, "after.pt", folder=tmp_path)
    assert after == before
    states = [torch.load(tmp_path / f"{which}.pt", weights_only=True) for which in ("before", "after")]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    launch = [PROGRAMS / "cutset", "launch", "--replicas", 2, "--method", "sync", MIGRATION / "gpt_after.py"]
    together = run(*launch, *options, "together.pt", folder=tmp_path)
    assert read_number(together, "test loss") < read_number(before, "test loss") + 0.05


@pytest.mark.slow
@pytest.mark.timeout(600)  # frameworks take long to import
@pytest.mark.parametrize("framework", ["loop", "ddp", "accelerate", "lightning"])
def test_what_was_moved_is_as_good(tmp_path: Path, framework: str) -> None:
    needed: dict[str, str] = {}
    if framework in ("accelerate", "lightning"):
        if importlib.util.find_spec(framework) is None:
            pytest.skip(f"{framework} is not installed")
        needed = WITH_TORCHVISION  # they import it where it is installed
    starters = {
        "ddp": [PROGRAMS / "torchrun", "--nproc-per-node", 2],
        "accelerate": [PROGRAMS / "accelerate", "launch", "--cpu"],
    }
    start = starters.get(framework, [sys.executable])
    before = run(*start, MIGRATION / f"{framework}_before.py", folder=tmp_path, environment=needed)
    launch = [PROGRAMS / "cutset", "launch", "--replicas", 2, "--method", "sync", MIGRATION / "loop_after.py"]
    moved = [sys.executable, MIGRATION / "lightning_after.py"] if framework == "lightning" else launch
    after = run(*moved, folder=tmp_path, environment=needed)
    pattern = r"accuracy\W+([\d.]+)"
    assert float(re.findall(pattern, after)[-1]) > float(re.findall(pattern, before)[-1]) - 0.03
