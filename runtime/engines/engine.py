"""`Engine`: who starts agents. There is one for each way to machines: ssh, Slurm, Ray, Kubernetes, torchrun."""

from contextlib import AbstractContextManager
from typing import Protocol

from .open_hosts import Opened


class Engine(Protocol):
    """Leads to machines.

    name: as the user wrote it. notices: sentences about what it could not tidy up, and whom it refused.
    """

    name: str
    notices: list[str]

    def open(self, wanted: int, *, least: int) -> AbstractContextManager[Opened]:
        """Open the agents of machines: `wanted` where they are made for this, or all that there are; they end with the
        context.

        Yields, by name of the machine, its host, or why it cannot be used. Raises UsageError where there are fewer
        than `least`.
        """
        ...
