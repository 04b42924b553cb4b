"""Which machines the user means, "ssh:cluster.toml", and the hosts of a run on them."""

from collections.abc import Callable, Iterator
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
def open_run_hosts(job: Job, on_notice: Callable[[str], object]) -> Iterator[RunHosts]:
    """Open the hosts of a run: this machine, or those of the engine; they end with the context.

    Raises the error of the first machine that the run needs and cannot be used; that of a spare one is a notice.
    """
    if job.config.on is None:
        with LocalHost() as here:
            yield RunHosts(job, [here])
        return
    machines = read_machines(job.config.on)
    needed = _count_needed(job, machines)
    with open_hosts(machines) as opened:
        hosts, spare_hosts = list[RemoteHost](), list[RemoteHost]()
        for number, host in enumerate(opened.values()):
            if isinstance(host, RemoteHost):
                (hosts if number < needed else spare_hosts).append(host)
            elif number < needed:
                raise host
            else:
                on_notice(f"no spare: {host.facts}")
        yield RunHosts(job, hosts, spare_hosts=spare_hosts, on_notice=on_notice)


def _count_needed(job: Job, machines: tuple[Machine, ...]) -> int:
    """Return how many of the first machines have roles; among them are all that the placement names."""
    planned = set() if job.placement is None else {machine.name for machine in job.placement.machines}
    last = max((number for number, machine in enumerate(machines) if machine.name in planned), default=0)
    return max(last + 1, job.machines * job.replicas, job.shards)
