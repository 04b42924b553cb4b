"""`RunHosts`: the hosts of a run, and which of them each of its roles runs on. Nothing else decides that."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

import msgspec

from ...runtime.engines.reachability import launcher_address
from ...runtime.hosts.host import Host, Role
from ...runtime.hosts.remote_host import RemoteHost
from ..job.job import Job
from ..job.process_specs import TrainingSpec
from .task_code import TaskCode, collect_code


class RunHosts:
    """The hosts of one run, by default in the order in which the cluster file has them; at least one.

    Replica 0 is where its placement says, machine by machine; each further replica on the machines that follow, and
    after the last one on the first again. Shards go round in the same way.
    """

    def __init__(self, job: Job, hosts: Sequence[Host]) -> None:
        self.hosts = tuple(hosts)
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
        return self.hosts[0]

    @property
    def launcher_address(self) -> str:
        """The address at which roles reach this process; "" for that of the first host."""
        return launcher_address([host for host in self.hosts if isinstance(host, RemoteHost)])

    def worker_host(self, replica: int, machine: int) -> Host:
        """Return the host of one machine of a replica."""
        return self.hosts[(self._machines[machine] + replica * len(self._machines)) % len(self.hosts)]

    def shard_host(self, index: int) -> Host:
        """Return the host of a shard."""
        return self.hosts[index % len(self.hosts)]

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
