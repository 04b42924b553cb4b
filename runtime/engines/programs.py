"""`run_program`: runs a program of an engine, as scontrol or kubectl, and returns what it prints."""

import subprocess
from collections.abc import Sequence

from ...errors import UsageError


def tidy_up(engine: str, command: Sequence[str], *, timeout_s: float, given: str = "") -> list[str]:
    """Run a command that removes what an engine has made; return a sentence where it fails, which is no error of a run.

    Ctrl-C does not reach it.
    """
    try:
        run_program(engine, command, timeout_s=timeout_s, given=given, apart=True)
    except UsageError as error:
        return [f"something may be left: {error.facts}; see `{' '.join(command)}`"]
    return []


def run_program(engine: str, command: Sequence[str], *, timeout_s: float, given: str = "", apart: bool = False) -> str:
    """Return the standard output of a command. given: its standard input. apart: in a session of its own.

    Raises UsageError, which names the engine, where there is no such program, it fails, or it takes too long.
    """
    try:
        done = subprocess.run(
            command,
            input=given,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
            start_new_session=apart,
        )
    except OSError as error:
        facts = f"--on {engine}: {command[0]!r} cannot be run: {error.strerror}"
        raise UsageError("E297", facts, fix=f"install {command[0]}, or run this where it is") from error
    except subprocess.TimeoutExpired as error:
        facts = f"--on {engine}: {' '.join(command[:3])} has not ended in {timeout_s:g} s"
        raise UsageError("E297", facts, fix="see what it waits for") from error
    if done.returncode:
        printed = (done.stderr.strip() or done.stdout.strip())[-400:]
        facts = f"--on {engine}: {' '.join(command[:3])} failed: {printed}"
        raise UsageError("E297", facts, fix=f"see that {command[0]} works here")
    return done.stdout
