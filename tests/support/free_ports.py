"""Ports that are free, below those that the kernel gives to tests that run beside this one."""

import random
import socket
from collections.abc import Sequence
from contextlib import ExitStack


def find_free_ports(count: int = 1, *, addresses: Sequence[str] = ("127.0.0.1",)) -> range:
    """Find neighbouring ports that are free on all of these addresses."""
    for first in random.sample(range(10_000, 30_000), 100):
        ports = range(first, first + count)
        with ExitStack() as stack:
            try:
                for address in addresses:
                    for port in ports:
                        stack.enter_context(socket.create_server((address, port)))
            except OSError:
                continue
            return ports
    raise AssertionError("no port is free")
