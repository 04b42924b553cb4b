"""`try_task`: loads a task on every host, as the workers of a run would, and reads no data."""

import uuid
from collections.abc import Sequence
from typing import Any

import msgspec

from ...errors import BadInput, CutsetError
from ...runtime.channel.bind import join_ports
from ...runtime.channel.channel import Channel
from ...runtime.engines.reachability import launcher_address
from ...runtime.hosts.heartbeat import RoleProgress
from ...runtime.hosts.host import Role
from ...runtime.hosts.remote_host import RemoteHost
from ...runtime.launcher.launcher import Launcher
from ..hosts.task_code import collect_code
from ..task.load_task import TaskSpec, load_task

LOADER = f"{__name__}:load"


def try_task(spec: TaskSpec, hosts: Sequence[RemoteHost]) -> list[CutsetError]:
    """Return an error for each host on which the task cannot be loaded. UsageError where its code is too large."""
    code = collect_code(spec.model)
    roles = []
    for host in hosts:
        own = msgspec.structs.replace(spec, model=code.name_on_host(spec.model, host.folder))
        roles.append(Role(host.name, LOADER, msgspec.to_builtins(own), host=host.name, files=code.files))
    address = launcher_address(hosts)
    address = join_ports(address, hosts[0].ports) if address else ""
    with Launcher(roles, job=f"doctor-{uuid.uuid4().hex[:12]}", hosts=hosts, address=address) as launcher:
        found = launcher.run()
    failures = zip(hosts, found, strict=True)
    return [
        BadInput(failure["code"], f"on host {host.name}: {failure['facts']}", fix=failure["fix"])
        for host, failure in failures
        if failure
    ]


def load(channel: Channel, setup: Any, progress: RoleProgress) -> dict[str, str]:
    """Load the task; return the code, the facts and the fix of the error, if there is one."""
    try:
        load_task(msgspec.convert(setup, TaskSpec))
    except CutsetError as error:
        return {"code": error.code, "facts": error.facts, "fix": error.fix}
    return {}
