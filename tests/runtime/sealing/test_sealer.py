"""What a `Sealer` seals its `Opener` opens, in order; nothing else opens."""

from collections.abc import Callable
from pathlib import Path

import pytest

from cutset.runtime.sealing import sealer
from cutset.runtime.sealing.sealer import (
    AES,
    CHACHA,
    CHUNK_BYTES,
    TAG_BYTES,
    Buffer,
    ForgedError,
    Opener,
    Sealer,
    choose_cipher,
    list_ciphers,
    make_key,
)

KEY, NAMES = make_key(), b"job\0a\0b\0"
Chunks = list[bytes]


def ends(cipher: str = AES) -> tuple[Sealer, Opener]:
    return Sealer(cipher, KEY, NAMES), Opener(cipher, KEY, NAMES)


def seal(end: Sealer, *frames: bytes) -> Chunks:
    return [bytes(chunk) for chunk in end.seal(frames)]


def opened(end: Opener, chunks: list[Buffer] | Chunks) -> list[bytes]:
    return [bytes(frame) for frame in end.open(chunks)]


@pytest.mark.parametrize("cipher", [AES, CHACHA])
@pytest.mark.parametrize("size", [0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES])
def test_frames_come_back_as_they_were(cipher: str, size: int) -> None:
    one, other = ends(cipher)
    content = bytes(range(256)) * (size // 256) + bytes(size % 256)
    for frames in ([b"head"], [b"head", content], [content, b"", content]):
        assert opened(other, one.seal(frames)) == frames


def test_nothing_of_the_content_shows_and_equal_messages_look_different() -> None:
    one, _ = ends()
    first, second = (seal(one, b"secret" * 100)[0] for _ in range(2))
    assert b"secret" not in first
    assert first != second
    assert len(first) == 600 + TAG_BYTES


def flip(chunks: Chunks) -> Chunks:
    return [*chunks[:-1], chunks[-1][:-1] + bytes([chunks[-1][-1] ^ 1])]


FORGERIES: dict[str, Callable[[Chunks, Chunks], Chunks]] = {
    "one bit": lambda first, _: flip(first),
    "one bit of the head": lambda first, _: [*flip(first[:1]), *first[1:]],
    "cut short": lambda first, _: [*first[:-1], first[-1][:-1]],
    "shorter than a tag": lambda first, _: [*first[:-1], b"x"],
    "one chunk is missing": lambda first, _: [first[0], *first[2:]],
    "the last is missing": lambda first, _: first[:-1],
    "two are swapped": lambda first, _: [first[0], first[2], first[1], *first[3:]],
    "one comes twice": lambda first, _: [*first[:2], *first[1:]],
    "the next message comes first": lambda _, second: second,
    "two messages as one": lambda first, second: [*first, *second],
    "nothing": lambda _first, _second: [],
    "a chunk that is too large": lambda first, _: [first[0], first[1] + b"x", *first[2:]],
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_what_was_changed_on_the_way_does_not_open(forgery: str) -> None:
    one, other = ends()
    first, second = seal(one, b"head", b"x" * (2 * CHUNK_BYTES + 5)), seal(one, b"head")
    with pytest.raises(ForgedError) as caught:
        other.open(FORGERIES[forgery](first, second))
    assert caught.value.code == "E521"


def test_what_was_sent_before_does_not_open_again() -> None:
    one, other = ends()
    first = seal(one, b"push 1")
    assert opened(other, first) == [b"push 1"]
    with pytest.raises(ForgedError, match="chunk 1 of a sealed connection was altered, repeated"):
        other.open(first)


@pytest.mark.parametrize(
    ("key", "names"),
    [(make_key(), NAMES), (KEY, b"job\0b\0a\0"), (KEY, b"job 2\0a\0b\0")],
    ids=("another key", "the other way", "another job"),
)
def test_only_the_key_and_the_names_of_its_connection_open_it(key: bytes, names: bytes) -> None:
    one, _ = ends()
    with pytest.raises(ForgedError):
        Opener(AES, key, names).open(seal(one, b"head"))


def test_aes_is_chosen_where_both_processors_have_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    cpu = tmp_path / "cpuinfo"
    monkeypatch.setattr(sealer, "_CPU", cpu)
    for text, ciphers in (("flags : fpu aes avx", (AES, CHACHA)), ("Features : fp asimd", (CHACHA,))):
        cpu.write_text(text)
        list_ciphers.cache_clear()
        assert list_ciphers() == ciphers
        assert choose_cipher([AES, CHACHA]) == ciphers[0]
        assert choose_cipher([CHACHA]) == CHACHA
        assert choose_cipher(["rot13"]) is None
    list_ciphers.cache_clear()
