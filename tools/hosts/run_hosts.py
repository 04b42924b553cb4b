"""`RunHosts`: the hosts of a run, and which of them each of its roles runs on. Nothing else decides that."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import msgspec

from ...errors import CutsetError, NetworkError, ProcessLost
from ...runtime.channel.bind import join_ports
from ...runtime.engines.reachability import launcher_address
from ...runtime.hosts.host import Host, Role
from ...runtime.hosts.remote_host import RemoteHost
from ..job.job import Job
from ..job.process_specs import TrainingSpec, replica_group, shard_group
from .task_code import TaskCode, collect_code


class RunHosts:
    """The hosts of one run, by default in the order in which the cluster file has them; at least one.

    Replica 0 is where its placement says, machine by machine; each further replica on the machines that follow, and
    after the last one on the first again. Shards go round in the same way.

    What was on a host that is lost goes to a spare one, where there is one, else to that which has fewest to stand in
    for. on_notice: called with a sentence about that.
    """

    def __init__(
        self,
        job: Job,
        hosts: Sequence[Host],
        *,
        spare_hosts: Sequence[Host] = (),
        on_notice: Callable[[str], object] = lambda words: None,
    ) -> None:
        self._planned, self.hosts = tuple(hosts), (*hosts, *spare_hosts)
        self._on_notice = on_notice
        self._moves = Counter[str]()  # by group
        self._successors: dict[str, Host] = {}  # by name of a lost host
        self._folder, self._training = job.out.resolve(), job.training
        self._code = collect_code(job.training.task.model) if any(host.folder for host in hosts) else TaskCode({})
        numbers = {host.name: number for number, host in enumerate(hosts)}
        planned = [] if job.placement is None else [machine.name for machine in job.placement.machines]
        names = dict(enumerate(planned))  # hosts that no machine is named after count by their place
        self._machines = [numbers.get(names.get(machine, ""), machine) for machine in range(job.machines)]
        self._workers = Counter(
            self.worker_host(replica, machine).name
            for replica in range(job.replicas)
            for machine in range(job.machines)
        )
        self._of_role: dict[str, Host] = {}

    @property
    def first(self) -> Host:
        """The host of what runs alone."""
        return self._find_live(self._planned[0])

    @property
    def launcher_address(self) -> str:
        """The address at which roles reach this process; "" for that of the first host."""
        address = launcher_address([host for host in self.hosts if isinstance(host, RemoteHost)])
        return join_ports(address, self.first.ports) if address else ""

    def worker_host(self, replica: int, machine: int) -> Host:
        """Return the host of one machine of a replica."""
        return self._locate(self._machines[machine] + replica * len(self._machines), replica_group(replica))

    def shard_host(self, index: int) -> Host:
        """Return the host of a shard."""
        return self._locate(index, shard_group(index))

    def note_loss(self, group: str, error: CutsetError) -> None:
        """Have a group of roles whose connections broke start on other hosts: there may be no way between two."""
        if isinstance(error, NetworkError):
            self._moves[group] += 1

    def _locate(self, place: int, group: str) -> Host:
        """Return the host at a place, or, for a group that was moved, one further on, spare ones included."""
        hosts = self.hosts if self._moves[group] else self._planned
        return self._find_live(hosts[(place + self._moves[group]) % len(hosts)])

    def _find_live(self, host: Host) -> Host:
        """Return a host, or that which stands in for it because it is lost. ProcessLost where none is left."""
        while host.lost:
            host = self._successors.get(host.name) or self._choose_successor(host)
        return host

    def _choose_successor(self, lost: Host) -> Host:
        live = [host for host in self.hosts if not host.lost]
        if not live:
            raise ProcessLost("E608", f"{lost.lost}; no host is left", fix="go on with --resume when there is one")
        busy = Counter(host.name for host in (*self._planned, *self._successors.values()))
        chosen = min(live, key=lambda host: busy[host.name])
        self._successors[lost.name] = chosen
        self._workers[chosen.name] += self._workers.pop(lost.name, 0)
        self._on_notice(f"{lost.lost}; its roles go to {chosen.name}")
        return chosen

    def prepare_spare_hosts(self, entry: str) -> None:
        """Have roles start quickly on hosts that have none yet. entry: of the roles."""
        most = max(self._workers.values())
        for host in self.hosts[len(self._planned) :]:
            for threads in {1, max(1, host.cores // most)}:
                host.prepare(threads, entry)

    def threads_on(self, host: Host) -> int:
        """Return how many threads each worker on a host has."""
        return max(1, host.cores // max(1, self._workers[host.name]))

    def folder_on(self, host: Host) -> str:
        """Return where a host has the files of the run."""
        return host.folder or str(self._folder)

    def may_be_lost(self, host: Host) -> bool:
        """Return whether a host may be lost without this machine: what must survive that has to be kept here, too."""
        return bool(host.folder)

    def training_on(self, host: Host) -> TrainingSpec:
        """Return what trainers on a host are told."""
        if not host.folder:
            return self._training
        task = msgspec.structs.replace(
            self._training.task, model=self._code.name_on_host(self._training.task.model, host.folder)
        )
        return msgspec.structs.replace(self._training, folder=host.folder, task=task)

    def place(self, role: Role, host: Host, *, files: Iterable[str] = ()) -> Role:
        """Return a role on a host, where it reads these files of the run folder."""
        self._of_role[role.name] = host
        of_run = {path: self._folder / path for path in files}
        return replace(role, host=host.name, files={**self._code.files, **of_run} if host.folder else {})

    def host_of(self, role: str) -> Host:
        """Return the host of a role that was placed."""
        return self._of_role[role]

    def __repr__(self) -> str:
        return f"RunHosts({[host.name for host in self.hosts]})"
