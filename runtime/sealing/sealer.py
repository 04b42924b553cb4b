"""`Sealer` and `Opener`: the two ends of a stream of messages that only they can read, and nobody else can change.

A frame is sealed in chunks by an authenticated cipher (RFC 5116). The nonce of a chunk is its number in the stream,
which the receiver counts for itself: one that was altered, repeated, left out or overtaken, or that comes from another
stream, does not open. What a chunk is the last of is authenticated with it, and so is who sends to whom. A key must be
used for one stream only.
"""

import secrets
from collections.abc import Collection, Sequence
from functools import cache
from pathlib import Path

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305

from ...errors import NetworkError

CHUNK_BYTES = 1 << 20  # each costs some microseconds, and larger ones leave the caches
KEY_BYTES, TAG_BYTES, NONCE_BYTES = 32, 16, 12
AES, CHACHA = "aes-256-gcm", "chacha20-poly1305"
_CIPHERS: dict[str, type[AESGCM | ChaCha20Poly1305]] = {AES: AESGCM, CHACHA: ChaCha20Poly1305}
_CHUNK, _END_OF_FRAME, _END_OF_MESSAGE = b"\0", b"\1", b"\2"
_CPU = Path("/proc/cpuinfo")

Buffer = bytes | bytearray | memoryview


def make_key() -> bytes:
    """Make a key for one stream."""
    return secrets.token_bytes(KEY_BYTES)


@cache
def list_ciphers() -> tuple[str, ...]:
    """Return the ciphers to use here, the best first: AES only where the processor has instructions for it."""
    try:
        words = set(_CPU.read_text(encoding="utf-8").split())
    except OSError:  # not Linux: it has some, as all that torch runs on but small boards
        return AES, CHACHA
    return (AES, CHACHA) if "aes" in words else (CHACHA,)


def choose_cipher(offered: Collection[str]) -> str | None:
    """Return the best of the ciphers that a peer offers; None if none of them is known."""
    return next((cipher for cipher in list_ciphers() if cipher in offered), None)


class ForgedError(NetworkError):
    """Raised for a frame that its sender has not sealed so, at this place of this connection."""


class Sealer:
    """Seals the messages of one connection. binding: what the receiver must know them by, besides the key."""

    def __init__(self, cipher: str, key: bytes, binding: bytes) -> None:
        self._cipher = _CIPHERS[cipher](key)
        self._binding = binding
        self._count = 0

    def seal(self, frames: Sequence[Buffer]) -> list[Buffer]:
        """Return the chunks of a message's frames: of CHUNK_BYTES each, but for the last of a frame, which is less."""
        chunks: list[Buffer] = []
        for number, frame in enumerate(frames, start=1):
            view, whole = memoryview(frame), len(frame) // CHUNK_BYTES
            for i in range(whole):
                chunks.append(self._seal(view[i * CHUNK_BYTES : (i + 1) * CHUNK_BYTES], _CHUNK))
            place = _END_OF_MESSAGE if number == len(frames) else _END_OF_FRAME
            chunks.append(self._seal(view[whole * CHUNK_BYTES :], place))
        return chunks

    def _seal(self, content: memoryview, place: bytes) -> Buffer:
        sealed = np.empty(len(content) + TAG_BYTES, np.uint8).data  # not zeroed first
        nonce = self._count.to_bytes(NONCE_BYTES, "big")
        self._count += 1
        self._cipher.encrypt_into(nonce, content, self._binding + place, sealed)
        return sealed


class Opener:
    """Opens what the `Sealer` with the same arguments has sealed, in the same order."""

    def __init__(self, cipher: str, key: bytes, binding: bytes) -> None:
        self._cipher = _CIPHERS[cipher](key)
        self._binding = binding
        self._count = 0

    def open(self, chunks: Sequence[Buffer]) -> list[Buffer]:
        """Return the frames of a message. ForgedError where a chunk is not the next one of this connection."""
        frames: list[Buffer] = []
        begin = 0
        for end, chunk in enumerate(chunks, start=1):
            if len(chunk) < CHUNK_BYTES + TAG_BYTES:
                frames.append(self._open_frame(chunks[begin:end], is_last=end == len(chunks)))
                begin = end
        if begin < len(chunks) or not chunks:
            raise ForgedError("E521", "a sealed message ends within a frame")
        return frames

    def _open_frame(self, chunks: Sequence[Buffer], *, is_last: bool) -> Buffer:
        sizes = [len(chunk) - TAG_BYTES for chunk in chunks]
        if sizes[-1] < 0 or max(sizes) > CHUNK_BYTES:
            raise ForgedError("E521", f"a sealed chunk of {max(map(len, chunks))} bytes arrived")
        frame, offset = np.empty(sum(sizes), np.uint8).data, 0
        for number, (chunk, size) in enumerate(zip(chunks, sizes, strict=True), start=1):
            place = _CHUNK if number < len(chunks) else _END_OF_MESSAGE if is_last else _END_OF_FRAME
            nonce = self._count.to_bytes(NONCE_BYTES, "big")
            try:
                self._cipher.decrypt_into(nonce, chunk, self._binding + place, frame[offset : offset + size])
            except InvalidTag as error:
                facts = f"chunk {self._count} of a sealed connection was altered, repeated, or is not the next one"
                raise ForgedError("E521", facts) from error
            self._count += 1
            offset += size
        return frame
