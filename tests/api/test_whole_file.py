"""A file that is written whole: it appears complete, or the one before stays as it was."""

import errno
import os
from pathlib import Path

import pytest

from cutset.whole_file import write_whole


def test_a_file_is_made_and_replaced(tmp_path: Path) -> None:
    for text in ("first\n", "Δ second\n"):
        write_whole(tmp_path / "a.txt", text)
        assert (tmp_path / "a.txt").read_text(encoding="utf-8") == text
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


def test_a_full_disk_leaves_the_file_before_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(file: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    path = tmp_path / "a.txt"
    write_whole(path, "before")
    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_whole(path, "after")
    assert [one.read_text() for one in tmp_path.iterdir()] == ["before"]


def test_what_is_not_text_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(UnicodeEncodeError):
        write_whole(tmp_path / "a.txt", "\udcff")
    assert list(tmp_path.iterdir()) == []


def test_others_may_read_it_as_the_users_mask_says(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_whole(tmp_path / "a.txt", "")
    finally:
        os.umask(before)
    assert (tmp_path / "a.txt").stat().st_mode & 0o777 == 0o640


def test_the_longest_name_is_no_longer_for_its_while(tmp_path: Path) -> None:
    write_whole(tmp_path / ("a" * 255), "whole")
    assert (tmp_path / ("a" * 255)).read_text() == "whole"
