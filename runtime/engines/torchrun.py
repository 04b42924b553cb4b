"""The engine env: processes that torchrun, or whatever else sets RANK and its like, has started on all machines.

All run the same command. That of rank 0 is the launcher, with an agent beside it; the others become agents.
"""

import contextlib
import hashlib
import os
import socket
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from ...errors import UsageError
from ..hosts.remote_host import AGENT
from ..joining.door import JOIN_S, Door
from ..joining.join import join
from ..joining.join_key import JoinKey, make_join_key, read_join_key, write_join_key
from .agent_command import AgentCommand
from .joined_hosts import open_joined
from .open_hosts import Opened, check_enough

_AGAIN_S = 0.1


class TorchrunEngine:
    """The processes of a torchrun; see `Engine`. A machine is one of them, called rank0, rank1, ...

    key_file: with which they find each other; where all are on one machine, None will do. Raises UsageError where the
    environment is not that of such a process.
    """

    def __init__(self, name: str, key_file: Path | None, environ: Mapping[str, str] = os.environ) -> None:
        self.name, self._environ = name, environ
        self.rank, self.size = self._read_number("RANK"), self._read_number("WORLD_SIZE")
        self._key_file = key_file
        if key_file is None and self._read_number("LOCAL_WORLD_SIZE") != self.size:
            fix = "cutset host --new-key FILE, copy it to the same path on all machines, and --on env:FILE"
            raise UsageError("E297", f"--on {name}: processes on other machines need a key", fix=fix)

    @contextmanager
    def open(self, wanted: int, *, least: int) -> Iterator[Opened]:
        """Start an agent here and wait for those of the other processes; see `Engine`."""
        check_enough(self.name, "torchrun", range(self.size), least, fix=f"--nproc-per-node={least}")
        address = self._find_address()
        key = make_join_key(address, 0) if self._key_file is None else read_join_key(self._key_file)
        with Door(key.door_keys(self.size), address, key.port) as door, self._published(key, door):
            names = {str(rank): f"rank{rank}" for rank in range(1, self.size)}
            own = {"rank0": partial(AgentCommand, "rank0", (sys.executable, *AGENT))}
            with open_joined(door, names, launcher=address, others=own) as opened:
                yield opened

    def join(self) -> None:
        """Be an agent of the launcher, in a process of another rank, until it has ended."""
        key = self._await_key()
        address = key.address if self._key_file is None else self._find_address()
        join(f"tcp://{address}:{key.port}", key.make_pass(self.rank))

    @contextmanager
    def _published(self, key: JoinKey, door: Door) -> Iterator[None]:
        """Have the key where processes on this machine find it, while entered."""
        if self._key_file is not None:
            yield
            return
        path = self._local_key_file()
        port = int(door.endpoint.rpartition(":")[2])
        with contextlib.suppress(FileNotFoundError):
            path.unlink()  # of one that was killed
        write_join_key(JoinKey(key.secret, key.address, port, key.made_at), path)
        try:
            yield
        finally:
            path.unlink(missing_ok=True)

    def _await_key(self) -> JoinKey:
        if self._key_file is not None:
            return read_join_key(self._key_file)
        path, deadline = self._local_key_file(), time.monotonic() + JOIN_S
        while not path.exists():
            if time.monotonic() > deadline:
                raise UsageError(
                    "E297", f"--on {self.name}: rank 0 has not begun in {JOIN_S:g} s", fix="see its output"
                )
            time.sleep(_AGAIN_S)  # no event tells of a file that is to come
        return read_join_key(path)

    def _local_key_file(self) -> Path:
        """Where processes of this torchrun look for the key: a file of the user's, named after the rendezvous."""
        parts = [self._environ.get(name, "") for name in ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID")]
        name = hashlib.blake2b("\n".join([str(os.geteuid()), *parts]).encode(), digest_size=12).hexdigest()
        return Path(tempfile.gettempdir()) / f"cutset-{name}.key"

    def _find_address(self) -> str:
        name = self._environ.get("MASTER_ADDR", "127.0.0.1")
        try:
            return socket.gethostbyname(name)
        except OSError as error:
            facts = f"--on {self.name}: MASTER_ADDR {name} has no address: {error.strerror}"
            raise UsageError("E297", facts, fix="name a machine that this one knows") from error

    def _read_number(self, name: str) -> int:
        try:
            return int(self._environ[name])
        except (KeyError, ValueError) as error:
            facts = f"--on {self.name}: {name} is not set to a number in the environment"
            raise UsageError("E297", facts, fix="torchrun --nproc-per-node=3 --no-python cutset train ...") from error

    def __repr__(self) -> str:
        return f"TorchrunEngine({self.name}, rank {self.rank} of {self.size})"
