"""`Failure`: what a role says of its own end, as plain data, and the error that it becomes at the launcher."""

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
# torch has no class of its own for it: "DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"
_NO_MEMORY = re.compile(r"can't allocate memory|not enough memory|cannot allocate memory|unable to mmap", re.IGNORECASE)
_BYTES = re.compile(r"(\d+) bytes")


@dataclass(frozen=True)
class Failure:
    """What a role said of its own end. code is empty for an exception outside the tree of errors: a bug."""

    code: str
    exit_code: int
    facts: str
    fix: str
    traceback: str

    def error(self, name: str) -> CutsetError:
        """The same as an error of the role `name`."""
        if not self.code:
            return ProcessLost("E605", f"{name} raised {self.facts}\n{self.traceback.rstrip()}", fix=self.fix)
        facts = self.facts if name in self.facts else f"{name}: {self.facts}"
        error = _CLASSES.get(self.exit_code, CutsetError)(self.code, facts, fix=self.fix)
        error.add_note(f"in {name}:\n{self.traceback.rstrip()}")
        return error


def failure_of(error: BaseException, name: str, traceback: str) -> Failure:
    """What the role `name` says when `error` has ended it."""
    said = out_of_memory(error, name) or error
    text = traceback[-TRACEBACK_CHARACTERS:]
    if isinstance(said, CutsetError):
        return Failure(said.code, said.exit_code, said.facts, said.fix, text)
    return Failure("", 1, f"{type(said).__name__}: {said}", "", text)


def out_of_memory(error: BaseException, name: str) -> ProcessLost | None:
    """What to say where the memory of the role's machine did not suffice; None where that is not what happened."""
    words = str(error)
    if not isinstance(error, MemoryError) and not (isinstance(error, RuntimeError) and _NO_MEMORY.search(words)):
        return None
    asked = _BYTES.search(words)
    what = f"asked for {int(asked[1]) / 2**20:,.1f} MiB more" if asked else "asked for more"
    return ProcessLost(
        "E609",
        f"{name} ran out of memory: it {what} than its machine can give" + (f" ({words})" if words else ""),
        fix="more --machines, so that each holds less; a smaller --batch; or more --micro-batches of the same one",
    )
