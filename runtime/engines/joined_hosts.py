"""`open_joined`: opens the agents of machines that come to a door, beside those that a command leads to."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial

from ..joining.door import JOIN_S, Door
from .open_hosts import Opened, Streams, open_hosts


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
    """Yield the hosts, as `open_hosts` does; others come first. A key serves once, so no host comes back.

    names: of the hosts, by the owners of the keys with which they come. launcher: the address of this machine. notices:
    gets a sentence about those who were refused.
    """
    coming = {name: partial(door.await_stream, owner, wait_s=wait_s) for owner, name in names.items()}
    streams: Streams = {**(others or {}), **coming}
    try:
        with open_hosts(lambda: streams, launcher=launcher, can_grow=False) as opened:
            yield opened
    finally:
        if door.refusals:
            notices.append(f"refused at {door.endpoint}: {door.refusals}")
