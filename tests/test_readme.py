"""What README.md shows works as it stands there."""

import re
from pathlib import Path

import pytest

from cutset.tools.task.load_task import TaskSpec
from cutset.tools.task.plan_task import captured

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_users_own_model_in_ten_lines_is_a_task(tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    file = tmp_path / "mine.py"
    file.write_text(code, encoding="utf-8")
    ready = captured(TaskSpec(f"{file}:task"))
    assert ready.task.name == "mine"
    assert [op.row for op in ready.train.ops] == ["aten.linear", "aten.relu", "aten.linear", "aten.cross_entropy_loss"]


@pytest.mark.parametrize("name", ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"])
def test_every_file_that_a_page_names_exists(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    named = set(re.findall(r"\b(?:models|partition|runtime|ps|tools|api|tests|docs)/[\w/]+\.\w+", text))
    named |= set(re.findall(r"\]\(([\w./]+)\)", text))
    assert named
    assert [path for path in sorted(named) if not (ROOT / path).exists()] == []


def test_every_noun_has_a_file_of_its_name() -> None:
    nouns = {
        "models": ("task",),
        "partition": ("graph", "axis", "block", "cluster", "cut", "placement"),
        "runtime": ("program", "message", "channel", "worker", "replica", "coordinator"),
        "ps": ("shard", "rule", "client", "checkpoint"),
    }
    files = [ROOT / folder / f"{noun}.py" for folder, names in nouns.items() for noun in names]
    assert [file for file in files if not file.is_file()] == []
