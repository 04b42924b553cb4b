"""Files of data name models, but no code runs because a file says so: only what the user names, and bundled tasks."""

import sys
from pathlib import Path

import msgspec
import pytest
from command_line import BAD_INPUT, USAGE, Cutset, refused
from places import USER_MODELS

from cutset.partition.placement.placement_file import Placement, load

TASK = f"{USER_MODELS / 'good.py'}:task"

EVIL = "from pathlib import Path\nPath('ran').touch()\ndef task(**more): Path('called').touch()\n"
NAMES = [
    "evil:task",
    "evil.py:task",
    "os:system(command='touch called')",
    "cutset.models:import_module(name='evil')",
    "cutset.models.tasks.digits:digits",
    "cutset.models.evil:task",
    "builtins:exec(source='import evil')",
]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current folder with code that nobody wants to run."""
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.chdir(tmp_path)
    (tmp_path / "evil.py").write_text(EVIL)
    monkeypatch.delitem(sys.modules, "evil", raising=False)
    return tmp_path


@pytest.fixture
def cut(cutset: Cutset) -> Placement:
    """A placement of the small task."""
    assert cutset("plan", TASK, "--machines", 2, "--candidates", "slices", "-o", "good.json").code == 0
    return load("good.json")


def named(cut: Placement, model: str) -> Path:
    """A placement file that names a model."""
    path = Path("cut.json")
    msgspec.structs.replace(cut, model=model).save(path)
    return path


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("model", NAMES)
def test_a_placement_does_not_choose_the_code_that_runs(cutset: Cutset, cut: Placement, here: Path, model: str) -> None:
    path = named(cut, model)
    refused(cutset("check", path), BAD_INPUT, "E348", repr(model), "cutset check cut.json")
    assert cutset("show", path, "--html", "cut.html", "--svg", "cut.svg").code == 0
    assert cutset("check", path, TASK).code == 0
    outcome = cutset("train", TASK, "--placement", path, "--batch", 4)
    refused(outcome, BAD_INPUT, "E344")  # it has come to the comparison with the task
    refused(cutset("eval", TASK, "--placement", path, "--batch", 4, "--checkpoint", here), BAD_INPUT, "E344")
    assert "evil" not in sys.modules
    assert not (here / "ran").exists()
    assert not (here / "called").exists()


def test_the_fix_is_one_argument_whatever_the_name(cutset: Cutset, cut: Placement) -> None:
    path = named(cut, "x:y; touch called")
    refused(cutset("check", path), USAGE, "E210", "x:y; touch called")
    path = named(cut, "x; touch called #:y")
    refused(cutset("check", path), BAD_INPUT, "E348", "cutset check cut.json 'x; touch called #:y'")


def test_the_user_may_trust_a_file(cutset: Cutset, cut: Placement) -> None:
    path = named(cut, TASK)
    refused(cutset("check", path), BAD_INPUT, "E348", TASK)
    for trusted in (["--trust"], [TASK]):
        assert cutset("check", path, *trusted).out == f"cut.json fits {TASK}: 2 machines\n"


def test_bundled_tasks_are_trusted(cutset: Cutset) -> None:
    assert cutset("plan", "cutset.models:digits", "--candidates", "slices", "-o", "digits.json").code == 0
    assert cutset("check", "digits.json").out == "digits.json fits cutset.models:digits: 2 machines\n"
