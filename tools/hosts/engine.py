"""The engine that the user names, "ssh:cluster.toml", and the hosts of a run on its machines."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path

from ...errors import UsageError
from ...partition.cluster.cluster_file import load
from ...partition.cluster.hierarchy import order_machines
from ...partition.cluster.machines import Cluster, Machine
from ...runtime.channel.bind import parse_ports
from ...runtime.engines.engine import Engine
from ...runtime.engines.hand import HandEngine
from ...runtime.engines.kubernetes import KubernetesEngine, read_values
from ...runtime.engines.ray_cluster import RayEngine
from ...runtime.engines.slurm import SlurmEngine
from ...runtime.engines.ssh import SshEngine
from ...runtime.engines.torchrun import TorchrunEngine
from ...runtime.hosts.host import LocalHost
from ...runtime.hosts.remote_host import RemoteHost
from ..config.engine_name import HAND, KUBERNETES, RAY, SLURM, SSH, parse_engine
from ..job.job import MAX_ROLES, Job
from .host_finder import HostFinder
from .run_hosts import RunHosts


def make_engine(name: str) -> Engine:
    """Return the engine of a name. UsageError or BadInput where what it names will not do."""
    parts = parse_engine(name)
    match parts.kind:
        case kind if kind == SSH:
            return SshEngine(name, partial(read_machines, Path(parts.argument)))
        case kind if kind == SLURM:
            return SlurmEngine(name, parts.options)
        case kind if kind == RAY:
            return RayEngine(name, parts.argument)
        case kind if kind == KUBERNETES:
            return KubernetesEngine(name, read_values(Path(parts.argument)))
        case kind if kind == HAND:
            return HandEngine(name, Path(parts.argument))
        case _:
            return TorchrunEngine(name, Path(parts.argument) if parts.argument else None)


def find_stated_machines(name: str) -> Cluster | None:
    """Return what the cluster file of an engine says of its machines; None where the engine has none."""
    parts = parse_engine(name)
    return _read_cluster(Path(parts.argument)) if parts.kind == SSH else None


def read_machines(path: Path) -> tuple[Machine, ...]:
    """Return the machines of a cluster file in the order of plans, so that those of a replica are near each other.

    UsageError where one has no address, by which ssh could reach it.
    """
    return _read_cluster(path).machines


def _read_cluster(path: Path) -> Cluster:
    cluster = load(path)
    cluster = cluster.select(order_machines(cluster))
    without = [machine.name for machine in cluster.machines if not machine.address]
    if without:
        facts = f"{path}: machine {without[0]!r} has no address, by which ssh could reach it"
        raise UsageError("E297", facts, fix='address = "user@lab3" below its [[machine]]')
    return cluster


def serve_if_member(name: str | None) -> bool:
    """Be an agent until the run has ended, in a process that torchrun has started with another rank than 0.

    Returns whether this was such a process.
    """
    engine = None if name is None else make_engine(name)  # what is wrong with it is said before anything is prepared
    if not isinstance(engine, TorchrunEngine) or engine.rank == 0:
        return False
    engine.join()
    return True


@contextmanager
def open_run_hosts(
    job: Job, on_notice: Callable[[str], object], *, here: LocalHost | None = None
) -> Iterator[RunHosts]:
    """Open the hosts of a run: this machine, or those of the engine; they end with the context.

    here: this machine, where it is open already, and stays so. Raises the error of the first machine that the run needs
    and cannot be used; that of a spare one is a notice.
    """
    if job.config.on is None:
        with LocalHost() if here is None else nullcontext(here) as host:
            yield RunHosts(job, [host])
        return
    engine = make_engine(job.config.on)
    with pass_on_notices(engine, on_notice), _open(job, engine, on_notice) as hosts:
        yield hosts


@contextmanager
def pass_on_notices(engine: Engine, on_notice: Callable[[str], object]) -> Iterator[None]:
    """At the end, whatever it is, pass on what an engine has to say."""
    try:
        yield
    finally:
        for sentence in engine.notices:
            on_notice(sentence)


@contextmanager
def _open(job: Job, engine: Engine, on_notice: Callable[[str], object]) -> Iterator[RunHosts]:
    wanted = max(job.machines * job.replicas, job.shards)
    with engine.open(wanted, least=job.machines) as opened:
        needed = _count_needed(job, list(opened))
        hosts, spare_hosts = list[RemoteHost](), list[RemoteHost]()
        for number, host in enumerate(opened.values()):
            if isinstance(host, RemoteHost):
                host.ports = job.config.ports or ""
                (hosts if number < needed else spare_hosts).append(host)
            elif number < needed:
                raise host
            else:
                on_notice(f"no spare: {host.facts}")
        with HostFinder(opened, ports=job.config.ports or "") as finder:
            run_hosts = RunHosts(job, hosts, spare_hosts=spare_hosts, finder=finder, on_notice=on_notice)
            check_room(job, run_hosts)
            yield run_hosts


def check_room(job: Job, hosts: RunHosts) -> None:
    """Raise UsageError where a host has too many roles, or more than there are ports for, and the launcher's."""
    workers = [hosts.worker_host(r, m).name for r in range(job.replicas) for m in range(job.machines)]
    roles = Counter([*workers, *(hosts.shard_host(index).name for index in range(job.shards))])
    (fullest, most), *_ = roles.most_common(1)
    if most > MAX_ROLES:
        facts = f"{most} processes on {fullest}; {MAX_ROLES} at most"
        raise UsageError("E221", facts, fix="more machines, or fewer --replicas or --shards")
    ports = len(parse_ports(job.config.ports)) if job.config.ports else most + 1
    if most + 1 > ports:
        facts = f"--ports {job.config.ports} has {ports} ports; {most + 1} roles may be on one host"
        raise UsageError("E297", facts, fix="a larger range, with some to spare for roles that are restarted")


def _count_needed(job: Job, names: list[str]) -> int:
    """Return how many of the first machines have roles; among them are all that the placement names."""
    planned = set() if job.placement is None else {machine.name for machine in job.placement.machines}
    last = max((number for number, name in enumerate(names) if name in planned), default=0)
    return max(last + 1, job.machines * job.replicas, job.shards)
