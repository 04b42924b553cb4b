"""Reads the blocks of code in README.md and docs/, and runs them as a reader would: in order, a folder for each page.

A ```python or ```toml block whose first line is a comment with a file's name is that file; other Python is run. Of a
```console block the lines that begin with "$ " are commands of `cutset`, a backslash at the end continues one, and what
follows " #" is a comment. A line <!-- MARKS --> before a block says more of it, with commas between:

- "slow": it takes long and is run by `make slow`
- "exit 3": its command ends with this exit code
- "prints": it is a ```text block, and the block before it prints each of its lines, but for numbers, and for what "..."
  stands for
"""

import gzip
import random
import re
import shlex
import struct
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from places import ROOT
from takes import write_takes

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
COMMAND_TIMEOUT_S = 120  # where other processes take the cores
_BLOCK = re.compile(
    r"(?:<!-- (?P<marks>[\w, ]+) -->\n)?^```(?P<kind>\w+)\n(?P<code>.*?)^```$", re.DOTALL | re.MULTILINE
)
_NUMBER = re.compile(r"[-+]?\d[\d.]*(?:e[-+]?\d+)?(?: ?(?:%|x|k|M|G|B|KiB|MiB|GiB|s|ms|µs)(?!\w))?")
_LINK = re.compile(r"(?<!!)\[[^\]\n]*\]\((?P<path>[\w./-]*)(?:#(?P<anchor>[\w-]+))?\)")


@dataclass(frozen=True)
class Block:
    """One block of code of a page."""

    kind: str
    code: str
    marks: frozenset[str] = frozenset()

    @property
    def slow(self) -> bool:
        """Whether it takes long."""
        return "slow" in self.marks

    @property
    def exit_code(self) -> int:
        """The code with which its commands end."""
        return next((int(mark.removeprefix("exit ")) for mark in self.marks if mark.startswith("exit ")), 0)

    @property
    def prints(self) -> bool:
        """Whether it is what the block before it prints."""
        return "prints" in self.marks

    def find_unprinted(self, printed: str) -> list[str]:
        """Return the lines that are not in what was printed."""
        text = _mask(printed)
        parts = [part for line in self.code.splitlines() for part in line.split("...")]
        return [part for part in parts if _mask(part) not in text]

    @property
    def file(self) -> str | None:
        """The file that a block is, by its first line."""
        named = re.match(r"# ([\w/]+\.(?:py|toml))\n", self.code)
        return named[1] if named else None

    @property
    def is_file(self) -> bool:
        """Whether it is a file that nothing runs as it stands."""
        return self.file is not None and "__main__" not in self.code

    def commands(self) -> list[list[str]]:
        """The commands of a console block, as arguments."""
        text = self.code.replace("\\\n", " ")
        lines = [line.removeprefix("$ ") for line in text.splitlines() if line.startswith("$ ")]
        return [shlex.split(line, comments=True) for line in lines]


def read_blocks(page: Path) -> list[Block]:
    """All blocks of a page, in order."""
    blocks: list[Block] = []
    for block in _BLOCK.finditer(page.read_text(encoding="utf-8")):
        marks = frozenset((block["marks"] or "").split(", ")) - {""}
        if "prints" in marks and blocks[-1].slow:
            marks |= {"slow"}
        blocks.append(Block(block["kind"], block["code"], marks))
    return blocks


def _mask(text: str) -> str:
    """Return a text without numbers, and with no more than one space between words, however its lines are broken."""
    return re.sub(r"[\s─│]+", " ", _NUMBER.sub("#", text)).strip()


def read_anchors(page: Path) -> set[str]:
    """The anchors of a page: its headings, as a code host names them."""
    text = _BLOCK.sub("", page.read_text(encoding="utf-8"))
    anchors: set[str] = set()
    for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE):
        anchor = re.sub(r"[^\w -]", "", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()).replace(" ", "-")
        number = next(n for n in range(len(anchors) + 1) if (f"{anchor}-{n}" if n else anchor) not in anchors)
        anchors.add(f"{anchor}-{number}" if number else anchor)
    return anchors


def read_links(page: Path) -> list[tuple[Path, str]]:
    """The links of a page to files of the repository: the file, and the anchor in it or ""."""
    text = _BLOCK.sub("", page.read_text(encoding="utf-8"))
    links = []
    for link in _LINK.finditer(text):
        path = ROOT / link["path"][1:] if link["path"].startswith("/") else page.parent / link["path"]
        links.append((path.resolve() if link["path"] else page, link["anchor"] or ""))
    return links


def set_up(folder: Path) -> None:
    """Put into a folder what the pages take for granted: mine.py of the README, and small data sets by their names."""
    for block in read_blocks(ROOT / "README.md"):
        if block.kind == "python" and block.file:
            (folder / block.file).write_text(block.code, encoding="utf-8")
    draw = random.Random(0)
    (folder / "mnist").mkdir()
    for name, count in (("train", 256), ("t10k", 64)):
        labels = bytes(draw.randrange(10) for _ in range(count))
        pixels = bytes(draw.randrange(256) for _ in range(count * 784))
        files = {
            "images-idx3-ubyte": struct.pack(">IIII", 0x803, count, 28, 28) + pixels,
            "labels-idx1-ubyte": struct.pack(">II", 0x801, count) + labels,
        }
        for kind, data in files.items():
            (folder / "mnist" / f"{name}-{kind}.gz").write_bytes(gzip.compress(data))
    write_takes(folder / "fsdd" / "recordings")
    rows = (f"{draw.choice('+-')}1 {draw.randint(1, 60)}:1 {draw.randint(61, 123)}:1" for _ in range(400))
    (folder / "a9a").write_text("\n".join(rows) + "\n")
    words = ["the", "a", *(f"word{i}" for i in range(30))]
    lines = (" ".join(draw.choice(words) for _ in range(30)) for _ in range(100))
    (folder / "corpus.txt").write_text("\n".join(lines))


def run_block(block: Block, folder: Path) -> Iterator[tuple[str, subprocess.CompletedProcess[str]]]:
    """Run what a block says, in a folder; each command with how it ended."""
    if block.file:
        (folder / block.file).write_text(block.code, encoding="utf-8")
        if "__main__" in block.code:
            yield block.file, run([sys.executable, block.file], folder)
    elif block.kind == "python":
        yield block.code, run([sys.executable, "-c", block.code], folder)
    for words in block.commands() if block.kind == "console" else []:
        assert words[0] == "cutset", f"a console block runs {words[0]}, which no test runs"
        yield shlex.join(words), run([str(Path(sys.executable).with_name("cutset")), *words[1:]], folder)


def run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder."""
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=False)
