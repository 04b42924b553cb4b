"""What README.md and docs/ show runs as it stands there."""

from pathlib import Path

import pytest
from documentation import PAGES, read_blocks, run_block, set_up
from places import ROOT

# docs/adding_a_method.md has a test of its own, tests/ps/methods/test_adding_a_method.py
RUN = [
    page
    for page in PAGES
    if page.name != "adding_a_method.md" and any(block.kind in ("console", "python") for block in read_blocks(page))
]


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.mark.timeout(600)  # of all commands of a page; each has its own
@pytest.mark.parametrize("slow", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["quick", "slow"])
@pytest.mark.parametrize("page", RUN, ids=name_of)
def test_every_block_of_a_page_runs(page: Path, slow: bool, tmp_path: Path) -> None:
    set_up(tmp_path)
    printed = ""
    for block in read_blocks(page):
        if block.slow != slow and not (slow and block.is_file):  # a command that is slow may need a file that is not
            continue
        if block.prints:
            assert block.find_unprinted(printed) == [], printed
            continue
        outcomes = list(run_block(block, tmp_path))
        for what, done in outcomes:
            assert done.returncode == block.exit_code, f"{what}\n{done.stdout}\n{done.stderr}"
        printed = "\n".join(done.stdout + done.stderr for _, done in outcomes)
