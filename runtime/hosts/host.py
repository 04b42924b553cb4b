"""`Host`: a machine on which the launcher has roles started, and `LocalHost`, on which it starts them itself."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Protocol

from .assignment import Assignment, write_assignment
from .role_process import ForkServers, HostedProcess, RoleProcess
from .versions import read_cores, read_memory

LOCAL = "local"


@dataclass(frozen=True)
class Role:
    """One process of a job.

    entry: "package.module:function", called as `entry(channel, setup, progress)`. setup: plain data. threads: for
    torch. serves: it runs until it is told to stop, which happens once all others have finished. host: the name of the
    host that it runs on, by default the first. group: name of the roles that are lost together and may be started
    again; without one, the loss of this role ends the run. files: that it reads, by their paths in the folder of the
    run; a host with a folder of its own gets copies of those that exist.
    """

    name: str
    entry: str
    setup: Any = None
    threads: int = 1
    serves: bool = False
    host: str = ""
    group: str = ""
    files: Mapping[str, Path] = field(default_factory=dict)


class Host(Protocol):
    """A machine on which roles run.

    name: of the owner of its roles' keys, too. address: on which its roles listen. ports: at which, as "40000-40100",
    "" for any that are free. lost: why it is lost, "" as long as it is not.
    """

    name: str
    address: str
    ports: str
    lost: str

    @property
    def cores(self) -> int:
        """How many cores its roles have."""
        ...

    @property
    def memory_bytes(self) -> int:
        """How much memory its roles have."""
        ...

    @property
    def folder(self) -> str:
        """Where its roles have the files of the run; "" where that is the folder of the run on this machine."""
        ...

    @property
    def public_key(self) -> str:
        """The public key of its roles; "" where the launcher makes their pair."""
        ...

    def start(self, role: Role, log: IO[bytes]) -> HostedProcess:
        """Start the process of a role, which then waits for its assignment; its output goes to `log`."""
        ...

    def prepare(self, threads: int, entry: str) -> None:
        """Have roles with so many threads, and such an entry, start quickly."""
        ...

    def assign(
        self, process: HostedProcess, assignment: Assignment, *, files: Mapping[str, Path], deadline: float
    ) -> None:
        """Hand a process its assignment once it has these files, until `deadline` (of `time.monotonic`) at most."""
        ...

    def close(self) -> None:
        """End what is left of its roles, and what started them."""
        ...


class LocalHost:
    """This machine, or a part of it.

    prefix: a command that runs processes there, as ("ip", "netns", "exec", NAME) does in a network name space. environ:
    what the environment of roles is made from, by default this process's own.
    """

    def __init__(
        self,
        name: str = LOCAL,
        address: str = "127.0.0.1",
        *,
        prefix: Sequence[str] = (),
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.address = address
        self.public_key = self.folder = self.ports = self.lost = ""
        self.cores, self.memory_bytes = read_cores(), read_memory()
        self._servers = ForkServers(prefix=prefix, environ=environ)

    def start(self, role: Role, log: IO[bytes]) -> RoleProcess:
        """Start the process of a role; see `Host`."""
        module = role.entry.partition(":")[0]
        return self._servers.start(role.name, log=log, threads=role.threads, module=module)

    def prepare(self, threads: int, entry: str) -> None:
        """Have roles with so many threads start quickly; see `Host`."""
        self._servers.prepare(threads, entry.partition(":")[0])

    def await_prepared(self) -> None:
        """Wait until all that `prepare` has begun is done, and leaves the cores to others."""
        self._servers.await_imports()

    def assign(
        self, process: HostedProcess, assignment: Assignment, *, files: Mapping[str, Path], deadline: float
    ) -> None:
        """Hand a process its assignment; see `Host`."""
        assert isinstance(process, RoleProcess)
        write_assignment(assignment, process.stdin, deadline=deadline)

    def close(self) -> None:
        """End what is left of its roles, and the servers that they are forks of."""
        self._servers.close()

    def __enter__(self) -> "LocalHost":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"LocalHost({self.name} at {self.address})"
