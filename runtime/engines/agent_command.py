"""`AgentCommand`: runs an agent by a command, as ssh, srun or kubectl, whose standard input and output lead to it."""

import contextlib
import subprocess
import tempfile
from collections.abc import Sequence
from typing import IO

from ...errors import UsageError
from ..hosts.role_process import read_last_lines


class AgentCommand:
    """An `AgentStream` of a command. name: of the host. Raises UsageError where there is no such program."""

    def __init__(self, name: str, command: Sequence[str]) -> None:
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115, closed by `end`
        try:
            self._process = subprocess.Popen(
                tuple(command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                bufsize=0,
                start_new_session=True,
            )
        except OSError as error:
            self._errors.close()
            facts = f"host {name} cannot be used: {command[0]!r} cannot be run: {error.strerror}"
            raise UsageError("E290", facts, fix=f"install {command[0]}") from error
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self.pid = self._process.pid
        self.reading, self.writing = self._process.stdout.fileno(), self._process.stdin.fileno()

    def describe_trouble(self) -> str:
        """Return what the command has printed; see `AgentStream`."""
        printed = read_last_lines(self._errors)
        return f"it printed:\n{printed}" if printed else ""

    def hang_up(self) -> None:
        """Close its standard input and output."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        self._process.stdout.close()

    def end(self, wait_s: float) -> None:
        """Wait for its end, so long at most, and kill it."""
        try:
            self._process.wait(wait_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._errors.close()

    def __repr__(self) -> str:
        return f"AgentCommand({self._process.args!r})"
