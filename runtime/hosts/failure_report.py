"""`Failure`: the error that ended a role as plain data, for the way to the launcher, which makes it an error again."""

import errno
import re
from dataclasses import dataclass

from ...errors import (
    BadInput,
    CheckpointError,
    CutsetError,
    Diverged,
    Infeasible,
    NetworkError,
    ProcessLost,
    UsageError,
)

TRACEBACK_CHARACTERS = 50_000
_CLASSES: dict[int, type[CutsetError]] = {
    kind.exit_code: kind
    for kind in (UsageError, BadInput, Infeasible, NetworkError, ProcessLost, Diverged, CheckpointError)
}
# torch has no exception class for it: "DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"
_NO_MEMORY = re.compile(r"can't allocate memory|not enough memory|cannot allocate memory|unable to mmap", re.IGNORECASE)
_BYTES = re.compile(r"(\d+) bytes")


@dataclass(frozen=True)
class Failure:
    """The error that ended a role. code is empty for an exception outside the tree of errors: a bug."""

    code: str
    exit_code: int
    facts: str
    fix: str
    traceback: str

    def to_error(self, name: str) -> CutsetError:
        """Make it an error of the role `name` again, of its own class."""
        if not self.code:
            return ProcessLost("E605", f"{name} raised {self.facts}\n{self.traceback.rstrip()}", fix=self.fix)
        facts = self.facts if name in self.facts else f"{name}: {self.facts}"
        error = _CLASSES.get(self.exit_code, CutsetError)(self.code, facts, fix=self.fix)
        error.add_note(f"in {name}:\n{self.traceback.rstrip()}")
        return error


def describe_failure(error: BaseException, name: str, traceback: str) -> Failure:
    """Describe the error that has ended the role `name`."""
    cause = out_of_memory_error(error, name) or error
    text = traceback[-TRACEBACK_CHARACTERS:]
    if isinstance(cause, CutsetError):
        return Failure(cause.code, cause.exit_code, cause.facts, cause.fix, text)
    return Failure("", 1, f"{type(cause).__name__}: {cause}", "", text)


def out_of_memory_error(error: BaseException, name: str) -> ProcessLost | None:
    """The error to report where the memory of the role's machine did not suffice; None where `error` is another."""
    words = str(error)
    is_refused_by_torch = isinstance(error, RuntimeError) and _NO_MEMORY.search(words)
    is_refused_by_system = isinstance(error, OSError) and error.errno == errno.ENOMEM  # as mmap raises it
    if not (isinstance(error, MemoryError) or is_refused_by_torch or is_refused_by_system):
        return None
    request = _BYTES.search(words)
    what = f"asked for {int(request[1]) / 2**20:,.1f} MiB more" if request else "asked for more"
    return ProcessLost(
        "E609",
        f"{name} ran out of memory: it {what} than its machine can give" + (f" ({words})" if words else ""),
        fix="more --machines, so that each holds less; a smaller --batch; or more --micro-batches of the same one",
    )
