"""Which machines the user means, "ssh:cluster.toml", and the hosts of a run on them."""

from collections.abc import Iterator
from contextlib import contextmanager

from ...errors import UsageError
from ...partition.cluster.cluster_file import load
from ...partition.cluster.machines import Machine
from ...runtime.engines.ssh import open_hosts
from ...runtime.hosts.host import LocalHost
from ...runtime.hosts.remote_host import RemoteHost
from ..config.engine_name import parse_engine
from ..job.job import Job
from .run_hosts import RunHosts


def read_machines(engine: str) -> tuple[Machine, ...]:
    """Return the machines that an engine's name stands for. UsageError where ssh cannot reach one; BadInput."""
    path = parse_engine(engine)
    machines = load(path).machines
    without = [machine.name for machine in machines if not machine.address]
    if without:
        facts = f"{path}: machine {without[0]!r} has no address, by which ssh could reach it"
        raise UsageError("E297", facts, fix='address = "user@lab3" below its [[machine]]')
    return machines


@contextmanager
def open_run_hosts(job: Job) -> Iterator[RunHosts]:
    """Open the hosts of a run: this machine, or as many of the engine's as it needs; they end with the context.

    Raises the error of the first machine that cannot be used.
    """
    if job.config.on is None:
        with LocalHost() as here:
            yield RunHosts(job, [here])
        return
    machines = read_machines(job.config.on)
    with open_hosts(_select_needed(job, machines)) as opened:
        for host in opened.values():
            if isinstance(host, UsageError):
                raise host
        yield RunHosts(job, [host for host in opened.values() if isinstance(host, RemoteHost)])


def _select_needed(job: Job, machines: tuple[Machine, ...]) -> tuple[Machine, ...]:
    """Return the first machines, as many as have roles, and with them all that the placement names."""
    planned = set() if job.placement is None else {machine.name for machine in job.placement.machines}
    last = max((number for number, machine in enumerate(machines) if machine.name in planned), default=0)
    return machines[: max(last + 1, job.machines * job.replicas, job.shards)]
