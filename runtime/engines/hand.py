"""The engine join: machines on which somebody runs `cutset host --join`, with a key that both sides have."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..joining.door import Door
from ..joining.join_key import read_join_key
from .joined_hosts import open_joined
from .open_hosts import Opened

WAIT_S = 300.0  # for somebody to go from machine to machine


class HandEngine:
    """Machines that join by hand; see `Engine`. They are called host0, host1, ... by the numbers they join with.

    Raises UsageError where the key will not do.
    """

    def __init__(self, name: str, key_file: Path) -> None:
        self.name, self._key_file = name, key_file
        self.notices = list[str]()
        read_join_key(key_file)

    @contextmanager
    def open(self, wanted: int, *, least: int) -> Iterator[Opened]:
        """Wait for as many machines as the run needs; see `Engine`."""
        key = read_join_key(self._key_file)
        with Door(key.door_keys(wanted), key.address, key.port) as door:
            names = {str(number): f"host{number}" for number in range(wanted)}
            with open_joined(door, names, notices=self.notices, launcher=key.address, wait_s=WAIT_S) as opened:
                yield opened

    def __repr__(self) -> str:
        return f"HandEngine({self.name})"
