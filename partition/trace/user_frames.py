"""Finds the line of the model's own code, and the modules around it, that Python runs at this moment."""

import os
import sys
import sysconfig
from dataclasses import dataclass
from types import FrameType

import torch
from torch import nn

FOREIGN = (os.path.dirname(torch.__file__), os.path.dirname(os.path.dirname(__file__)), "<")
_TYPED = ("<stdin>", "<ipython-input", "<python-input")  # into an interpreter
_LIBRARY = sysconfig.get_path("stdlib")


@dataclass(frozen=True)
class CodeLine:
    """A line of the model's code, as "net.py:12", and the ids of the modules whose methods run, the innermost first."""

    line: str
    modules: tuple[int, ...]


def find_code_line(frame: FrameType | None = None) -> CodeLine:
    """Return the place that runs: in `frame`, or by default where this is called."""
    at: FrameType | None = frame or sys._getframe(1)
    line, modules = "", list[int]()
    while at is not None:
        line = line or (format_line(at) if is_users(at) else "")
        owner = at.f_locals.get("self")
        if isinstance(owner, nn.Module) and id(owner) not in modules:
            modules.append(id(owner))
        at = at.f_back
    return CodeLine(line, tuple(modules))


def is_users(frame: FrameType) -> bool:
    """Whether a frame is of code that is not Python's, torch's or this package's."""
    return is_users_file(frame.f_code.co_filename)


def is_users_file(file: str) -> bool:
    """Whether a source file is not Python's, torch's or of this package."""
    if file.startswith(_TYPED):
        return True
    in_library = file.startswith(_LIBRARY) and "-packages" not in file
    return not in_library and not file.startswith(FOREIGN)


def format_line(frame: FrameType) -> str:
    """Return the line that a frame is at, as "net.py:12"."""
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
