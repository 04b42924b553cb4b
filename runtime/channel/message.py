"""`Message`: a typed header and raw tensor frames. Nothing is ever unpickled.

On the wire a message is one msgpack header frame (msgspec) followed by the raw frames of its tensors. Nothing large is
copied: `encode` gives buffers over the tensors' own memory, `decode` gives tensors over the frames' memory. Small
tensors may lie in the header itself, since a frame more takes longer than to copy them.

Where frames are encrypted, a large tensor is divided into several, which the receiver puts together: a frame is
encrypted as a whole before any of it is sent, so a single one would be encrypted, sent and decrypted in turn.
"""

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Annotated, Any, Protocol, TypeVar

import msgspec
import torch
from torch import Tensor

from ...errors import NetworkError

LAUNCHER = "launcher"
WIRE_VERSION = 6
MAX_HEADER_BYTES = 16 << 20
MAX_DIMENSIONS = 64  # of a tensor
MAX_TENSORS = 1 << 16  # of a message: each takes a receiver some microseconds
MAX_ENCRYPTED_FRAME_BYTES = 1 << 20
INLINE_BYTES = 16 << 10  # of tensors in a header

Buffer = bytes | bytearray | memoryview
_T = TypeVar("_T")

# Every dtype with plain elements of whole bytes; not complex32, which torch itself warns of.
DTYPES: dict[str, torch.dtype] = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        *(torch.bool, torch.uint8, torch.uint16, torch.uint32, torch.uint64),
        *(torch.int8, torch.int16, torch.int32, torch.int64),
        *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
        *(torch.complex64, torch.complex128),
        *(torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz, torch.float8_e8m0fnu),
    )
}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
NUMPY_DTYPES = (torch.float32, torch.float64, torch.int64, torch.int32, torch.uint8)


class SharedSlot(msgspec.Struct, array_like=True, frozen=True):
    """Where a tensor lies in memory that sender and receiver share (shared_memory.py).

    number: of the slot in the sender's arena. offset: of the tensor, in bytes. pooled: the offset is one in the
    sender's pool, not in the arena.
    """

    number: int
    offset: int
    pooled: bool = False


class Payload(msgspec.Struct, array_like=True, frozen=True):
    """One tensor of a message: its dtype's name, its shape, and where it lies.

    slot: where the receiver finds it in shared memory. content: its bytes, if they lie in the header. A tensor with
    neither follows in raw frames. frames: how many; all have the same size but for the last, which has the rest.
    """

    dtype: str
    shape: list[int]
    slot: SharedSlot | None = None
    frames: int = 1
    content: bytearray | None = None

    @property
    def has_frames(self) -> bool:
        """Whether the tensor follows in frames."""
        return self.slot is None and self.content is None


class Header(msgspec.Struct, array_like=True, frozen=True):
    """What travels before the tensors, each of which one of `payloads` describes."""

    version: int
    job: str
    sender: str
    sequence: int
    kind: str
    step: int
    micro: int
    edge: int
    body: dict[str, Any]
    payloads: Annotated[list[Payload], msgspec.Meta(max_length=MAX_TENSORS)]


class _Origin(msgspec.Struct, array_like=True, frozen=True):
    """The fields that a header of every wire version begins with."""

    version: int
    job: str
    sender: str


class Message(msgspec.Struct, frozen=True):
    """One message as the roles see it.

    kind says what it is ("forward", "backward", "fetch", ...); step, micro (micro-batch) and edge say which one of its
    kind; body holds plain values (numbers, strings, lists, maps); tensors are the payload. The channel fills in
    `sender`.

    A tensor that was sent must not be written afterwards: the channel may still be reading it. Nor may one that was
    received: it may be the sender's own. borrowed: the sender will write the tensors again; whoever keeps them for
    longer than one call, as a channel does that does not copy them anyway, copies them first (`to_owned`).
    """

    kind: str
    step: int = 0
    micro: int = 0
    edge: int = 0
    body: dict[str, Any] = msgspec.field(default_factory=dict)
    tensors: tuple[Tensor, ...] = ()
    sender: str = ""
    borrowed: bool = False

    @property
    def bytes(self) -> int:
        """Bytes of all tensors together."""
        return sum(t.nbytes for t in self.tensors)

    def to_owned(self) -> "Message":
        """The same message with tensors that nobody else writes."""
        if not self.borrowed:
            return self
        return msgspec.structs.replace(self, tensors=tuple(t.clone() for t in self.tensors), borrowed=False)


class MalformedError(NetworkError):
    """Raised for frames that are no message."""


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Header)
_origin = msgspec.msgpack.Decoder(_Origin)
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class SharedTensorReader(Protocol):
    """Finds the tensors that a sender has put into shared memory."""

    def tensor(self, slot: SharedSlot, dtype: str, shape: list[int]) -> Tensor:
        """The tensor in a slot; MalformedError where there is none."""
        ...


def encode(
    message: Message,
    *,
    job: str,
    sender: str,
    sequence: int,
    slots: Sequence[SharedSlot | None] = (),
    frame_bytes: int = sys.maxsize,
    inline_bytes: int = INLINE_BYTES,
) -> list[Buffer]:
    """Turn `message` into frames: its header, then the tensors, over the tensors' memory and keeping it alive.

    slots: for each tensor the slot in shared memory in which it lies, or None for one that travels; by default all
    travel. frame_bytes: the most bytes of a tensor in one frame. inline_bytes: the most bytes of tensors in the header,
    which takes no more than half of a frame for them.
    NetworkError where the header is too large; ValueError for a tensor that is not a dense CPU tensor.
    """
    payloads, inline_bytes = [], min(inline_bytes, frame_bytes // 2)
    for tensor, slot in zip(message.tensors, slots or [None] * len(message.tensors), strict=True):
        dtype, shape, size = _dtype_name(tensor), list(tensor.shape), tensor.nbytes
        if slot is not None:
            payloads.append(Payload(dtype, shape, slot))
        elif size <= inline_bytes:
            inline_bytes -= size
            payloads.append(Payload(dtype, shape, content=bytearray(to_buffer(tensor))))
        else:
            payloads.append(Payload(dtype, shape, frames=max(1, -(-size // frame_bytes))))
    place = message.kind, message.step, message.micro, message.edge
    head = _encoder.encode(Header(WIRE_VERSION, job, sender, sequence, *place, message.body, payloads))
    if len(head) > MAX_HEADER_BYTES or len(payloads) > MAX_TENSORS:
        raise NetworkError(
            "E503",
            f"{sender} has a header of {len(head)} bytes, of {len(payloads)} tensors, in a message {message.kind!r}; "
            f"{MAX_HEADER_BYTES} and {MAX_TENSORS} are allowed",
            fix="send large data as tensors, not in the body",
        )
    frames: list[Buffer] = [head]
    for tensor, payload in zip(message.tensors, payloads, strict=True):
        if payload.has_frames:
            frames += _split(to_buffer(tensor), payload.frames)
    return frames


def _split(buffer: Buffer, count: int) -> list[Buffer]:
    if count == 1:
        return [buffer]
    view, size = memoryview(buffer), _part_bytes(len(buffer), count)
    return [view[i * size : (i + 1) * size] for i in range(count)]


def _part_bytes(size: int, count: int) -> int:
    """Bytes of every frame but the last, where `size` bytes go in `count` frames."""
    return -(-size // count)


def decode(
    frames: Sequence[Buffer], *, job: str, readers: Mapping[str, SharedTensorReader] | None = None
) -> tuple[Header, Message]:
    """Read the message in `frames`; its tensors lie over the frames' memory where that is writable and aligned.

    readers: by sender, what finds the tensors that lie in shared memory. MalformedError where the frames do not fit
    together; NetworkError where the peer is of another version or job.
    """
    header = _decode_header(frames, job)
    expected = sum(payload.frames for payload in header.payloads if payload.has_frames)
    if len(frames) - 1 != expected:
        raise MalformedError(
            "E504", f"{header.sender} sent {len(frames) - 1} tensor frames; the header says {expected}"
        )
    reader, tensor_frames = (readers or {}).get(header.sender), iter(frames[1:])
    tensors = tuple(
        _tensor_of_slot(payload, payload.slot, reader, header.sender)
        if payload.slot is not None
        else _tensor_of_frames(payload, tensor_frames, header.sender)
        for payload in header.payloads
    )
    message = Message(
        header.kind, header.step, header.micro, header.edge, header.body, tensors=tensors, sender=header.sender
    )
    return header, message


def _decode_header(frames: Sequence[Buffer], job: str) -> Header:
    if not frames:
        raise MalformedError("E504", "a message without frames arrived")
    size = len(frames[0])
    if size > MAX_HEADER_BYTES:
        raise MalformedError("E504", f"a header of {size} bytes arrived; {MAX_HEADER_BYTES} are allowed")
    try:
        header = _decoder.decode(frames[0])
        if header.version == WIRE_VERSION and header.job == job:
            return header
    except _UNREADABLE:
        pass
    # A header of another wire version has other fields, but for the first ones.
    origin = _parse(_origin, frames[0])
    if origin.version != WIRE_VERSION:
        raise NetworkError(
            "E505",
            f"peer {origin.sender!r} speaks wire version {origin.version}, this is {WIRE_VERSION}",
            fix="install the same version of cutset on every machine",
        )
    if origin.job != job:
        raise NetworkError(
            "E506",
            f"peer {origin.sender!r} belongs to job {origin.job!r}, this is {job!r}",
            fix="end the other job, or give each its own directory",
        )
    return _parse(_decoder, frames[0])


def _parse(decoder: "msgspec.msgpack.Decoder[_T]", frame: Buffer) -> _T:
    try:
        return decoder.decode(frame)
    except _UNREADABLE as error:
        raise MalformedError("E504", f"a header arrived that cannot be read: {error}") from error


def _dtype_name(tensor: Tensor) -> str:
    name = _NAMES.get(tensor.dtype)
    if name is None or tensor.layout is not torch.strided or not tensor.is_cpu:
        raise ValueError(
            f"cannot send a {tensor.layout} tensor of {tensor.dtype} on {tensor.device}: dense CPU tensors only"
        )
    return name


def to_buffer(tensor: Tensor) -> Buffer:
    """The bytes of a tensor in row-major order, over its own memory where it is contiguous."""
    if tensor.numel() == 0:
        return b""
    is_plain = tensor.is_contiguous() and not tensor.requires_grad and not tensor.is_neg() and tensor.numel() > 1
    if is_plain and tensor.dtype in NUMPY_DTYPES:
        return tensor.numpy().data.cast("B")  # what the following comes to, in a third of the time
    flat = tensor.detach().resolve_conj().resolve_neg().contiguous()
    flat = flat.as_strided((flat.numel(),), (1,))  # view(-1) would keep the odd stride of a single element
    return flat.view(torch.uint8).numpy().data


def _tensor_of_slot(payload: Payload, slot: SharedSlot, reader: SharedTensorReader | None, sender: str) -> Tensor:
    _check_payload(payload, sender)
    if reader is None:
        raise MalformedError("E504", f"{sender} sent a tensor in memory that is not shared with it")
    return reader.tensor(slot, payload.dtype, payload.shape)


def _check_payload(payload: Payload, sender: str) -> torch.dtype:
    """Check that such a tensor is possible. Returns its dtype; MalformedError where it is not."""
    name, shape, count = payload.dtype, payload.shape, payload.frames
    dtype = DTYPES.get(name)
    if dtype is None:
        raise MalformedError("E504", f"{sender} sent a tensor of unknown dtype {name!r}")
    if len(shape) > MAX_DIMENSIONS:
        raise MalformedError("E504", f"{sender} sent a tensor of {len(shape)} dimensions")
    if min(shape, default=0) < 0 or math.prod(filter(None, shape)) >= 1 << 62:
        raise MalformedError("E504", f"{sender} sent a tensor of impossible shape {shape}")
    size = math.prod(shape) * dtype.itemsize
    if count != 1 and (count < 1 or not payload.has_frames or (count - 1) * _part_bytes(size, count) >= size):
        raise MalformedError("E504", f"{sender} sent a {name} tensor of shape {shape} in {count} frames")
    return dtype


def _tensor_of_frames(payload: Payload, frames: Iterator[Buffer], sender: str) -> Tensor:
    dtype, name, shape = _check_payload(payload, sender), payload.dtype, payload.shape
    size = math.prod(shape) * dtype.itemsize
    own: list[Buffer] = list(islice(frames, payload.frames)) if payload.content is None else [payload.content]
    part, sizes = _part_bytes(size, payload.frames), [len(frame) for frame in own]
    if sum(sizes) != size or any(frame_size != part for frame_size in sizes[:-1]):
        raise MalformedError(
            "E504",
            f"{sender} sent {' + '.join(map(str, sizes[:4]))} bytes for a {name} tensor of shape {shape}, which has "
            f"{size}" + (f" in {len(own)} frames" if len(own) > 1 else ""),
        )
    if size == 0:
        return torch.empty(shape, dtype=dtype)
    flat = _view_frame(own[0], dtype) if len(own) == 1 else _join_frames(own, size).view(dtype)
    return flat.view(shape)


def _join_frames(frames: Sequence[Buffer], size: int) -> Tensor:
    """Copy the bytes of several frames into one piece of memory."""
    whole = torch.empty(size, dtype=torch.uint8)
    into, offset = whole.numpy().data, 0
    for frame in frames:
        into[offset : offset + len(frame)] = frame
        offset += len(frame)
    return whole


def _view_frame(frame: Buffer, dtype: torch.dtype) -> Tensor:
    """The frame's memory as a flat tensor; a copy where it is read-only or not aligned, as torch's kernels need it."""
    if memoryview(frame).readonly:
        frame = bytearray(frame)
    flat = torch.frombuffer(frame, dtype=dtype)
    return flat if flat.data_ptr() % dtype.itemsize == 0 else torch.frombuffer(bytearray(frame), dtype=dtype)
