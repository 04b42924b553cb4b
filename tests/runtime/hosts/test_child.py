"""What a role prints, and a disk that is full."""

import os
from pathlib import Path

import pytest

from cutset.runtime.hosts.child import _LogStream


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_prints_to_a_full_disk_are_lost_without_an_exception() -> None:
    descriptor = os.open("/dev/full", os.O_WRONLY)
    try:
        stream = _LogStream.open(descriptor)
        print("a step was made", file=stream, flush=True)
        stream.write("é" * 100_000)
        stream.flush()
    finally:
        os.close(descriptor)


def test_prints_arrive_whole_and_at_once(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as file:
        stream = _LogStream.open(file.fileno())
        stream.write("été\n" * 50_000)
        assert (tmp_path / "log").read_text(encoding="utf-8") == "été\n" * 50_000
        assert stream.fileno() == file.fileno()
        stream.write("\udcff")
        assert (tmp_path / "log").read_bytes().endswith(b"\\udcff")


def test_another_error_is_raised() -> None:
    read_only = os.open(os.devnull, os.O_RDONLY)
    try:
        with pytest.raises(OSError, match="Bad file descriptor"):
            _LogStream.open(read_only).write("x")
    finally:
        os.close(read_only)
