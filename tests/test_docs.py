"""What README.md and docs/ show works as it stands there, and what they name is there."""

import re
from pathlib import Path

import pytest
from documentation import PAGES, read_blocks, set_up
from places import ROOT

from cutset.tools.task.capture_task import capture_task
from cutset.tools.task.load_task import TaskSpec

KINDS = {"console", "python", "sh", "json", "toml", "text"}
WRITTEN_BY_THE_READER = {ROOT / "ps/methods/large_batch.py"}  # docs/adding_a_method.md
TEXTS = [*PAGES, ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md"]


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def test_every_block_says_what_it_is() -> None:
    assert {block.kind for page in PAGES for block in read_blocks(page)} <= KINDS


def test_the_commands_of_make_are_there() -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {
        t
        for page in TEXTS
        for t in re.findall(r"(?:`|^)make ([\w-]+)(?: *#.*)?(?:`|$)", page.read_text(), re.MULTILINE)
    }
    assert named
    assert named <= targets


def test_the_model_of_the_readme_is_captured_operator_by_operator(tmp_path: Path) -> None:
    set_up(tmp_path)
    ready = capture_task(TaskSpec(f"{tmp_path / 'mine.py'}:task"))
    assert ready.task.name == "mine"
    names = ["aten.linear", "aten.relu", "aten.linear", "aten.cross_entropy_loss"]
    assert [op.sharding_rule for op in ready.train.ops] == names


def test_the_readme_is_one_screen_and_some() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120


@pytest.mark.parametrize("page", TEXTS, ids=name_of)
def test_every_file_that_a_page_names_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    named = {
        ROOT / path for path in re.findall(r"\b(?:models|partition|runtime|ps|tools|api|tests|docs)/[\w/]+\.\w+", text)
    }
    links = re.findall(r"\]\(([\w./-]+)(?:#[\w-]+)?\)", text)
    named |= {ROOT / link[1:] if link.startswith("/") else (page.parent / link).resolve() for link in links}
    assert [path for path in sorted(named - WRITTEN_BY_THE_READER) if not path.exists()] == []
