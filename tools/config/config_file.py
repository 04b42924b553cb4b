"""config.json of a run folder: the options that the run was started with."""

import json
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ...errors import BadInput, UsageError
from ...ps.methods.registry import AnyMethod
from ...ps.optimizers.rates import RatedOptimizer
from ...ps.optimizers.schedule import AnySchedule
from ...ps.slices.compression import AnyCompression
from ...whole_file import write_whole
from ..run_folder import CONFIG, PLACEMENT
from .run_config import RunConfig

if TYPE_CHECKING:
    from collections.abc import Mapping

OWN_KEYS = {"task", "method", "replicas", "shards", "checkpoint_every", "out"}  # by which a record is recognised
OBJECTS: "Mapping[str, Any]" = {
    "method": AnyMethod,
    "optimizer": RatedOptimizer,
    "lr_schedule": AnySchedule,
    "compress": AnyCompression,
}


def save_config(config: RunConfig, folder: Path | None = None) -> Path:
    """Write the options of a run into a folder, by default its own, and return the path; UsageError if that fails.

    A placement that was passed as an object is recorded by its file in the run folder.
    """
    path = (folder or config.folder) / CONFIG
    plain = {one.name: _to_plain(config, one.name) for one in fields(config)}
    try:
        write_whole(path, json.dumps(plain, indent=1) + "\n")
    except OSError as error:
        raise UsageError("E222", f"cannot write {path}: {error}", fix="--out FOLDER with enough space") from error
    return path


def is_config(path: Path) -> bool:
    """Return whether a file is a record of options that cutset has written, of this version or another."""
    try:
        plain = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(plain, dict) and plain.keys() >= OWN_KEYS


def load_config(path: Path) -> RunConfig:
    """Read the options of a run from its folder or from the file itself; BadInput if they cannot be read."""
    path = path / CONFIG if path.is_dir() else path
    try:
        plain = json.loads(path.read_text(encoding="utf-8"))
        options = {name: _from_plain(name, value) for name, value in plain.items()}
        return RunConfig(**options)
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise BadInput(
            "E347", f"{path} holds no readable options of a run: {error}", fix="name a run folder"
        ) from error


def _to_plain(config: RunConfig, name: str) -> Any:
    value = getattr(config, name)
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, tuple):
        return list(value)
    if isinstance(value, Path):
        return str(value)
    if name == "placement":
        return str(config.folder / PLACEMENT)
    return msgspec.to_builtins(value)


def _from_plain(name: str, value: Any) -> Any:
    return msgspec.convert(value, type=OBJECTS[name]) if isinstance(value, dict) else value
