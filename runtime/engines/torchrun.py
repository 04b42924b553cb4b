"""The engine env: processes that torchrun, or whatever else sets RANK and its like, has started on all machines.

All run the same command. That of rank 0 is the launcher, with an agent beside it; the others become agents.
"""

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

from ...errors import NetworkError, UsageError
from ..hosts.remote_host import AGENT
from ..joining.door import Door
from ..joining.join import REFUSED_CODE, join
from ..joining.join_key import JoinKey, make_join_key, read_join_key, write_join_key
from .agent_command import AgentCommand
from .joined_hosts import open_joined
from .open_hosts import Opened, check_enough

PREPARE_S, KNOCK_S = 1800.0, 15.0  # for rank 0 to capture and to plan; whoever waits ends with torchrun, too
_AGAIN_S = 0.1


class TorchrunEngine:
    """The processes of a torchrun; see `Engine`. A machine is one of them, called rank0, rank1, ...

    key_file: with which they find each other; where all are on one machine, None will do. Raises UsageError where the
    environment is not that of such a process.
    """

    def __init__(self, name: str, key_file: Path | None, environ: Mapping[str, str] = os.environ) -> None:
        self.name, self._environ = name, environ
        self.notices = list[str]()
        self.rank, self.size = self._read_number("RANK"), self._read_number("WORLD_SIZE")
        self._key_file = key_file
        if key_file is None and self._read_number("LOCAL_WORLD_SIZE") != self.size:
            fix = "cutset host --new-key FILE, copy it to the same path on all machines, and --on env:FILE"
            raise UsageError("E297", f"--on {name}: processes on other machines need a key", fix=fix)

    @contextmanager
    def open(self, wanted: int, *, least: int) -> Iterator[Opened]:
        """Start an agent here and wait for those of the other processes; see `Engine`."""
        check_enough(self.name, "torchrun", range(self.size), least, fix=f"--nproc-per-node={least}")
        key = make_join_key(self._find_address(), 0) if self._key_file is None else read_join_key(self._key_file)
        address = key.address
        with Door(key.door_keys(self.size), address, key.port) as door, self._published(key, door):
            names = {str(rank): f"rank{rank}" for rank in range(1, self.size)}
            own = {"rank0": partial(AgentCommand, "rank0", (sys.executable, *AGENT))}
            with open_joined(door, names, notices=self.notices, launcher=address, others=own) as opened:
                yield opened

    def join(self) -> None:
        """Be an agent of the launcher, in a process of another rank, until it has ended."""
        path, deadline = self._key_file or self._local_key_file(), time.monotonic() + PREPARE_S
        while True:
            try:
                key = read_join_key(path)
                join(f"tcp://{key.address}:{key.port}", key.make_pass(self.rank), wait_s=KNOCK_S)
            except (UsageError, NetworkError) as error:
                # Rank 0 has yet to open the door, or to write the key: what is there is of a torchrun before.
                final = isinstance(error, UsageError) or error.code == REFUSED_CODE
                if time.monotonic() > deadline or (self._key_file is not None and final):
                    raise
                time.sleep(_AGAIN_S)  # no event tells of a file that is to come
            else:
                return

    @contextmanager
    def _published(self, key: JoinKey, door: Door) -> Iterator[None]:
        """Have the key where processes on this machine find it, while entered."""
        if self._key_file is not None:
            yield
            return
        path = self._local_key_file()
        if path.is_file() and path.stat().st_uid == os.geteuid():
            path.unlink()  # of a torchrun that was killed
        port = int(door.endpoint.rpartition(":")[2])
        write_join_key(JoinKey(key.secret, key.address, port, key.made_at), path)
        try:
            yield
        finally:
            path.unlink(missing_ok=True)

    def _local_key_file(self) -> Path:
        """Where processes of this torchrun look for the key: a file of the user's, named after the rendezvous."""
        named = ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT")
        parts = [str(os.geteuid()), *(self._environ.get(name, "") for name in named)]
        name = hashlib.blake2b("\n".join(parts).encode(), digest_size=12).hexdigest()
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
