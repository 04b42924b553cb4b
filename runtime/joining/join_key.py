"""The file with which machines join by hand or under torchrun: one secret, from which both sides make their keys."""

import hashlib
import os
import secrets
import stat
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec
import zmq
from zmq.utils import z85

from ...errors import UsageError
from ..channel.curve import Keys
from ..hosts.versions import read_clock
from .join import Pass

VALID_S = 600.0
DEFAULT_PORT = 47017
_LAUNCHER = "launcher"


@dataclass(frozen=True)
class JoinKey:
    """secret: 64 hexadecimal digits. address, port: at which the launcher listens. made_at: seconds since 1970."""

    secret: str
    address: str
    port: int
    made_at: float

    def door_keys(self, machines: int) -> Keys:
        """Return the launcher's pair, and the public keys of so many machines, by their numbers."""
        public, secret = self._make_pair(_LAUNCHER)
        return Keys(public, secret, {str(number): self._make_pair(str(number))[0] for number in range(machines)})

    def make_pass(self, number: int) -> Pass:
        """Return what lets a machine in."""
        return Pass(self._make_pair(_LAUNCHER)[0], *self._make_pair(str(number)))

    def _make_pair(self, owner: str) -> tuple[str, str]:
        """Derive a pair: whoever has the file has all of them. A secret key of CURVE is any 32 bytes."""
        key = hashlib.blake2b(owner.encode(), key=bytes.fromhex(self.secret), digest_size=32, person=b"cutset-join")
        secret = z85.encode(key.digest())
        return zmq.curve_public(secret).decode(), secret.decode()

    def __repr__(self) -> str:
        return f"JoinKey({self.address}:{self.port})"


def make_join_key(address: str, port: int = DEFAULT_PORT) -> JoinKey:
    """Make a new key."""
    return JoinKey(secrets.token_hex(32), address, port, read_clock())


def write_join_key(key: JoinKey, path: Path) -> None:
    """Write a key to a new file that only its owner may read. UsageError where the file is there."""
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.") as file:
            os.fchmod(file.fileno(), 0o400)
            file.write(msgspec.json.encode(asdict(key)))
            file.flush()
            os.link(file.name, path)  # whole, and never over another
    except OSError as error:
        facts = f"no key can be written to {path}: {error.strerror}"
        raise UsageError("E297", facts, fix="name a new file in a folder of yours") from error


def read_join_key(path: Path) -> JoinKey:
    """Read a key. UsageError where it is none, others may read it, or it is too old."""
    fix = "cutset host --new-key FILE makes one"
    try:
        with open(path, "rb", opener=_open_plainly) as file:
            status = os.fstat(file.fileno())
            key = msgspec.json.decode(file.read(4096), type=JoinKey)
        bytes.fromhex(key.secret)
    except OSError as error:
        raise UsageError("E297", f"the key {path} cannot be read: {error.strerror}", fix=fix) from error
    except (msgspec.DecodeError, ValueError) as error:
        raise UsageError("E297", f"{path} is no key", fix=fix) from error
    if (
        not stat.S_ISREG(status.st_mode)
        or status.st_mode & (stat.S_IRWXG | stat.S_IRWXO)
        or status.st_uid != os.geteuid()
    ):
        raise UsageError("E297", f"others may read the key {path}, or it is somebody else's", fix=f"{fix}; chmod 0400")
    if not -60.0 < read_clock() - key.made_at < VALID_S:
        facts = f"the key {path} is older than {VALID_S / 60:g} minutes, or this machine's clock is wrong"
        raise UsageError("E297", facts, fix=fix)
    return key


def _open_plainly(path: str, flags: int) -> int:
    """Open without following a link, and without waiting for somebody at the other end."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)
