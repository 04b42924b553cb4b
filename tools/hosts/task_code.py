"""`TaskCode`: the Python files of a user's task, which go to hosts where they are not.

The files of a task in "file.py" are those of its folder and below; of one in "pkg.module", those of the package, unless
it is installed, as it then is on all hosts. Data and other files do not travel.
"""

import importlib.util
import os
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ...errors import UsageError
from ...runtime.hosts.agent import CODE
from ..task.factory_name import parse_factory
from ..units import format_bytes

MAX_FILES, MAX_BYTES = 1000, 16 << 20
_STDLIB = Path(sysconfig.get_path("stdlib")).resolve()
_OWN = Path(__file__).resolve().parent.parent.parent


@dataclass(frozen=True)
class TaskCode:
    """files: by their paths in the folder of the run. file: of a task in "file.py", its path there, else ""."""

    files: dict[str, Path]
    file: str = ""

    def name_on_host(self, model: str, folder: str) -> str:
        """Return how a task is named on a host with this folder."""
        if not self.file:
            return model
        return f"{folder}/{self.file}{model.removeprefix(parse_factory(model).module)}"


def collect_code(model: str) -> TaskCode:
    """Return the code of a task, by its name. UsageError E299 where it is too much to be meant."""
    module = parse_factory(model).module
    if module.endswith(".py"):
        file = Path(os.path.expanduser(module)).resolve()
        return TaskCode(_collect(file.parent, file.parent, model), f"{CODE}/{file.name}")
    found = importlib.util.find_spec(module.partition(".")[0])
    places = [] if found is None else [*(found.submodule_search_locations or []), found.origin or ""]
    top = Path(places[0]).resolve() if places and places[0] else None
    if top is None or not top.exists() or _is_installed(top):
        return TaskCode({})
    return TaskCode(_collect(top, top.parent, model) if top.is_dir() else {f"{CODE}/{top.name}": top})


def _is_installed(path: Path) -> bool:
    own = any(path.is_relative_to(root) for root in (_STDLIB, _OWN))
    return own or not {"site-packages", "dist-packages"}.isdisjoint(path.parts)


def _collect(folder: Path, root: Path, model: str) -> dict[str, Path]:
    files, size = dict[str, Path](), 0
    for file in _walk(folder):
        files[f"{CODE}/{file.relative_to(root)}"] = file
        size += file.stat().st_size
        if len(files) > MAX_FILES or size > MAX_BYTES:
            most = f"{MAX_FILES} Python files and {format_bytes(MAX_BYTES)} go to other hosts at most"
            facts = f"the code of {model} is all of {folder}, which is more: {most}"
            raise UsageError("E299", facts, fix="put the task into a folder of its own")
    return files


def _walk(folder: Path) -> Iterator[Path]:
    """Yield the Python files below a folder, without hidden folders and virtual environments."""
    for path, folders, names in os.walk(folder):
        folders[:] = sorted(
            name
            for name in folders
            if not name.startswith((".", "__pycache__")) and not (Path(path) / name / "pyvenv.cfg").exists()
        )
        yield from (Path(path) / name for name in sorted(names) if name.endswith(".py"))
