"""`Conditions`: the machine, the versions and the sources with which something was measured."""

import hashlib
from pathlib import Path

import msgspec

from ....runtime.hosts.versions import read_memory
from ...analysis.results_table import list_versions
from ...measured.saved_probe import make_key

ROOT = Path(__file__).resolve().parents[3]
FOLDERS = ("models", "partition", "ps", "runtime", "tools")


class Conditions(msgspec.Struct, frozen=True):
    """What numbers depend on. sources: the digest of the modules of cutset."""

    cpu: str
    cores: int
    memory_bytes: int
    versions: dict[str, str]
    sources: str

    def is_same_machine(self, other: "Conditions") -> bool:
        """Return whether both have the same processor, with as many cores."""
        return (self.cpu, self.cores) == (other.cpu, other.cores)

    def describe_machine(self) -> str:
        """Return the processor and its cores."""
        return f"{self.cpu}, {self.cores} {'core' if self.cores == 1 else 'cores'}"

    def describe_versions(self) -> str:
        """Return the versions in one line."""
        return ", ".join(f"{name} {version}" for name, version in self.versions.items())


def read_conditions() -> Conditions:
    """Return the conditions of this process."""
    key = make_key(1)
    return Conditions(key.cpu, key.cores, read_memory(), list_versions(), _digest_sources())


def _digest_sources() -> str:
    digest = hashlib.sha256()
    for path in sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")):
        digest.update(f"{path.relative_to(ROOT)}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
