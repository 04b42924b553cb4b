"""The engine ssh: its own program leads to the agent of a machine, as the user's configuration of ssh says."""

import shlex
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial

from ...partition.cluster.machines import Machine
from ..hosts.remote_host import AGENT
from .agent_command import AgentCommand
from .open_hosts import Opened, Streams, open_hosts

CONNECT_S = 10
# No question that nobody would answer, no forwarding of agents or screens, no connection that others share and hold.
_OPTIONS = ("BatchMode=yes", f"ConnectTimeout={CONNECT_S}", "ControlMaster=no", "ControlPath=none", "LogLevel=ERROR")


class SshEngine:
    """Machines with addresses that ssh knows, each with an agent; see `Engine`. All are opened, whatever the count.

    read_machines: returns them, again whenever a run looks for more.
    """

    def __init__(self, name: str, read_machines: Callable[[], Sequence[Machine]]) -> None:
        self.name, self._read_machines = name, read_machines
        self.machines = tuple(read_machines())
        self.notices = list[str]()

    def open(self, wanted: int = 0, *, least: int = 0) -> AbstractContextManager[Opened]:
        """Log in to all machines at once; see `Engine`."""
        return open_hosts(self._find_streams)

    def _find_streams(self) -> Streams:
        return {m.name: partial(AgentCommand, m.name, ssh_command(m)) for m in self._read_machines()}

    def __repr__(self) -> str:
        return f"SshEngine({self.name}, {len(self.machines)} machines)"


def ssh_command(machine: Machine) -> list[str]:
    """Return the command that runs the agent on a machine, with standard input and output that lead here."""
    options = [word for option in _OPTIONS for word in ("-o", option)]
    remote = shlex.join([machine.python or sys.executable, *AGENT])  # the login shell there splits it again
    return ["ssh", "-T", "-x", "-a", *options, "--", machine.address, remote]
