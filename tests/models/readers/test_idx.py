"""IDX files: every name they come under, and every way in which they can be damaged."""

import gzip
import struct

import pytest
import torch

from cutset.models.readers.idx import find_idx, read_idx
from cutset.models.task import TaskError


def idx(*shape: int, kind: int = 8) -> bytes:
    count = torch.Size(shape).numel()
    return struct.pack(f">BBBB{len(shape)}I", 0, 0, kind, len(shape), *shape) + bytes(i % 251 for i in range(count))


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_reads_what_was_written(tmp_path, pack):
    (tmp_path / "f").write_bytes(pack(idx(2, 3, 4)))
    assert torch.equal(read_idx(tmp_path / "f", dimensions=3), torch.arange(24, dtype=torch.uint8).reshape(2, 3, 4))


def test_reads_an_empty_array(tmp_path):
    (tmp_path / "f").write_bytes(idx(0, 28, 28))
    assert read_idx(tmp_path / "f", dimensions=3).shape == (0, 28, 28)


whole = idx(2, 3, 4)
packed = gzip.compress(whole)


@pytest.mark.parametrize(
    ("content", "facts"),
    [
        (b"", "expected a header of 16 bytes, found 0"),
        (whole[:10], "expected a header of 16 bytes, found 10"),
        (whole[:-1], r"expected 40 bytes \(2x3x4 and the header\), found 39"),
        (whole + b"more", "expected 40 bytes .* found 44"),
        (idx(24), "expected magic number 00000803 .* found 00000801"),
        (idx(2, 3, 4, kind=13), "expected magic number 00000803 .* found 00000d03"),
        (b"<html><body>not found</body></html>", "expected magic number .* found 3c68746d"),
        (struct.pack(">4I", 0x803, *[2**32 - 1] * 3), "expected 79228162458924105385300197391 bytes .* found 16"),
        (packed[:-9], "damaged gzip file of"),
        (packed[:3], "damaged gzip file of 3 bytes"),
        (packed[:20] + b"\xff" * 8 + packed[28:], "damaged gzip file of"),
        (packed[:-8] + b"\0" * 8, "damaged gzip file of .*CRC"),
    ],
    ids=[
        "empty", "header cut", "cut", "too long", "labels", "floats", "page", "huge header",
        "gzip cut", "gzip header cut", "gzip overwritten", "gzip checksum",
    ],
)  # fmt: skip
def test_damage_is_named(tmp_path, content, facts):
    path = tmp_path / "train-images-idx3-ubyte"
    path.write_bytes(content)
    with pytest.raises(TaskError, match=f"train-images-idx3-ubyte: {facts}") as caught:
        read_idx(path, dimensions=3)
    assert "download" in caught.value.fix


def test_a_folder_in_place_of_the_file_is_named(tmp_path):
    with pytest.raises(TaskError, match="cannot be read: Is a directory"):
        read_idx(tmp_path, dimensions=3)


@pytest.mark.parametrize("name", ["t-idx1-ubyte", "t-idx1-ubyte.gz", "t.idx1-ubyte", "t.idx1-ubyte.gz"])
def test_finds_every_spelling(tmp_path, name):
    (tmp_path / name).touch()
    assert find_idx(tmp_path, "t", dimensions=1) == tmp_path / name


def test_missing_things_are_named(tmp_path):
    (tmp_path / "file").touch()
    for folder, facts in [
        (tmp_path, r"has no file t-idx1-ubyte or t-idx1-ubyte\.gz or t\.idx1-ubyte or t\.idx1-ubyte\.gz"),
        (tmp_path / "nowhere", "nowhere does not exist"),
        (tmp_path / "file", "file is not a folder"),
    ]:
        with pytest.raises(TaskError, match=facts) as caught:
            find_idx(folder, "t", dimensions=1)
        assert caught.value.fix
