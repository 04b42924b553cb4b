"""What is encoded is decoded, whatever the tensors; what does not fit together is refused with the culprit's name."""

import math
from typing import Any

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cutset.errors import NetworkError
from cutset.runtime.channel import message as wire
from cutset.runtime.channel.message import DTYPES, WIRE_VERSION, MalformedError, Message, decode, encode

torch.set_num_threads(1)

shapes = st.lists(st.integers(0, 5), max_size=4).map(tuple)
bodies = st.dictionaries(
    st.text(max_size=5),
    st.recursive(
        st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
        max_leaves=5,
    ),
    max_size=3,
)


def filled(name: str, shape: tuple[int, ...], seed: int) -> torch.Tensor:
    """A tensor of any dtype from random bytes, except that a bool is only ever 0 or 1."""
    dtype = DTYPES[name]
    generator = torch.Generator().manual_seed(seed)
    high = 2 if dtype is torch.bool else 256
    raw = torch.randint(0, high, (math.prod(shape) * dtype.itemsize,), dtype=torch.uint8, generator=generator)
    return raw.view(dtype).view(shape)


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    tensor = filled(draw(st.sampled_from(sorted(DTYPES))), draw(shapes), draw(st.integers(0, 9)))
    match draw(st.sampled_from(["plain", "transposed", "strided", "expanded"])):
        case "transposed":
            return tensor.permute(tuple(reversed(range(tensor.dim()))))
        case "strided" if tensor.dim():
            return tensor[..., ::2]
        case "expanded":
            return tensor.expand(3, *tensor.shape)
    return tensor


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal to the bit, NaN included."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return a.numel() == 0 or torch.equal(raw_bytes(a), raw_bytes(b))


def raw_bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.clone(memory_format=torch.contiguous_format).view(-1).view(torch.uint8)


def sent(message: Message, *, inline_bytes: int = 0) -> list[Any]:
    return encode(message, job="job", sender="worker 1", sequence=7, inline_bytes=inline_bytes)


def one_frame(**changes: Any) -> list[Any]:
    """The frames of a message with one float32 tensor of shape [2, 3], after changes to its header."""
    frames = sent(Message("forward", tensors=(torch.zeros(2, 3),)))
    header = msgspec.msgpack.decode(frames[0], type=wire.Header)
    fields = {name: getattr(header, name) for name in header.__struct_fields__} | changes
    return [msgspec.msgpack.encode(list(fields.values())), *frames[1:]]


def divided(*sizes: int, of: int = 0) -> list[Any]:
    """The same in frames of so many bytes. of: as many as the header says, if not as many as there are."""
    payload = ("float32", [2, 3], None, of or len(sizes))
    return [one_frame(payloads=[payload])[0], *(bytes(size) for size in sizes)]


@settings(max_examples=150, deadline=None)
@given(st.lists(tensors(), max_size=3), st.integers(1, 200))
def test_what_is_divided_is_put_together(given_tensors: list[torch.Tensor], frame_bytes: int) -> None:
    message = Message("forward", tensors=tuple(given_tensors))
    frames = encode(message, job="job", sender="worker 1", sequence=7, frame_bytes=frame_bytes, inline_bytes=0)
    assert all(len(frame) <= frame_bytes for frame in frames[1:])
    assert len(frames) == 1 + sum(math.ceil(t.nbytes / frame_bytes) for t in given_tensors)
    got = decode([bytes(frame) for frame in frames], job="job")[1]
    assert all(same(a, b) for a, b in zip(given_tensors, got.tensors, strict=True))


@pytest.mark.parametrize("more", [-1, 0, 1])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_frames_are_as_few_as_the_limit_allows_and_over_the_tensors_memory(count: int, more: int) -> None:
    tensor = torch.arange(count * 64 + more, dtype=torch.int64).to(torch.uint8)
    message = Message("x", tensors=(tensor,))
    _, *frames = encode(message, job="job", sender="a", sequence=0, frame_bytes=64, inline_bytes=0)
    assert len(frames) == count + (more > 0)
    tensor.fill_(7)
    assert set(b"".join(frames)) == {7}


@settings(max_examples=150, deadline=None)
@given(st.lists(tensors(), max_size=3), bodies, st.integers(0, 2**40))
def test_what_is_encoded_is_decoded(given_tensors: list[torch.Tensor], body: dict[str, Any], step: int) -> None:
    message = Message("forward", step, 2, 3, body, tuple(given_tensors))
    header, got = decode([bytes(frame) for frame in sent(message)], job="job")
    assert (header.sequence, got.sender) == (7, "worker 1")
    assert (got.kind, got.step, got.micro, got.edge, got.body) == ("forward", step, 2, 3, body)
    assert all(same(a, b) for a, b in zip(given_tensors, got.tensors, strict=True))


@settings(max_examples=150, deadline=None)
@given(st.lists(tensors(), max_size=3), st.integers(0, 300))
def test_what_lies_in_the_header_is_decoded(given_tensors: list[torch.Tensor], inline_bytes: int) -> None:
    frames = sent(Message("forward", tensors=tuple(given_tensors)), inline_bytes=inline_bytes)
    got = decode([bytes(frame) for frame in frames], job="job")[1]
    assert all(same(a, b) for a, b in zip(given_tensors, got.tensors, strict=True))


def test_tensors_lie_in_the_header_as_long_as_there_is_room() -> None:
    sizes = [100, 200, 101, 100, 0]
    frames = sent(Message("x", tensors=tuple(torch.ones(size, dtype=torch.uint8) for size in sizes)), inline_bytes=300)
    assert list(map(len, frames[1:])) == [101, 100]
    got = decode(frames, job="job")[1].tensors
    assert [tensor.numel() for tensor in got] == sizes
    got[0].fill_(2)  # may be written, as any tensor over a frame


@pytest.mark.parametrize("name", sorted(DTYPES))
def test_every_dtype_survives(name: str) -> None:
    tensor = filled(name, (3, 5), 0)
    assert same(tensor, decode([bytes(f) for f in sent(Message("x", tensors=(tensor,)))], job="job")[1].tensors[0])


def test_nothing_is_copied_either_way() -> None:
    tensor = torch.arange(1000.0)
    frames = sent(Message("x", tensors=(tensor,)))
    tensor[0] = 5.0
    got = decode(frames, job="job")[1].tensors[0]
    assert got[0] == 5.0
    assert got.data_ptr() == tensor.data_ptr()


def test_the_frames_keep_the_tensor_alive() -> None:
    frames = sent(Message("x", tensors=(torch.full((1 << 16,), 3.0),)))
    torch.full((1 << 16,), 4.0)
    assert decode(frames, job="job")[1].tensors[0].sum() == 3.0 * (1 << 16)


def test_a_tensor_from_an_unaligned_frame_is_aligned() -> None:
    padded = bytearray(1 + 8 * 10)
    padded[1:] = bytes(torch.arange(10).numpy())
    frames = sent(Message("x", tensors=(torch.arange(10),)))
    got = decode([frames[0], memoryview(padded)[1:]], job="job")[1].tensors[0]
    assert torch.equal(got, torch.arange(10))
    assert got.data_ptr() % 8 == 0


def test_a_received_tensor_may_be_written() -> None:
    got = decode([bytes(f) for f in sent(Message("x", tensors=(torch.zeros(3),)))], job="job")[1].tensors[0]
    got += 1
    assert got.sum() == 3


def test_requires_grad_conjugates_and_negatives_are_sent_as_values() -> None:
    weight = torch.ones(3, requires_grad=True)
    conjugate = torch.tensor([1 + 2j, 3 - 4j]).conj()
    negative = torch.tensor([1 + 2j]).conj().imag
    frames = sent(Message("x", tensors=(weight * 2, conjugate, negative)))
    a, b, c = decode([bytes(f) for f in frames], job="job")[1].tensors
    assert not a.requires_grad
    assert torch.equal(a, torch.full((3,), 2.0))
    assert torch.equal(b, torch.tensor([1 - 2j, 3 + 4j]))
    assert torch.equal(c, torch.tensor([-2.0]))


def test_bytes_counts_the_tensors() -> None:
    assert Message("x", tensors=(torch.zeros(3), torch.zeros(2, dtype=torch.bfloat16))).bytes == 16


@pytest.mark.parametrize(
    "tensor",
    [
        torch.zeros(3, device="meta"),
        torch.eye(3).to_sparse(),
        torch.zeros(2, dtype=torch.uint8).view(torch.float4_e2m1fn_x2),
    ],
    ids=["meta", "sparse", "packed"],
)
def test_a_tensor_without_plain_memory_is_refused(tensor: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="dense CPU tensors only"):
        sent(Message("x", tensors=(tensor,)))


def test_a_body_that_is_not_plain_is_refused() -> None:
    with pytest.raises(TypeError, match="Generator"):
        sent(Message("x", body={"rng": torch.Generator()}))


def test_another_wire_version_is_named() -> None:
    newer = msgspec.msgpack.encode([9, "job", "worker 9", {"all": "new"}])
    with pytest.raises(NetworkError, match="peer 'worker 9' speaks wire version 9, this is 6") as caught:
        decode([newer], job="job")
    assert not isinstance(caught.value, MalformedError)
    assert caught.value.code == "E505"


def test_another_job_is_named() -> None:
    with pytest.raises(NetworkError, match="'worker 1' belongs to job 'job', this is 'mine'"):
        decode(sent(Message("x")), job="mine")


@pytest.mark.parametrize(
    ("frames", "said"),
    [
        ([], "without frames"),
        ([b""], "cannot be read"),
        ([b"\xc1"], "cannot be read"),
        ([msgspec.msgpack.encode("hello")], "cannot be read"),
        ([msgspec.msgpack.encode([WIRE_VERSION, "job", "worker 1"])], "cannot be read"),
        ([b"\x93\x04\xa3job\xa2\xff\xfe"], "cannot be read"),
        ([b"\x93\x04\xa3job\xa1x" + b"\x91" * 100_000], "cannot be read"),
        (one_frame(step="three"), "cannot be read"),
        (one_frame(payloads=[]), "sent 1 tensor frames; the header says 0"),
        (one_frame(payloads=[("float32", [2, 3])] * 2), "sent 1 tensor frames; the header says 2"),
        (one_frame(payloads=[("float32", [2, 4])]), "sent 24 bytes for a float32 tensor of shape [2, 4], which has 32"),
        (one_frame(payloads=[("float64", [2, 3])]), "which has 48"),
        (one_frame(payloads=[("object", [2, 3])]), "unknown dtype 'object'"),
        (one_frame(payloads=[("float32", [-2, -3])]), "impossible shape [-2, -3]"),
        (one_frame(payloads=[("float32", [0, 2**40, 2**40])]), "impossible shape"),
        ([bytes(wire.MAX_HEADER_BYTES + 1)], "header of 16777217 bytes"),
        (one_frame(payloads=[("float32", [2, 3], None, 2)]), "sent 1 tensor frames; the header says 2"),
        (one_frame(payloads=[("float32", [2, 3], None, 0), ("float32", [2, 3], None, 1)]), "in 0 frames"),
        (one_frame(payloads=[("float32", [2, 3], None, -1), ("float32", [2, 3], None, 2)]), "in -1 frames"),
        (one_frame(payloads=[("float32", [2, 3], (0, 0), 2), ("float32", [2, 3])]), "in 2 frames"),
        (divided(8, 8, 8, of=2), "the header says 2"),
        (divided(12, 11), "sent 12 + 11 bytes for a float32 tensor of shape [2, 3], which has 24 in 2 frames"),
        (divided(11, 13), "sent 11 + 13 bytes"),
        (divided(0, 24), "sent 0 + 24 bytes"),
        (divided(*[5] * 4, 4, 0), "sent 5 + 5 + 5 + 5 bytes"),
        (divided(*[1] * 24, 0), "in 25 frames"),
        (one_frame(payloads=[("float32", [2, 3], None, 1, bytes(24))]), "sent 1 tensor frames; the header says 0"),
        (one_frame(payloads=[("float32", [2, 3], None, 1, bytes(23)), ("float32", [2, 3])]), "sent 23 bytes"),
        (one_frame(payloads=[("float32", [2, 3], None, 2, bytes(24)), ("float32", [2, 3])]), "in 2 frames"),
        (one_frame(payloads=[("float32", [2, 3], (0, 0), 1, bytes(24)), ("float32", [2, 3])]), "not shared with it"),
        (one_frame(payloads=[("uint8", [0], None, 1, b"")] * (wire.MAX_TENSORS + 1)), "length <= 65536"),
    ],
)
def test_frames_that_do_not_fit_together_are_refused(frames: list[Any], said: str) -> None:
    with pytest.raises(MalformedError) as caught:
        decode(frames, job="job")
    assert said in caught.value.facts


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_a_damaged_message_is_refused_or_decoded_but_never_more(data: st.DataObject) -> None:
    frames = [bytearray(frame) for frame in sent(Message("x", tensors=(torch.zeros(2, 3),), body={"a": [1, "b"]}))]
    damaged = frames[data.draw(st.integers(0, 1))]
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    try:
        _, got = decode(frames, job="job")
    except NetworkError:
        return
    assert got.tensors[0].numel() * got.tensors[0].element_size() == 24


def test_a_header_that_is_too_large_is_not_sent() -> None:
    with pytest.raises(NetworkError, match=r"worker 1 has a header of \d+ bytes, of 0 tensors, in a message 'x'"):
        sent(Message("x", body={"much": "a" * wire.MAX_HEADER_BYTES}))
    with pytest.raises(NetworkError, match=r"of 65537 tensors, in a message 'x'"):
        sent(Message("x", tensors=(torch.zeros(0),) * (wire.MAX_TENSORS + 1)))
