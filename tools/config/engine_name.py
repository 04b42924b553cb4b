"""How an engine is named, which starts agents on other machines: "ssh:cluster.toml"."""

from pathlib import Path

from ...errors import UsageError

SSH = "ssh"


def parse_engine(name: str) -> Path:
    """Return the cluster file of an engine's name; UsageError where it is none."""
    kind, _, path = name.partition(":")
    if kind != SSH or not path:
        raise UsageError("E297", f"--on {name} names no engine", fix="--on ssh:cluster.toml")
    return Path(path)


def check_engine(flag: str, name: str) -> None:
    """Raise UsageError where an option's value names no engine."""
    parse_engine(name)
