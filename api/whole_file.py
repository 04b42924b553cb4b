"""Writes small files whole or not at all, so that neither a full disk nor a killed process leaves half of one."""

import contextlib
import os
import secrets
from pathlib import Path

PREFIX, SUFFIX = ".cutset-", ".tmp"  # of the name that a file has until it is complete


def write_whole(path: Path, text: str) -> None:
    """Write a text file, which replaces the one at `path` once all of it is on the disk. Raises OSError.

    A symbolic link at `path` is replaced, not followed.
    """
    temporary = path.parent / f"{PREFIX}{secrets.token_hex(8)}{SUFFIX}"
    file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        with os.fdopen(file, "w", encoding="utf-8") as opened:
            opened.write(text)
            opened.flush()
            os.fsync(opened.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):  # the first error is the one to tell
            temporary.unlink()
        raise
