"""Reads IDX files, the format of MNIST, gzipped or not: magic number, sizes, then bytes (yann.lecun.com/exdb/mnist).

A malformed file raises a TaskError that names the file, what was expected and found, and the fix.
"""

import gzip
import math
import zlib
from pathlib import Path

import torch
from torch import Tensor

from ..task import TaskError

GZIP_MAGIC = b"\x1f\x8b"
UNSIGNED_BYTE = 8
DOWNLOAD_AGAIN = "download the file again; it is damaged or not the file its name says"


def read_idx(path: Path, *, dimensions: int) -> Tensor:
    """Return the array in a file, uint8 with `dimensions` dimensions."""
    content = _content(path)
    header_bytes = 4 + 4 * dimensions
    magic = bytes([0, 0, UNSIGNED_BYTE, dimensions])
    if len(content) < header_bytes:
        raise TaskError(f"{path}: expected a header of {header_bytes} bytes, found {len(content)}", fix=DOWNLOAD_AGAIN)
    if content[:4] != magic:
        raise TaskError(
            f"{path}: expected magic number {magic.hex()} (bytes, {dimensions} dimensions), found {content[:4].hex()}",
            fix=DOWNLOAD_AGAIN,
        )
    shape = [int.from_bytes(content[at : at + 4], "big") for at in range(4, header_bytes, 4)]
    expected = header_bytes + math.prod(shape)
    if len(content) != expected:
        sizes = "x".join(map(str, shape))
        raise TaskError(
            f"{path}: expected {expected} bytes ({sizes} and the header), found {len(content)}", fix=DOWNLOAD_AGAIN
        )
    if expected == header_bytes:
        return torch.empty(shape, dtype=torch.uint8)
    return torch.frombuffer(content, dtype=torch.uint8, offset=header_bytes).reshape(shape)


def find_idx(folder: Path, stem: str, *, dimensions: int) -> Path:
    """Return the file of a stem under one of its usual names: stem-idx3-ubyte or stem.idx3-ubyte, also with .gz."""
    plain = f"{stem}-idx{dimensions}-ubyte", f"{stem}.idx{dimensions}-ubyte"
    names = [name + end for name in plain for end in ("", ".gz")]
    if not folder.is_dir():
        kind = "is not a folder" if folder.exists() else "does not exist"
        raise TaskError(f"data folder {folder} {kind}", fix="name the folder that holds the IDX files")
    paths = [folder / name for name in names if (folder / name).is_file()]
    if not paths:
        raise TaskError(f"{folder} has no file {' or '.join(names)}", fix=f"put {names[0]}.gz into {folder}")
    return paths[0]


def _content(path: Path) -> bytearray:
    """Return the bytes of a file, unpacked if they are gzip, whatever its name says."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise TaskError(f"{path} cannot be read: {error.strerror}", fix="check the file's permissions") from error
    if not raw.startswith(GZIP_MAGIC):
        return bytearray(raw)
    try:
        return bytearray(gzip.decompress(raw))
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise TaskError(f"{path}: damaged gzip file of {len(raw)} bytes: {error}", fix=DOWNLOAD_AGAIN) from error
