"""`claim_folder`: makes a run folder this process's own for as long as a run is prepared and trains.

The folder itself is locked by flock, which ends with the process that holds it and leaves no file behind.
"""

import contextlib
import fcntl
import os
import re
import secrets
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from ...errors import UsageError
from ..config.config_file import is_config
from ..config.run_config import RunConfig
from ..path_option import require_utf8
from ..run_folder import CONFIG, LAST, MODE, RUNS, find_foreign, find_result, make_folder
from ..task.factory_name import parse_factory

MAX_LABEL = 40  # letters of a task's name in that of a folder
_NUMBERED = re.compile(r"(\d{1,9})-.*")


@contextmanager
def claim_folder(config: RunConfig) -> Iterator[Path]:
    """Make the run folder, or a new one in runs/ where none is named, and lock it; yield its path.

    Nothing that is in it changes; a new folder that stays empty is removed again. Raises UsageError where it cannot be
    made (E222), another run has it (E272), it holds the result of a run (E277), or what is not of a run (E279).
    """
    wanted = RUNS if config.out is None else follow_links(config.folder)
    require_utf8("the path of the run folder", os.path.abspath(wanted))
    made = [path for path in (wanted, *wanted.parents) if not os.path.lexists(path)]
    folder = wanted
    if config.out is None:
        folder = _make_numbered(_label(config.task_name)[:MAX_LABEL])
        made.insert(0, folder)
    lock = _lock(folder)
    try:
        _check_contents(folder, config)
        yield folder
    finally:
        with contextlib.suppress(OSError):  # it is not empty
            for path in made:
                os.rmdir(path)
        os.close(lock)


def _label(task: str) -> str:
    """Return what the folder of a run is called after: the task, or the script that keeps its own loop."""
    return Path(task).stem if task.endswith(".py") else parse_factory(task).factory


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Lock a run folder for a moment. UsageError E272 where a run trains there."""
    lock = _lock(folder)
    try:
        yield
    finally:
        os.close(lock)


def follow_links(path: Path) -> Path:
    """Return where a path leads, if there are symbolic links in it, since those may change; else as it is."""
    real = Path(os.path.realpath(path))
    return path if real == Path.cwd() / os.path.normpath(path) else real


def resumes_in_place(config: RunConfig) -> bool:
    """Return whether a run continues in the folder that it resumes from, of which it then needs all."""
    if config.resume is None or config.out is None:
        return False
    source, own = os.path.realpath(config.resume), os.path.realpath(config.out)
    return Path(source).is_relative_to(own)


def point_last(folder: Path) -> None:
    """Let runs/last lead to a folder beside it. UsageError where that fails."""
    temporary = LAST.with_name(f".cutset-{secrets.token_hex(8)}.tmp")
    try:
        temporary.symlink_to(folder.name)
        os.replace(temporary, LAST)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise UsageError("E222", f"cannot write {LAST}: {error}", fix="--out FOLDER") from error


def _make_numbered(label: str) -> Path:
    """Make a folder in runs/ whose name is the next number and a label; nobody else has it."""
    if LAST.is_dir() and not LAST.is_symlink():
        facts = f"{LAST} is a folder; it is to be a symbolic link to the last run"
        raise UsageError("E278", facts, fix=f"mv {LAST} {RUNS}/0000-{LAST.name}")
    try:
        RUNS.mkdir(exist_ok=True)
        numbers = [int(match[1]) for name in os.listdir(RUNS) if (match := _NUMBERED.fullmatch(name))]
        for number in count(1 + max(numbers, default=0)):
            folder = RUNS / f"{number:04d}-{label}"
            with contextlib.suppress(FileExistsError):  # another run was quicker
                folder.mkdir(MODE)
                return folder
    except OSError as error:
        raise UsageError("E222", f"cannot make a run folder in {RUNS}: {error}", fix="--out FOLDER") from error
    raise AssertionError("there is always a next number")


def _lock(folder: Path) -> int:
    """Lock a folder, which is made if it is not there; return its descriptor, with which the lock ends."""
    try:
        make_folder(folder)
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise UsageError("E222", f"cannot make the run folder {folder}: {error}", fix="--out FOLDER") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(descriptor), os.stat(folder)):
            return descriptor
    except FileNotFoundError:
        pass
    except BlockingIOError as error:
        os.close(descriptor)
        facts = f"another run trains in {folder}"
        raise UsageError("E272", facts, fix="--out FOLDER, another one") from error
    os.close(descriptor)
    return _lock(folder)  # whoever had it before has removed it meanwhile


def _check_contents(folder: Path, config: RunConfig) -> None:
    """Raise UsageError where a run would replace what is there and nobody has said that it may."""
    if not is_config(folder / CONFIG):
        foreign = find_foreign(folder)
        if foreign is not None:
            facts = f"the run folder {folder} has {foreign.name}, which no run of cutset has written"
            raise UsageError("E279", facts, fix="--out FOLDER, a new one")
    if resumes_in_place(config):
        if config.overwrite:
            facts = "--overwrite would remove the run that --resume continues"
            raise UsageError("E228", facts, fix="leave --overwrite out, or another --out")
        return
    found = find_result(folder)
    if found is not None and not config.overwrite:
        facts = f"{folder} holds {found.relative_to(folder)} of an earlier run"
        quoted = shlex.quote(str(folder))
        fix = f"--out FOLDER, a new one; --overwrite to remove that run; or --resume {quoted} to continue it"
        raise UsageError("E277", facts, fix=fix)
