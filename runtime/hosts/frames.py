"""What a launcher and the agent of another machine tell each other over one stream of bytes, such as that of ssh.

A frame is msgpack behind its length. Processes have numbers, since names of roles may come again in another job.
"""

import os
from collections import deque
from collections.abc import Iterator

import msgspec

MAX_FRAME_BYTES = 1 << 26
PIECE_BYTES = 1 << 18  # of a file in one frame, so that other frames need not wait long
_LENGTH_BYTES = 4
_READ_BYTES = 1 << 20


class Greeting(msgspec.Struct, frozen=True, tag=True):
    """The first frame of a launcher, and its address if it knows it. versions: of what both ends must have alike."""

    versions: dict[str, str]
    launcher: str = ""


class StartRole(msgspec.Struct, frozen=True, tag=True):
    """Start a process. module: what the role will import."""

    process: int
    name: str
    threads: int
    module: str


class Prepare(msgspec.Struct, frozen=True, tag=True):
    """Do ahead what starting a role with so many threads, which imports this module, takes most time for."""

    threads: int
    module: str


class AssignRole(msgspec.Struct, frozen=True, tag=True):
    """Hand a process its assignment: msgpack of an `Assignment` without a secret key, which the agent adds."""

    process: int
    assignment: bytes


class SignalRole(msgspec.Struct, frozen=True, tag=True):
    """Send a signal to a process and what it has started."""

    process: int
    number: int


class HangUp(msgspec.Struct, frozen=True, tag=True):
    """Close the pipe to a process, at which it ends."""

    process: int


class ReleaseRole(msgspec.Struct, frozen=True, tag=True):
    """Kill a process, if it still runs, and forget it."""

    process: int


class FilePiece(msgspec.Struct, frozen=True, tag=True):
    """A piece of a file, whose path is relative to the agent's folder. last: whether the file is complete then."""

    path: str
    offset: int
    data: bytes
    last: bool


class GetFile(msgspec.Struct, frozen=True, tag=True):
    """Send a file of the agent's folder in pieces."""

    path: str


class RemoveFile(msgspec.Struct, frozen=True, tag=True):
    """Remove a file of the agent's folder, if it is there."""

    path: str


class FileFailed(msgspec.Struct, frozen=True, tag=True):
    """A file could not be written or read."""

    path: str
    reason: str


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The first frame of an agent.

    public: the key of its roles. memory_bytes: of the machine. folder: its own; free_bytes: on that disk. time_s: of
    the machine's clock, since 1970. address, launcher: of this machine and of the launcher's, as the way between them
    has shown them; "" where it does not.
    """

    public: str
    versions: dict[str, str]
    cores: int
    memory_bytes: int
    folder: str
    free_bytes: int
    time_s: float
    address: str = ""
    launcher: str = ""


class RoleStarted(msgspec.Struct, frozen=True, tag=True):
    """A process has begun. pid: its number on its machine."""

    process: int
    pid: int


class RoleOutput(msgspec.Struct, frozen=True, tag=True):
    """What a process has printed."""

    process: int
    data: bytes


class RoleEnded(msgspec.Struct, frozen=True, tag=True):
    """A process has ended. code: -9 for SIGKILL; reason: why it could not be started, else ""."""

    process: int
    code: int
    reason: str


class Alive(msgspec.Struct, frozen=True, tag=True):
    """The other end is there; sent once a second both ways."""


Frame = (
    Greeting
    | StartRole
    | Prepare
    | AssignRole
    | SignalRole
    | HangUp
    | ReleaseRole
    | FilePiece
    | GetFile
    | RemoveFile
    | FileFailed
    | Ready
    | RoleStarted
    | RoleOutput
    | RoleEnded
    | Alive
)
_decoder = msgspec.msgpack.Decoder(Frame)


class StreamEnd(Exception):  # noqa: N818, it is no error where the other end has done its work
    """The other end of a stream has ended, or what comes is not of it."""


class FrameStream:
    """Reads frames from one descriptor and writes them to another, neither of which blocks."""

    def __init__(self, reading: int, writing: int) -> None:
        self.reading, self.writing = reading, writing
        os.set_blocking(reading, False)
        os.set_blocking(writing, False)
        self._arrived = bytearray()
        self._leaving = deque[memoryview]()

    @property
    def has_unsent(self) -> bool:
        """Whether something waits for the other end to read."""
        return bool(self._leaving)

    def send(self, frame: Frame) -> None:
        """Queue a frame; `flush` sends it."""
        data = msgspec.msgpack.encode(frame)
        self._leaving.append(memoryview(len(data).to_bytes(_LENGTH_BYTES, "big") + data))

    def flush(self) -> None:
        """Write what can be written without waiting. Raises StreamEnd."""
        try:
            while self._leaving:
                written = os.write(self.writing, self._leaving[0])
                rest = self._leaving.popleft()[written:]
                if rest:
                    self._leaving.appendleft(rest)
        except BlockingIOError:
            return
        except OSError as error:
            raise StreamEnd(str(error)) from error

    def receive(self) -> Iterator[Frame]:
        """Yield the frames that have come. Raises StreamEnd at the end, and at what is no frame."""
        try:
            news = os.read(self.reading, _READ_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            raise StreamEnd(str(error)) from error
        if not news:
            raise StreamEnd("it has closed the stream")
        self._arrived += news
        while len(self._arrived) >= _LENGTH_BYTES:
            end = _LENGTH_BYTES + int.from_bytes(self._arrived[:_LENGTH_BYTES], "big")
            if end > MAX_FRAME_BYTES:
                raise StreamEnd(f"what comes is no frame: {bytes(self._arrived[:80])!r}")
            if len(self._arrived) < end:
                return
            data = bytes(self._arrived[_LENGTH_BYTES:end])
            del self._arrived[:end]
            try:
                yield _decoder.decode(data)
            except msgspec.DecodeError as error:
                raise StreamEnd(f"what comes is no frame: {error}") from error
