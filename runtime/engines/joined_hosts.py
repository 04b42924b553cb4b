"""`open_joined`: opens the agents of machines that come to a door, beside those that a command leads to."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial

from ..hosts.remote_host import AgentStream
from ..joining.door import JOIN_S, Door
from .open_hosts import Opened, open_hosts

Streams = Mapping[str, Callable[[], AgentStream]]


@contextmanager
def open_joined(
    door: Door,
    names: Mapping[str, str],
    *,
    launcher: str,
    notices: list[str],
    others: Streams | None = None,
    wait_s: float = JOIN_S,
) -> Iterator[Opened]:
    """Yield the hosts, as `open_hosts` does; others come first.

    names: of the hosts, by the owners of the keys with which they come. launcher: the address of this machine. notices:
    gets a sentence about those who were refused.
    """
    coming = {name: partial(door.await_stream, owner, wait_s=wait_s) for owner, name in names.items()}
    try:
        with open_hosts({**(others or {}), **coming}, launcher=launcher) as opened:
            yield opened
    finally:
        if door.refusals:
            notices.append(f"refused at {door.endpoint}: {door.refusals}")
