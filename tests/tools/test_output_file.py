"""What commands write replaces only what cutset has written: no file, device or link of the user's."""

import errno
import os
import stat
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from command_line import USAGE, Cutset, refused
from places import USER_MODELS

from cutset.partition.placement.placement_file import Placement

TASK = f"{USER_MODELS / 'good.py'}:task"
USERS = "def task():\n    return 1\n"

# Every command that writes a file, up to the name of the file. CUT is a placement.
WRITERS = {
    "plan": ["plan", TASK, "--machines", "2", "--candidates", "slices", "-o"],
    "show html": ["show", "CUT", "--html"],
    "show svg": ["show", "CUT", "--svg"],
    "probe": ["probe", "-o"],
    "figure3": ["bench", "figure3", "--svg"],
    "methods": ["bench", "methods", "--data", "mnist:x", "-o"],
}
QUICK = ("plan", "show html", "show svg")  # the others measure for long


@pytest.fixture
def cut(tmp_path_factory: pytest.TempPathFactory, mlp: Placement) -> Path:
    path = tmp_path_factory.mktemp("cut") / "cut.json"
    mlp.save(path)
    return path


def command(name: str, cut: Path, file: Path) -> Sequence[object]:
    return [*(cut if word == "CUT" else word for word in WRITERS[name]), file]


def make_users_file(path: Path) -> None:
    path.write_text(USERS)


def make_link(path: Path) -> None:
    (path.parent / "users.py").write_text(USERS)
    path.symlink_to("users.py")


def make_page(path: Path) -> None:
    path.write_text("<!doctype html>\n<html><head><title>My page</title></head></html>")


def make_json(path: Path) -> None:
    path.write_text('{"format": 2, "name": "mine"}')


IN_THE_WAY: dict[str, Callable[[Path], None]] = {
    "the user's source": make_users_file,
    "the user's page": make_page,
    "the user's JSON": make_json,
    "a link to the user's file": make_link,
    "a link to a device": lambda path: path.symlink_to("/dev/null"),
    "a link to nothing": lambda path: path.symlink_to("nothing"),
    "a link to itself": lambda path: path.symlink_to(path.name),
    "a pipe": lambda path: os.mkfifo(path),
}


def tree(folder: Path) -> dict[str, object]:
    """All that is in a folder, and what it is."""
    found: dict[str, object] = {}
    for path in sorted(folder.rglob("*")):
        mode = path.lstat().st_mode
        regular = stat.S_ISREG(mode)
        found[path.name] = path.read_text() if regular else os.readlink(path) if stat.S_ISLNK(mode) else mode
    return found


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("what", IN_THE_WAY)
def test_what_is_the_users_stays(cutset: Cutset, tmp_path: Path, cut: Path, writer: str, what: str) -> None:
    path = tmp_path / "mine.py"
    IN_THE_WAY[what](path)
    before = tree(tmp_path)
    refused(cutset(*command(writer, cut, path)), USAGE, "E232", str(path), f"name another file: {tmp_path}/mine-2.py")
    assert tree(tmp_path) == before


@pytest.mark.parametrize("writer", WRITERS)
def test_a_device_is_no_file(cutset: Cutset, cut: Path, writer: str) -> None:
    refused(cutset(*command(writer, cut, Path("/dev/null"))), USAGE, "E232", "/dev/null is a device", "file: null-2")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


@pytest.mark.parametrize("writer", QUICK)
def test_what_cutset_wrote_is_replaced(cutset: Cutset, tmp_path: Path, cut: Path, writer: str) -> None:
    path, link = tmp_path / "out", tmp_path / "link"
    path.touch()  # an empty file is nobody's
    assert cutset(*command(writer, cut, path)).code == 0
    first = path.read_text()
    assert first
    path.write_text(first[: len(first) // 2])  # as earlier versions may have left it
    link.symlink_to("out")
    assert cutset(*command(writer, cut, link)).code == 0
    assert link.is_symlink()
    assert path.read_text() == first
    assert {one.name for one in tmp_path.iterdir()} == {"out", "link"}


def test_one_kind_does_not_replace_another(cutset: Cutset, tmp_path: Path, cut: Path) -> None:
    page = tmp_path / "page.html"
    assert cutset("show", cut, "--html", page).code == 0
    refused(cutset("show", cut, "--svg", page), USAGE, "E232", "a picture does not replace it")
    refused(cutset("show", cut, "--html", cut), USAGE, "E232", "a page does not replace it")
    assert page.read_text().startswith("<!doctype html>")


@pytest.mark.parametrize("writer", QUICK)
def test_a_full_disk_leaves_no_half_of_a_file(
    cutset: Cutset, tmp_path: Path, cut: Path, monkeypatch: pytest.MonkeyPatch, writer: str
) -> None:
    def full(file: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    path = tmp_path / "out"
    assert cutset(*command(writer, cut, path)).code == 0
    before = tree(tmp_path)
    monkeypatch.setattr("os.fsync", full)
    refused(cutset(*command(writer, cut, path)), USAGE, "E222", str(path), "No space left on device")
    assert tree(tmp_path) == before


def test_a_name_too_long_or_below_a_file(cutset: Cutset, tmp_path: Path, cut: Path) -> None:
    (tmp_path / "file").touch()
    for writer in WRITERS:
        refused(cutset(*command(writer, cut, tmp_path / ("a" * 256))), USAGE, "E233", "256 bytes")
        refused(cutset(*command(writer, cut, tmp_path / "file" / "x")), USAGE, "E222", "there is no folder")
        refused(cutset(*command(writer, cut, Path())[:-1], ""), USAGE, "E233", "empty")
