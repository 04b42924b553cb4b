"""What a command puts out: its result alone on stdout, and files."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, redirect_stdout
from pathlib import Path

from ...errors import UsageError


@contextmanager
def stdout_kept(as_json: bool) -> Iterator[None]:
    """With --json, what the user's code prints goes to stderr, as stdout is the result's."""
    with redirect_stdout(sys.stderr) if as_json else nullcontext():
        yield


def write_text(path: Path, text: str) -> None:
    """Write a file; UsageError where that cannot be done."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError("E222", f"cannot write {path}: {error.strerror}", fix="name a folder that exists") from error
