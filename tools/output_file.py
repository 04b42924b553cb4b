"""The files that commands write where the user names them (-o, --html, --svg): never over anything else of the user's.

What is replaced is a file of the same kind that cutset has written, known by how it begins, or an empty one.
"""

import os
import re
import stat
from itertools import count
from pathlib import Path

from ..errors import UsageError
from ..partition.placement.placement_file import BEGINNING
from ..whole_file import write_whole

CLUSTER_MARK, TABLE_MARK = "# Measured by cutset probe", "<!-- Made by cutset bench -->"
FIGURE_DATA_MARK, MEASURED_MARK = "figure of cutset bench", "measured by cutset bench"
PLACEMENT, PAGE, PICTURE, CLUSTER, TABLE = "placement", "page", "picture", "cluster file", "table"  # kinds of files
FIGURE_DATA, MEASURED = "figure's data", "file of measurements"

_BEGINNINGS = {
    PLACEMENT: BEGINNING,
    PAGE: re.compile(rb"<!doctype html>.*<title>cutset: ", re.DOTALL),
    PICTURE: re.compile(rb'<svg [^>]*data-maker="cutset"'),
    CLUSTER: re.compile(re.escape(CLUSTER_MARK.encode())),
    TABLE: re.compile(re.escape(TABLE_MARK.encode())),
    FIGURE_DATA: re.compile(rb'\{\s*"' + re.escape(FIGURE_DATA_MARK.encode())),
    MEASURED: re.compile(rb'\{\s*"' + re.escape(MEASURED_MARK.encode())),
}
_BEGINNING_BYTES = 4096


def check_output(path: Path, kind: str) -> Path:
    """Return where a file of this kind is written, which is `path` unless that is a link to such a file.

    Raises UsageError where something else is there (E232), or it cannot be written (E222). Commands call it before they
    compute anything.
    """
    target = path
    try:
        if not path.parent.is_dir():
            raise UsageError(
                "E222", f"cannot write {path}: there is no folder {path.parent}", fix="name a folder that exists"
            )
        if path.is_symlink():
            target = Path(os.path.realpath(path))
            if not _is_ours(target, kind):
                raise _refuse(path, f"a symbolic link to {target}", kind)
        elif os.path.lexists(path) and not _is_ours(path, kind):
            raise _refuse(path, _describe_file(path), kind)
    except OSError as error:
        raise _write_error(path, error) from error
    return target


def write_output(path: Path, text: str, kind: str) -> None:
    """Write a file of this kind, whole or not at all; UsageError as of `check_output`."""
    target = check_output(path, kind)
    try:
        write_whole(target, text)
    except OSError as error:
        raise _write_error(path, error) from error


def _is_ours(path: Path, kind: str) -> bool:
    """Return whether a path is of a regular file that is empty or begins as those that cutset writes."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        begin = file.read(_BEGINNING_BYTES)
    return not begin or _BEGINNINGS[kind].match(begin) is not None


def _describe_file(path: Path) -> str:
    """Return what is at a path, with its article."""
    mode = path.lstat().st_mode
    kinds = {stat.S_IFDIR: "a folder", stat.S_IFREG: "a file that cutset has not written"}
    return kinds.get(stat.S_IFMT(mode), "a device, a pipe or a socket")


def _refuse(path: Path, found: str, kind: str) -> UsageError:
    is_device = not path.is_symlink() and (path.is_char_device() or path.is_block_device())
    near = Path(path.name) if is_device else path  # beside a device there are none
    others = (near.with_name(f"{near.stem[:100]}-{number}{near.suffix[:20]}") for number in count(2))
    free = next(other for other in others if not os.path.lexists(other))
    return UsageError("E232", f"{path} is {found}; a {kind} does not replace it", fix=f"name another file: {free}")


def _write_error(path: Path, error: OSError) -> UsageError:
    return UsageError("E222", f"cannot write {path}: {error.strerror}", fix="name another file")
