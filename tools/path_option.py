"""Paths as options of commands: what the system could not take as a name is refused before anything is done with it."""

import os
from pathlib import Path
from typing import Any

import click

from ..errors import UsageError

MAX_NAME, MAX_PATH = 255, 4095  # bytes, of Linux


class PathOption(click.Path):
    """The type of an option or argument that names a file or folder. may_be_folder: else a folder is refused."""

    def __init__(self, *, may_be_folder: bool = True) -> None:
        super().__init__(dir_okay=may_be_folder, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path; UsageError if no file can have this name."""
        if isinstance(value, str):
            require_path(param.opts[0] if param is not None else "the path", value)
            if isinstance(param, click.Option) and value.startswith("--"):
                facts = f"{param.opts[0]} is followed by {value}, an option, where its value should be"
                raise UsageError("E233", facts, fix=f"{param.opts[0]} VALUE; ./{value} for a file of that name")
        return super().convert(value, param, ctx)


def require_path(what: str, text: str) -> None:
    """Raise UsageError where no file can have a name. what: of the option that gives it."""
    require_utf8(what, text)
    longest = max(len(name.encode()) for name in text.split(os.sep))
    if not text or longest > MAX_NAME or len(text.encode()) > MAX_PATH:
        found = f"a name of {longest} bytes, {len(text.encode())} with its folders" if text else "empty"
        facts = f"{what} is {found}; a file's name has 1 to {MAX_NAME}, {MAX_PATH} with its folders"
        raise UsageError("E233", facts, fix="another name")


def require_utf8(what: str, text: str) -> None:
    """Raise UsageError where a text has bytes that are not UTF-8, as a file's name may: no message takes it."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UsageError("E231", f"{what} is not UTF-8: {text!a}", fix="a name in UTF-8") from error
