"""`blame`: errors of the user's own code, in words that name their line."""

import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..errors import BadInput

OWN = tuple(f"{Path(__file__).parent.parent / name}/" for name in ("models", "partition", "ps", "runtime", "tools"))


@contextmanager
def blame(code: str, what: str, *, stated: str = "", fix: str = "correct it there") -> Iterator[None]:
    """Turn whatever the user's own code raises, which `what` describes, into BadInput that names its line.

    stated: the error code for a TaskError, which says itself what is wrong.
    """
    from ..models.task import TaskError

    try:
        yield
    except TaskError as error:
        raise BadInput(stated or code, error.facts, fix=error.fix or fix) from error
    except (Exception, SystemExit) as error:
        raise BadInput(code, f"{what} fails{locate(error)}: {describe_error(error)}", fix=fix) from error


def locate(error: BaseException) -> str:
    """Return the innermost line of the user's own code in a traceback, as part of a sentence."""
    if isinstance(error, SyntaxError) and error.filename:
        return f" at {error.filename}:{error.lineno}"
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not _is_foreign(f.filename)]
    own = [f for f in frames if "-packages" not in f.filename] or frames  # the user's own code may be installed, too
    return f" at {own[-1].filename}:{own[-1].lineno} ({(own[-1].line or '').strip()})" if own else ""


def _is_foreign(file: str) -> bool:
    """Return whether a source file is part of cutset, of torch or of Python."""
    import torch

    python = file.startswith(sysconfig.get_path("stdlib")) and "-packages" not in file
    return python or file.startswith((*OWN, "<", str(Path(torch.__file__).parent)))


def describe_error(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__


def with_article(value: Any) -> str:
    """Return the words for a value of some type."""
    name = type(value).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"
