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
from ..units import format_bytes
from .host_finder import HostFinder
from .task_code import TaskCode, collect_code


class RunHosts:
    """The hosts of one run, in the order in which the engine has them; at least one.

    Replica 0 is where its placement says, machine by machine; each further replica on the machines that follow, and
    after the last one on the first again. Shards go round in the same way. Replicas that join later go to the hosts
    with the fewest workers.

    What was on a host that is lost goes to a spare one, where there is one, else to that which has fewest to stand in
    for, of those that have the memory for it. A lost host that is there again gets back what is started from then on;
    one that joins is a spare one.

    finder: looks for such hosts. on_notice: called with a sentence about all that.
    """

    def __init__(
        self,
        job: Job,
        hosts: Sequence[Host],
        *,
        spare_hosts: Sequence[Host] = (),
        finder: HostFinder | None = None,
        on_notice: Callable[[str], object] = lambda words: None,
    ) -> None:
        self._hosts = {host.name: host for host in (*hosts, *spare_hosts)}
        self._planned = tuple(host.name for host in hosts)
        self._finder, self._on_notice = finder, on_notice
        self._joining = set[str]()  # hosts that were found and are not admitted yet
        self._entry = ""  # of the roles that hosts without any are prepared for
        self._moves = Counter[str]()  # by group
        self._successors: dict[str, str] = {}  # of lost hosts
        self._folder, self._training = job.out.resolve(), job.training
        self._code = collect_code(job.training.task.model) if any(host.folder for host in hosts) else TaskCode({})
        numbers = {name: number for number, name in enumerate(self._planned)}
        planned = [] if job.placement is None else [machine.name for machine in job.placement.machines]
        names = dict(enumerate(planned))  # hosts that no machine is named after count by their place
        self._machines = [numbers.get(names.get(machine, ""), machine) for machine in range(job.machines)]
        self._needs = [0] * job.machines
        if job.placement is not None:
            self._needs = [machine.memory_used_bytes for machine in job.placement.machines]
        self._replicas, self._shards = range(job.replicas), job.shards
        self._joined: dict[int, list[str]] = {}  # hosts of replicas that joined later, by replica
        self._workers, self._memory = Counter[str](), Counter[str]()  # of each host, as far as planned
        self._count_workers()
        self._of_role: dict[str, Host] = {}

    @property
    def hosts(self) -> tuple[Host, ...]:
        """All of them, those that are lost, too."""
        return tuple(self._hosts.values())

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
        if replica not in self._replicas and replica not in self._joined:
            self._joined[replica] = self._choose_for_replica()
            self._count_workers()
        return self._find_live(self._plan_worker(replica, machine))

    def shard_host(self, index: int) -> Host:
        """Return the host of a shard."""
        return self._find_live(self._plan_place(index, shard_group(index)))

    def note_loss(self, group: str, error: CutsetError) -> None:
        """Have a group of roles whose connections broke start on other hosts: there may be no way between two."""
        if isinstance(error, NetworkError):
            self._moves[group] += 1

    @property
    def can_find_more(self) -> bool:
        """Whether hosts may join, or come back."""
        return self._finder is not None and self._finder.can_find

    @property
    def is_looking(self) -> bool:
        """Whether hosts are being looked for, or are about to join."""
        return bool(self._joining) or (self._finder is not None and self._finder.is_looking)

    def look_for_more(self) -> None:
        """Look for hosts that are there again, or were added, without waiting for them."""
        if self._finder is not None:
            self._finder.look()

    def take_found(self) -> list[RemoteHost]:
        """Return the hosts that were found since the last call; they may be used once they are admitted."""
        found = [] if self._finder is None else self._finder.take_found()
        self._joining |= {host.name for host in found}
        return found

    def describe_search(self) -> str:
        """Return why no more hosts were found, as the end of a sentence."""
        return f"; {self._finder.failure}" if self._finder is not None and self._finder.failure else ""

    def admit(self, host: Host) -> None:
        """Take in a host that joined, or is there again; roles may be started there."""
        self._joining.discard(host.name)
        known = host.name in self._hosts
        self._hosts[host.name] = host
        self._successors.pop(host.name, None)
        self._count_workers()
        self._prepare(host)
        self._on_notice(f"host {host.name} is there again" if known else f"host {host.name} has joined")

    def find_obstacle(self) -> ProcessLost | None:
        """Return why roles cannot be started at present: what was on a lost host finds no room. None where they can."""
        if not any(host.lost for host in self._hosts.values()):
            return None
        try:
            for replica in (*self._replicas, *self._joined):
                for machine in range(len(self._machines)):
                    self.worker_host(replica, machine)
            for index in range(self._shards):
                self.shard_host(index)
        except ProcessLost as error:
            return error
        return None

    def _plan_worker(self, replica: int, machine: int) -> str:
        if replica in self._joined:
            return self._joined[replica][machine]
        return self._plan_place(self._machines[machine] + replica * len(self._machines), replica_group(replica))

    def _plan_place(self, place: int, group: str) -> str:
        """Return the host at a place, or, for a group that was moved, one further on, spare ones included."""
        names = tuple(self._hosts) if self._moves[group] else self._planned
        return names[(place + self._moves[group]) % len(names)]

    def _find_live(self, name: str) -> Host:
        """Return a host, or that which stands in for it because it is lost. ProcessLost where none can."""
        while self._hosts[name].lost:
            name = self._successors.get(name) or self._choose_successor(name)
        return self._hosts[name]

    def _choose_successor(self, name: str) -> str:
        lost = self._hosts[name].lost
        live = [host for host in self._hosts.values() if not host.lost]
        needed = self._memory[name]
        roomy = [host for host in live if not needed or self._memory[host.name] + needed <= host.memory_bytes]
        if not roomy:
            facts = f"no other has {format_bytes(needed)} of memory to spare" if live else "no host is left"
            raise ProcessLost("E608", f"{lost}; {facts}", fix="go on with --resume when there is one")
        busy = Counter([*self._planned, *self._successors.values()])
        chosen = min(roomy, key=lambda host: busy[host.name]).name
        self._successors[name] = chosen
        for counter in (self._workers, self._memory):
            counter[chosen] += counter.pop(name, 0)
        self._on_notice(f"{lost}; its roles go to {chosen}")
        self.look_for_more()
        return chosen

    def _choose_for_replica(self) -> list[str]:
        """Return where the machines of a replica that joins go: one after the other where the fewest workers are."""
        workers, chosen = self._workers.copy(), list[str]()
        for _ in self._machines:
            live = [host for host in self._hosts.values() if not host.lost]
            if not live:
                return list(self._planned[: len(self._machines)])
            chosen.append(min(live, key=lambda host: workers[host.name] / host.cores).name)
            workers[chosen[-1]] += 1
        return chosen

    def _count_workers(self) -> None:
        """Count the workers of each host, and the memory that they are planned to need."""
        workers, memory = Counter[str](), Counter[str]()
        for replica in (*self._replicas, *self._joined):
            for machine, needed in enumerate(self._needs):
                name = self._plan_worker(replica, machine)
                while name in self._successors:
                    name = self._successors[name]
                workers[name] += 1
                memory[name] += needed
        self._workers, self._memory = workers, memory

    def prepare_spare_hosts(self, entry: str) -> None:
        """Have roles start quickly on hosts that have none yet, now and later. entry: of the roles."""
        self._entry = entry
        for host in self.hosts[len(self._planned) :]:
            self._prepare(host)

    def _prepare(self, host: Host) -> None:
        if self._entry:
            for threads in {1, max(1, host.cores // max(self._workers.values()))}:
                host.prepare(threads, self._entry)

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
        return f"RunHosts({list(self._hosts)})"
