"""`open_hosts`: opens the agents of many machines at once, and says of each that does not answer why."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

from ...errors import UsageError
from ..hosts.remote_host import AgentStream, RemoteHost

Opened = dict[str, RemoteHost | UsageError]
_AT_ONCE = 32  # sshd refuses some of very many logins that are under way


@contextmanager
def open_hosts(streams: Mapping[str, Callable[[], AgentStream]], *, launcher: str = "") -> Iterator[Opened]:
    """Yield, by name, the host to whose agent each stream leads, or why there is none. All end with the context.

    launcher: the address of this machine, where agents do not know it themselves.
    """
    with ExitStack() as stack:
        pool = ThreadPoolExecutor(min(_AT_ONCE, max(1, len(streams))), thread_name_prefix="cutset-open")
        lock, interrupted = threading.Lock(), threading.Event()

        def open_one(name: str) -> RemoteHost | UsageError:
            try:
                host = RemoteHost(name, streams[name](), launcher=launcher)
            except UsageError as error:
                return error
            with lock:
                if interrupted.is_set():
                    host.close()
                else:
                    stack.enter_context(host)
            return host

        try:
            opened = dict(zip(streams, pool.map(open_one, streams), strict=True))
        except BaseException:
            with lock:
                interrupted.set()
            raise
        finally:
            pool.shutdown(wait=False, cancel_futures=True)  # the user may not want to wait for those to come
        yield opened


def check_enough(engine: str, where: str, machines: Sequence[object], least: int, *, fix: str) -> None:
    """Raise UsageError where there are fewer machines than a plan names. where: they are; fix: how to have more."""
    if len(machines) < least:
        facts = f"--on {engine}: {where} has {len(machines)} of the {least} machines that the model is cut over"
        raise UsageError("E297", facts, fix=f"{fix}, or --machines {max(1, len(machines))}")
