"""Whether hosts reach each other and the launcher: a role on each greets all others, before a run depends on it."""

import time
import uuid
from collections import Counter
from collections.abc import Sequence
from typing import Any

from ...errors import CutsetError, NetworkError, ProcessLost
from ..channel.bind import join_ports
from ..channel.channel import Channel, SilenceError
from ..channel.mailbox import stop_error
from ..channel.message import Message
from ..hosts.heartbeat import RoleProgress
from ..hosts.host import Role
from ..hosts.remote_host import RemoteHost
from ..launcher.launcher import Launcher

GREETING_S = 5.0
START_S = 20.0
NOT_READY = "E604"
GREETER = f"{__name__}:greet_all"


def find_closed_links(hosts: Sequence[RemoteHost], *, listeners: int = 1) -> list[CutsetError]:
    """Return an error for every way from one of these hosts to another, or to the launcher, that nothing passes.

    listeners: how many roles listen on each host at the same time; only one of them sends.
    """
    names, address = [host.name for host in hosts], launcher_address(hosts)
    setup = {"names": names, "timeout_s": GREETING_S}
    roles = [Role(name, GREETER, setup, host=name) for name in names]
    roles += [
        Role(f"{name} listener {number}", GREETER, {**setup, "names": []}, host=name)
        for name in names
        for number in range(1, listeners)
    ]
    listens = join_ports(address, hosts[0].ports) if address else ""
    launching = Launcher(roles, job=f"doctor-{uuid.uuid4().hex[:12]}", hosts=hosts, address=listens)
    with launching as launcher:
        try:
            launcher.start(timeout_s=START_S)
            for _ in launcher.events():
                pass
        except (NetworkError, ProcessLost) as error:
            began = launcher.pids  # others are slow, which is no fault of the network
            cut_off = [name for name in launcher.unheard if name in began and name in names and error.code == NOT_READY]
            if not cut_off:
                return [error]
        else:
            targets = {host.name: host.address for host in hosts}
            unheard = launcher.results
            return [_closed_way(source, name, targets[name]) for name in names for source in unheard[name]]
    errors: list[CutsetError] = [_closed_way(name, "this machine", address) for name in cut_off]
    rest = [host for host in hosts if host.name not in cut_off]
    return [*errors, *(find_closed_links(rest, listeners=listeners) if rest else [])]


def launcher_address(hosts: Sequence[RemoteHost]) -> str:
    """Return the address of this machine under which most hosts know it, "" where none does."""
    known = Counter(host.ready.launcher for host in hosts if host.ready.launcher)
    return known.most_common(1)[0][0] if known else ""


def greet_all(channel: Channel, setup: Any, progress: RoleProgress) -> list[str]:
    """Greet the roles that `setup` names; return those of which no greeting has come after `timeout_s`."""
    others = [name for name in setup["names"] if name != channel.name]
    for name in others:
        channel.send(name, Message("greeting"))
    unheard, deadline = set(others), time.monotonic() + setup["timeout_s"]
    while unheard and (remaining_s := deadline - time.monotonic()) > 0:
        try:
            message = channel.receive(remaining_s)
        except SilenceError:
            break
        if message.kind == "stop":
            raise stop_error(channel.name, message)
        unheard.discard(message.sender)
    return sorted(unheard)


def _closed_way(source: str, target: str, address: str) -> NetworkError:
    facts = f"nothing that {source} sends arrives at {target}, at any port of {address}"
    return NetworkError("E518", facts, fix=f"let {source} connect to the ports of {target} above 1024, by TCP")
