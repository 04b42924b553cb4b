"""`open_hosts`: opens the agents of many machines at once, and says of each that does not answer why.

Machines that were lost and are there again, or that came later, are opened when somebody asks for more.
"""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

from ...errors import UsageError
from ..hosts.remote_host import AgentStream, RemoteHost

Streams = Mapping[str, Callable[[], AgentStream]]
FindStreams = Callable[[], Streams]
_AT_ONCE = 32  # sshd refuses some of very many logins that are under way


class Opened(dict[str, RemoteHost | UsageError]):
    """By the name of each machine its host, or why it cannot be used; in the order of the engine.

    find: returns what leads to the agents, now and whenever somebody asks for more machines. launcher: the address of
    this machine, where agents do not know it themselves. can_grow: whether asking for more is of any use.
    """

    def __init__(self, find: FindStreams, *, launcher: str = "", can_grow: bool = True) -> None:
        super().__init__()
        self._find, self._launcher, self.can_grow = find, launcher, can_grow
        self._hosts = ExitStack()
        self._lock, self._closing = threading.Lock(), threading.Event()

    def open_more(self) -> list[RemoteHost]:
        """Open the hosts that are not open, or are lost, and return those that answer.

        UsageError where the engine cannot tell which there are.
        """
        streams = {name: stream for name, stream in self._find().items() if not self._is_open(name)}
        pool = ThreadPoolExecutor(min(_AT_ONCE, max(1, len(streams))), thread_name_prefix="cutset-open")
        try:
            found = dict(zip(streams, pool.map(self._open_one, streams, streams.values()), strict=True))
        finally:
            pool.shutdown(wait=False, cancel_futures=True)  # the user may not want to wait for those to come
        self.update(found)
        return [host for host in found.values() if isinstance(host, RemoteHost)]

    def close(self) -> None:
        """End all hosts, and those that are still to come as soon as they do."""
        with self._lock:
            self._closing.set()
        self._hosts.close()

    def _is_open(self, name: str) -> bool:
        host = self.get(name)
        return isinstance(host, RemoteHost) and not host.lost

    def _open_one(self, name: str, stream: Callable[[], AgentStream]) -> RemoteHost | UsageError:
        try:
            host = RemoteHost(name, stream(), launcher=self._launcher)
        except UsageError as error:
            return error
        with self._lock:
            if not self._closing.is_set():
                return self._hosts.enter_context(host)
        host.close()
        return host

    def __repr__(self) -> str:
        return f"Opened({dict(self)})"


@contextmanager
def open_hosts(find: FindStreams, *, launcher: str = "", can_grow: bool = True) -> Iterator[Opened]:
    """Yield, by name, the host to whose agent each stream leads, or why there is none. All end with the context.

    The arguments are those of `Opened`.
    """
    opened = Opened(find, launcher=launcher, can_grow=can_grow)
    try:
        opened.open_more()
        yield opened
    finally:
        opened.close()


def check_enough(engine: str, where: str, machines: Sequence[object], least: int, *, fix: str) -> None:
    """Raise UsageError where there are fewer machines than a plan names. where: they are; fix: how to have more."""
    if len(machines) < least:
        facts = f"--on {engine}: {where} has {len(machines)} of the {least} machines that the model is cut over"
        raise UsageError("E297", facts, fix=f"{fix}, or --machines {max(1, len(machines))}")
