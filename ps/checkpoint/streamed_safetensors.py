"""Safetensors files that are written and read a part at a time, so that neither end ever holds the whole.

Files are read with `pread` into the reader's own buffers, because the pages of a mapped file would count as its memory.
The format: eight bytes with the length of the header, the header (JSON: dtype, shape and byte range of each tensor),
and the bytes of the tensors.
"""

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import Tensor

from ...errors import CheckpointError
from ...partition.ir.box import Box, sizes, slices, volume

PART_BYTES = 4 << 20  # read or written in one call
_LENGTH_BYTES = 8
_MAX_HEADER_BYTES = 100 << 20  # the limit of the safetensors library
_METADATA = "__metadata__"
_CODES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.complex64: "C64",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_DTYPES = {code: dtype for dtype, code in _CODES.items()}

Layout = tuple[torch.dtype, Sequence[int]]  # of a tensor: dtype and shape
ReadFlat = Callable[[int, int], Tensor]  # elements [start, stop) of something flat


class TensorWriter:
    """Writes a file whose tensors' names, dtypes and shapes are known before their values; `finish` completes it.

    Raises OSError if the file cannot be written, and CheckpointError E807 for a dtype that the format lacks.
    """

    def __init__(self, path: Path, tensors: Mapping[str, Layout], *, metadata: Mapping[str, str] | None = None) -> None:
        self._places: dict[str, tuple[torch.dtype, list[int], int]] = {}
        header: dict[str, Any] = {_METADATA: dict(metadata)} if metadata else {}
        end = 0
        # Wide elements come first, so that every tensor is aligned to its elements.
        for name, (dtype, shape) in sorted(tensors.items(), key=lambda item: (-item[1][0].itemsize, item[0])):
            if dtype not in _CODES:
                raise CheckpointError("E807", f"tensor {name} is of {dtype}, which safetensors files do not know")
            start, end = end, end + math.prod(shape) * dtype.itemsize
            self._places[name] = (dtype, list(shape), start)
            header[name] = {"dtype": _CODES[dtype], "shape": list(shape), "data_offsets": [start, end]}
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % _LENGTH_BYTES)
        self._begin = _LENGTH_BYTES + len(text)
        self._left = end
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        _write(self._file, memoryview(len(text).to_bytes(_LENGTH_BYTES, "little") + text), 0)
        os.ftruncate(self._file, self._begin + end)

    def write(self, name: str, tensor: Tensor, *, start: int = 0) -> None:
        """Write a tensor, or the part of it that begins at flat element `start`. Each element must be written once."""
        dtype, shape, place = self._places[name]
        if tensor.dtype != dtype or not 0 <= start <= start + tensor.numel() <= math.prod(shape):
            raise ValueError(f"{tensor.dtype} {list(tensor.shape)} at {start} of {name}, which is {dtype} {shape}")
        at = self._begin + place + start * dtype.itemsize
        for part in _parts(tensor.detach()):
            _write(self._file, _bytes_of(part), at)
            at += part.nbytes
        self._left -= tensor.nbytes

    def finish(self) -> None:
        """Bring the file to the disk. ValueError if not all of the tensors were written."""
        if self._left:
            raise ValueError(f"{self._left} bytes of the tensors were not written")
        os.fsync(self._file)

    def __enter__(self) -> "TensorWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._file)


class TensorReader:
    """Reads tensors, or flat ranges and boxes of them, from a file. CheckpointError E803 if it cannot be read."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._file = -1
        try:
            self._file = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            self._begin, header = self._header()
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            self.close()
            raise CheckpointError("E803", f"tensor file {self.path} cannot be read: {error}") from error
        self.metadata: dict[str, str] = header.pop(_METADATA, {})
        self._places: dict[str, tuple[torch.dtype, list[int], int]] = header

    @property
    def layouts(self) -> dict[str, Layout]:
        """The dtype and shape of every tensor by name."""
        return {name: (dtype, shape) for name, (dtype, shape, _) in self._places.items()}

    def read(self, name: str, start: int = 0, stop: int | None = None) -> Tensor:
        """Return elements [start, stop) of a tensor, flat; by default all of them."""
        if name not in self._places:
            raise CheckpointError("E803", f"tensor file {self.path} has no tensor {name!r}")
        dtype, shape, place = self._places[name]
        stop = math.prod(shape) if stop is None else stop
        if not 0 <= start <= stop <= math.prod(shape):
            raise ValueError(f"elements [{start}, {stop}) of {name}, which has shape {shape}")
        values = torch.empty(stop - start, dtype=dtype)
        buffer, at = _bytes_of(values), self._begin + place + start * dtype.itemsize
        while buffer.nbytes:
            count = os.preadv(self._file, [buffer[:PART_BYTES]], at)
            if not count:
                raise CheckpointError("E803", f"tensor file {self.path} ends within {name}")
            buffer, at = buffer[count:], at + count
        return values

    def tensor(self, name: str) -> Tensor:
        """Return a whole tensor in its shape."""
        return self.read(name).view(self._places[name][1])

    def box(self, name: str, axes: Sequence[int], box: Box) -> Tensor:
        """Return a box of a tensor that is viewed with the sizes `axes`."""
        if name not in self._places:
            raise CheckpointError("E803", f"tensor file {self.path} has no tensor {name!r}")
        target = torch.empty(sizes(box), dtype=self._places[name][0])
        self.fill(target, name, axes, box)
        return target

    def fill(self, target: Tensor, name: str, axes: Sequence[int], box: Box) -> None:
        """Read a box of a tensor into `target`, which has the sizes of the box."""
        shape = self._places[name][1] if name in self._places else []
        if math.prod(axes) != math.prod(shape):
            raise ValueError(f"axes {list(axes)} of {name}, which has shape {shape}")
        fill_box(target, axes, box, lambda start, stop: self.read(name, start, stop))

    def close(self) -> None:
        """Close the file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def __enter__(self) -> "TensorReader":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _header(self) -> tuple[int, dict[str, Any]]:
        size = os.fstat(self._file).st_size
        length = int.from_bytes(os.pread(self._file, _LENGTH_BYTES, 0), "little")
        if length > min(size - _LENGTH_BYTES, _MAX_HEADER_BYTES):
            raise ValueError(f"its header is said to have {length} bytes")
        header = json.loads(os.pread(self._file, length, _LENGTH_BYTES))
        places: dict[str, Any] = {}
        for name, entry in header.items():
            if name == _METADATA:
                places[name] = {str(key): str(value) for key, value in entry.items()}
                continue
            if entry["dtype"] not in _DTYPES:
                raise ValueError(f"tensor {name} is of dtype {entry['dtype']}")
            dtype, shape, (start, stop) = _DTYPES[entry["dtype"]], entry["shape"], entry["data_offsets"]
            if any(type(number) is not int for number in (*shape, start, stop)):
                raise ValueError(f"tensor {name} has numbers that are not whole: {shape}, {start}, {stop}")
            fits = 0 <= start <= stop <= size - _LENGTH_BYTES - length
            if not fits or any(n < 0 for n in shape) or stop - start != math.prod(shape) * dtype.itemsize:
                raise ValueError(f"tensor {name} of {dtype} {shape} is said to be at bytes [{start}, {stop})")
            places[name] = (dtype, shape, start)
        return _LENGTH_BYTES + length, places


def fill_box(target: Tensor, axes: Sequence[int], box: Sequence[tuple[int, int]], read: ReadFlat) -> None:
    """Fill `target` with a box of the flat values that `read` returns, viewed with sizes `axes`, some rows at a time.

    target: has the sizes of the box, with any strides.
    """
    if not axes:
        target.copy_(read(0, 1).view(()))
        return
    (begin, end), row = box[0], math.prod(axes[1:])
    if volume(tuple((a, b) for a, b in box)) == 0:
        return
    rows = max(1, PART_BYTES // max(1, row * target.element_size()))
    for start in range(begin, end, rows):
        stop = min(start + rows, end)
        part = target[start - begin : stop - begin]
        if rows == 1:  # a row of its own may be large
            fill_box(part[0], axes[1:], box[1:], lambda a, b, at=start * row: read(at + a, at + b))  # type: ignore[misc]
        else:
            inside = ((0, stop - start), *box[1:])
            part.copy_(read(start * row, stop * row).view(stop - start, *axes[1:])[slices(inside)])


def _parts(tensor: Tensor) -> Iterator[Tensor]:
    """Yield flat pieces of a tensor in order, none much larger than `PART_BYTES`."""
    if tensor.is_contiguous():
        yield from torch.split(tensor.reshape(-1), PART_BYTES // tensor.element_size()) if tensor.numel() else ()
    elif tensor.nbytes <= PART_BYTES or not tensor.dim():
        yield tensor.contiguous().reshape(-1)
    else:
        for row in tensor:
            yield from _parts(row)


def _bytes_of(flat: Tensor) -> memoryview:
    """Return a view of the memory of a flat contiguous tensor."""
    if not flat.numel():
        return memoryview(b"")
    view: memoryview = flat.contiguous().view(torch.uint8).numpy().data
    return view


def _write(file: int, data: memoryview, at: int) -> None:
    while data.nbytes:
        count = os.pwrite(file, data, at)
        data, at = data[count:], at + count
