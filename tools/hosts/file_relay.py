"""`FileRelay`: what roles write on other hosts comes into the run folder before the supervisor hears of it.

A role names in a message the files that it has "written", by their paths in the folder of the run. The message is held
back, and all that the role says after it, until they are here; then the host is rid of them.
"""

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any

from ...errors import NetworkError
from ...runtime.channel.message import Message
from ...runtime.hosts.remote_host import RemoteHost
from .run_hosts import RunHosts

FETCH_S = 3600.0  # for a file; a host that is lost ends it long before
_AT_ONCE = 4
WRITTEN = "written"


class FileRelay:
    """Brings the files of one run, while entered."""

    def __init__(self, hosts: RunHosts, folder: Path) -> None:
        self._hosts, self._folder = hosts, folder
        self._threads = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="cutset-files")
        self._held: dict[str, deque[tuple[Message, Future[None] | None]]] = {}

    def add(self, message: Message) -> None:
        """Take a message of a role."""
        host, paths = self._hosts.host_of(message.sender), _find_written(message)
        fetched = self._threads.submit(self._fetch, host, paths) if isinstance(host, RemoteHost) and paths else None
        self._held.setdefault(message.sender, deque()).append((message, fetched))

    def take_ready(self) -> Iterator[Message]:
        """Yield the messages whose files are here, those of each role in their order.

        Raises NetworkError where files of the end of a run cannot come. Other files are missed, as if the role could
        not have written them; those of a lost host are nobody's any more.
        """
        for sender in list(self._held):
            queue = self._held[sender]
            while queue and (queue[0][1] is None or queue[0][1].done()):
                message, fetched = queue.popleft()
                error = None if fetched is None else fetched.exception()
                if error is None:
                    yield message
                elif not isinstance(error, NetworkError | OSError) or not message.kind.endswith("_saved"):
                    raise error
                elif not self._is_lost(sender):
                    yield Message("write_failed", sender=sender, body={"reason": str(error)})
            if not queue:
                del self._held[sender]

    def take_rest(self) -> Iterator[Message]:
        """Wait for all files that are on their way, and yield the messages that are left."""
        for queue in list(self._held.values()):
            for _, fetched in list(queue):
                if fetched is not None:
                    fetched.exception()
        yield from self.take_ready()

    def _fetch(self, host: RemoteHost, paths: list[str]) -> None:
        for path in paths:
            host.fetch_file(path, self._folder / path, timeout_s=FETCH_S)
            host.remove_file(path)

    def _is_lost(self, sender: str) -> bool:
        host = self._hosts.host_of(sender)
        return isinstance(host, RemoteHost) and bool(host.lost)

    def __enter__(self) -> "FileRelay":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._threads.shutdown(wait=True, cancel_futures=True)

    def __repr__(self) -> str:
        return f"FileRelay({sum(map(len, self._held.values()))} held)"


def _find_written(message: Message) -> list[str]:
    value: Any = message.body.get("value") if message.kind == "finished" else message.body
    return list(value.get(WRITTEN, [])) if isinstance(value, dict) else []
