"""What README.md and docs/ show works as it stands there, and what they name is there."""

import re
from itertools import pairwise
from pathlib import Path

import pytest
from documentation import PAGES, Block, read_anchors, read_blocks, read_links, set_up
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
    named |= {path for path, _ in read_links(page)}
    assert [path for path in sorted(named - WRITTEN_BY_THE_READER) if not path.exists()] == []


@pytest.mark.parametrize("page", TEXTS, ids=name_of)
def test_every_heading_that_a_page_links_to_exists(page: Path) -> None:
    links = [(path, anchor) for path, anchor in read_links(page) if anchor]
    assert [(name_of(path), anchor) for path, anchor in links if anchor not in read_anchors(path)] == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_what_marks_say_of_a_block_can_be_checked(page: Path) -> None:
    blocks = read_blocks(page)
    for before, block in pairwise([Block("text", ""), *blocks]):
        assert not block.prints or (block.kind == "text" and (before.kind in ("console", "python") or before.prints))
        assert not block.exit_code or len(block.commands()) == 1


def test_what_is_printed_is_compared_but_for_numbers() -> None:
    block = Block(
        "text", "Worth it: 2 machines ... 1.17x faster\n\nname    busy\n───\n0 desk  7.08 ms\n", frozenset({"prints"})
    )
    printed = "Worth it: 2\nmachines 3.5 ms, 1.31x faster than one\n\nname busy\n─────\n0 desk 812 µs\n"
    assert block.find_unprinted(printed) == []
    assert block.find_unprinted(printed.replace("desk", "shelf")) == ["0 desk  7.08 ms"]


def test_anchors_are_those_of_a_code_host(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A *cut*, `--and` more\n\n## [Same](a.md)\n\n```sh\n# no heading\n```\n\n## Same\n")
    assert read_anchors(page) == {"a-cut---and-more", "same", "same-1"}
