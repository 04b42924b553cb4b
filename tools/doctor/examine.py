"""`examine`: opens the hosts of an engine, compares them with what is stated, and tries every way between them.

Nothing is trained, and nothing is left on any host. All that is wrong is found at once, not one fault at a time.
"""

from dataclasses import dataclass
from typing import Any

from ...errors import CutsetError, UsageError
from ...partition.cluster.machines import Machine
from ...runtime.engines.engine import Engine
from ...runtime.engines.reachability import find_closed_links
from ...runtime.engines.ssh import SshEngine
from ...runtime.hosts.remote_host import RemoteHost
from ..task.load_task import TaskSpec
from ..units import format_bytes, format_seconds
from .try_task import try_task

MAX_CLOCK_AHEAD_S = 60.0
_LEAST_PART = 0.9  # of the memory that the file states: a system never shows quite all that is built in


@dataclass(frozen=True)
class HostReport:
    """What one machine is. login: for ssh. host: None where no agent answers; failures: what is wrong, worst first."""

    name: str
    login: str
    host: dict[str, Any] | None
    failures: tuple[CutsetError, ...]


@dataclass(frozen=True)
class Examination:
    """What was found. links: an error for each way that is closed; task: one for each host that cannot load it."""

    hosts: tuple[HostReport, ...]
    links: tuple[CutsetError, ...]
    task: tuple[CutsetError, ...] = ()

    @property
    def failures(self) -> tuple[CutsetError, ...]:
        """All that is wrong, hosts first."""
        return (*(failure for host in self.hosts for failure in host.failures), *self.links, *self.task)

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        hosts = [{"name": report.name, "ssh": report.login, "host": report.host} for report in self.hosts]
        failures = [{"code": error.code, "facts": error.facts, "fix": error.fix} for error in self.failures]
        return {"ready": not failures, "hosts": hosts, "failures": failures}


def examine(
    engine: Engine, *, wanted: int = 1, ports: str = "", roles: int = 2, task: TaskSpec | None = None
) -> Examination:
    """Look at the machines of an engine, all at once; it takes some seconds.

    wanted: how many it is to make, and must have. ports: at which roles are to listen. roles: how many of a run there
    are to be on each. task: to load on each of them.
    """
    stated = {machine.name: machine for machine in engine.machines} if isinstance(engine, SshEngine) else {}
    with engine.open(wanted, least=wanted) as opened:
        reports = tuple(_report_on(name, host, stated.get(name)) for name, host in opened.items())
        hosts = [host for host in opened.values() if isinstance(host, RemoteHost)]
        for host in hosts:
            host.ports = ports
        links = find_closed_links(hosts, listeners=roles) if hosts else []
        unloaded = try_task(task, hosts) if task is not None and hosts and not links else []
        return Examination(reports, tuple(links), tuple(unloaded))


def _report_on(name: str, host: RemoteHost | UsageError, stated: Machine | None) -> HostReport:
    login = "" if stated is None else stated.address
    if isinstance(host, UsageError):
        return HostReport(name, login, None, (host,))
    ready = host.ready
    about = {
        "address": host.address,
        "cores": ready.cores,
        "memory_bytes": ready.memory_bytes,
        "free_bytes": ready.free_bytes,
        "clock_ahead_s": host.clock_ahead_s,
        "versions": ready.versions,
    }
    return HostReport(name, login, about, (*_compare_memory(stated, host), *_compare_clock(host)))


def _compare_memory(machine: Machine | None, host: RemoteHost) -> list[CutsetError]:
    has = host.ready.memory_bytes
    if machine is None or has >= _LEAST_PART * machine.memory_bytes:
        return []
    stated = format_bytes(machine.memory_bytes)
    facts = f"host {host.name} has {format_bytes(has)} of memory; the cluster file says {stated}"
    return [UsageError("E298", facts, fix=f'memory = "{format_bytes(has)}" for it, and plan again')]


def _compare_clock(host: RemoteHost) -> list[CutsetError]:
    ahead_s = host.clock_ahead_s
    if abs(ahead_s) <= MAX_CLOCK_AHEAD_S:
        return []
    way = "ahead of" if ahead_s > 0 else "behind"
    facts = f"the clock of host {host.name} is {format_seconds(abs(ahead_s))} {way} the one here"
    return [UsageError("E298", facts, fix="have both follow a time server (chrony or systemd-timesyncd)")]
