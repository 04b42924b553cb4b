"""`FileRelay`: what roles write on other hosts comes into the run folder before the supervisor hears of it.

A role names in a message the files that it has "written", or "replaced", by their paths in the folder of the run. The
message is held back, and all that the role says after it, until they are here; the host is then rid of those written.
"""

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import TracebackType

import msgspec

from ...errors import NetworkError
from ...ps.checkpoint.write_checkpoint import WAIT_FOR_ROOM_S, write_once_there_is_room
from ...runtime.channel.message import Message
from ...runtime.hosts.remote_host import RemoteHost
from .run_hosts import RunHosts

FETCH_S = 3600.0  # for a file; a host that is lost ends it long before
WRITTEN, REPLACED = "written", "replaced"
FINAL = ("final_file", "state_file")  # without which a run has no result
_AT_ONCE = 4


@dataclass(frozen=True)
class _Held:
    message: Message
    fetched: Future[None] | None = None  # None before its turn has come


class FileRelay:
    """Brings the files of one run, while entered. on_notice: called with a sentence where this disk is full."""

    def __init__(
        self, hosts: RunHosts, folder: Path, *, on_notice: Callable[[str], object] = lambda words: None
    ) -> None:
        self._hosts, self._folder, self._on_notice = hosts, folder, on_notice
        self._threads = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="cutset-files")
        self._held: dict[str, deque[_Held]] = {}

    def add(self, message: Message) -> None:
        """Take a message of a role."""
        self._held.setdefault(message.sender, deque()).append(_Held(message))

    def take_ready(self) -> Iterator[Message]:
        """Yield the messages whose files are here, those of each role in their order.

        What could not come was not saved: its message is "write_failed"; that which is to be confirmed follows, with
        the "failure". Raises NetworkError or OSError where a file without which a run has no result cannot come. What a
        lost host has said of its files is nobody's any more.
        """
        for sender in list(self._held):
            queue = self._held[sender]
            while queue and self._is_here(queue):
                held = queue.popleft()
                error = None if held.fetched is None else held.fetched.exception()
                yield from [held.message] if error is None else self._describe_failure(held.message, error)
            if not queue:
                del self._held[sender]

    def take_rest(self) -> Iterator[Message]:
        """Wait for all files that are on their way, and yield the messages that are left."""
        while self._held:
            for queue in self._held.values():
                fetched = queue[0].fetched
                if fetched is not None:
                    fetched.exception()
            yield from self.take_ready()

    def _is_here(self, queue: deque[_Held]) -> bool:
        """Return whether what the first message names is here; begin to bring it if nobody does."""
        held, host = queue[0], self._hosts.host_of(queue[0].message.sender)
        if held.fetched is not None:
            return held.fetched.done()
        files = [path for key in (WRITTEN, REPLACED) for path in held.message.body.get(key, ())]
        if not files or not isinstance(host, RemoteHost):
            return True
        queue[0] = replace(held, fetched=self._threads.submit(self._fetch, host, held.message))
        return False

    def _fetch(self, host: RemoteHost, message: Message) -> None:
        for path in (*message.body.get(WRITTEN, ()), *message.body.get(REPLACED, ())):
            bring = partial(host.fetch_file, path, self._folder / path, timeout_s=FETCH_S)
            if message.kind in FINAL:
                write_once_there_is_room(bring, partial(self._report_wait, path))
            else:
                bring()
        for path in message.body.get(WRITTEN, ()):
            host.remove_file(path)

    def _report_wait(self, path: str, reason: str) -> None:
        self._on_notice(
            f"the launcher waits to copy {path}: {reason}; make room within {WAIT_FOR_ROOM_S / 60:g} minutes"
        )

    def _describe_failure(self, message: Message, error: BaseException) -> Iterator[Message]:
        host = self._hosts.host_of(message.sender)
        if isinstance(host, RemoteHost) and host.lost:
            return
        if message.kind in FINAL or not isinstance(error, NetworkError | OSError):
            raise error
        yield Message("write_failed", sender=message.sender, body={"reason": str(error)})
        if message.body.get("confirm"):
            yield msgspec.structs.replace(message, body=message.body | {"failure": str(error)})

    def __enter__(self) -> "FileRelay":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._threads.shutdown(wait=True, cancel_futures=True)

    def __repr__(self) -> str:
        return f"FileRelay({sum(map(len, self._held.values()))} held)"
