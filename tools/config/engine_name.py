"""How an engine is named, which starts agents on other machines: "ssh:cluster.toml", "slurm:partition=short"."""

import re
from dataclasses import dataclass
from pathlib import Path

from ...errors import UsageError

SSH, SLURM, RAY, KUBERNETES, TORCHRUN, HAND = "ssh", "slurm", "ray", "k8s", "env", "join"
FORMS = "ssh:FILE, slurm[:OPTION=VALUE,...], ray[:ADDRESS], k8s:FILE, env[:KEYFILE], join:KEYFILE"
_NEED_FILE = (SSH, KUBERNETES, HAND)
_SLURM_OPTION = re.compile(r"[a-z][-a-z]*(=[^,]*)?")


@dataclass(frozen=True)
class EngineName:
    """The parts of a name. argument: a file, an address or options; "" where none is given."""

    kind: str
    argument: str

    @property
    def cluster(self) -> Path | None:
        """The cluster file that names the machines, if one does."""
        return Path(self.argument) if self.kind == SSH else None

    @property
    def options(self) -> dict[str, str]:
        """The options for salloc, by their long names."""
        pairs = [word.partition("=") for word in self.argument.split(",") if word]
        return {name: value for name, _, value in pairs}


def parse_engine(name: str) -> EngineName:
    """Return the parts of an engine's name; UsageError where it is none."""
    kind, _, argument = name.partition(":")
    known = kind in (SSH, SLURM, RAY, KUBERNETES, TORCHRUN, HAND)
    if not known or (kind in _NEED_FILE and not argument):
        raise UsageError("E297", f"--on {name} names no engine", fix=f"one of {FORMS}")
    if kind == SLURM and not all(_SLURM_OPTION.fullmatch(word) for word in argument.split(",") if word):
        raise UsageError(
            "E297", f"--on {name}: {argument!r} has no options of salloc", fix="--on slurm:partition=short"
        )
    return EngineName(kind, argument)


def check_ports(flag: str, text: str) -> None:
    """Raise UsageError where an option's value is no range of ports."""
    from ...runtime.channel.bind import parse_ports

    try:
        parse_ports(text)
    except ValueError as error:
        raise UsageError("E297", f"{flag} {error}", fix=f"{flag} 40000-40100") from error


def check_engine(flag: str, name: str) -> None:
    """Raise UsageError where an option's value names no engine."""
    parse_engine(name)
