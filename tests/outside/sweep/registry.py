"""What is swept, in its order. Which models a rule chooses is written down, since finding out takes minutes."""

import hashlib
import importlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from .selection import Entry, Trial, interleave

MODULES = {
    "torchvision": "from_torchvision",
    "timm": "from_timm",
    "transformers": "from_transformers",
    "written": "from_written",
}
CHOSEN = Path(__file__).with_name("chosen.json")


def open_library(name: str) -> Any:
    """Return the module that knows the entries and trials of a library."""
    return importlib.import_module(f".{MODULES[name]}", __package__)


def list_trials(entry: Entry) -> Iterator[Trial]:
    """Yield the ways in which an entry may run."""
    found: Iterator[Trial] = open_library(entry.library).list_trials(entry)
    return found


def choose_models() -> None:
    """Read the registries by the rule, and write down what it chooses."""
    chosen = {name: [list(vars(entry).values()) for entry in open_library(name).list_entries()] for name in MODULES}
    CHOSEN.write_text(format_chosen(chosen), encoding="utf-8")


def format_chosen(chosen: dict[str, list[list[str]]]) -> str:
    """Return the text of the file: a line for each entry, so that changes show."""
    lines = (f'"{name}": [\n' + ",\n".join(map(json.dumps, rows)) + "\n]" for name, rows in chosen.items())
    return "{\n" + ",\n".join(lines) + "\n}\n"


def read_entries(libraries: Sequence[str], every: int) -> list[Entry]:
    """Return every so many of the entries of each library, in an order that is random but always the same.

    So whatever a sweep has done when it is stopped is a sample of all.
    """
    chosen = json.loads(CHOSEN.read_text(encoding="utf-8"))
    groups = ([Entry(*fields) for fields in chosen[name]] for name in libraries)
    return interleave([sorted(group, key=_shuffle)[::every] for group in groups])


def _shuffle(entry: Entry) -> bytes:
    return hashlib.sha256(entry.key.encode()).digest()
