"""The engine ssh: its own program leads to the agent of a machine, as the user's configuration of ssh says."""

import shlex
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

from ...errors import UsageError
from ...partition.cluster.machines import Machine
from ..hosts.remote_host import AGENT, RemoteHost

CONNECT_S = 10
_AT_ONCE = 32  # logins that are under way; sshd refuses some of very many
# No question that nobody would answer, no forwarding of agents or screens, no connection that others share and hold.
_OPTIONS = ("BatchMode=yes", f"ConnectTimeout={CONNECT_S}", "ControlMaster=no", "ControlPath=none", "LogLevel=ERROR")

Opened = dict[str, RemoteHost | UsageError]


def ssh_command(machine: Machine) -> list[str]:
    """Return the command that runs the agent on a machine, with standard input and output that lead here."""
    options = [word for option in _OPTIONS for word in ("-o", option)]
    remote = shlex.join([machine.python or sys.executable, *AGENT])  # the login shell there splits it again
    return ["ssh", "-T", "-x", "-a", *options, "--", machine.address, remote]


@contextmanager
def open_hosts(machines: Iterable[Machine]) -> Iterator[Opened]:
    """Start an agent on every machine; yield, by name, its host or why there is none. All end with the context."""

    def open_one(machine: Machine) -> RemoteHost | UsageError:
        try:
            return RemoteHost(machine.name, "", ssh_command(machine))
        except UsageError as error:
            return error

    wanted = list(machines)
    with ExitStack() as stack:
        with ThreadPoolExecutor(min(_AT_ONCE, max(1, len(wanted))), thread_name_prefix="cutset-ssh") as pool:
            opened = dict(zip([machine.name for machine in wanted], pool.map(open_one, wanted), strict=True))
        for host in opened.values():
            if isinstance(host, RemoteHost):
                stack.enter_context(host)
        yield opened
