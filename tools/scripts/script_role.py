"""The process of a user's script: it runs as `python script.py` would, with a run that `cutset.connect` finds."""

import io
import os
import runpy
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from ...errors import BadInput, CutsetError
from ...runtime.channel.channel import Channel
from ...runtime.channel.mailbox import Stopped
from ...runtime.channel.message import LAUNCHER, Message
from ...runtime.hosts.heartbeat import RoleProgress
from ..blame import blame, locate
from ..job.process_specs import Script, WorkerSpec
from .script_run import Connection, Described, Describing, ScriptRun

MAX_TEXT = 1 << 16  # characters that are passed on at once
_runs = list[ScriptRun]()  # that of this process, where a script runs in it


class DescriptionSpec(msgspec.Struct, frozen=True):
    """What the process is told that is to describe what a script prepares."""

    script: Script
    describing: Describing


def connect() -> ScriptRun:
    """Return this script's part in a run, in a script that `cutset launch` has started; in any other it is alone."""
    return _runs[0] if _runs else ScriptRun(None)


def describe_script(channel: Channel, setup: Any, progress: RoleProgress) -> Any:
    """Run a script until it prepares its model, and return what that is like as plain data."""
    spec = msgspec.convert(setup, DescriptionSpec)
    try:
        run = _run(spec.script, Connection(channel, spec.describing, progress))
    except Described as described:
        return msgspec.to_builtins(described.description)
    return run.complete()  # which raises: it has not prepared anything


def run_script(channel: Channel, spec: WorkerSpec, progress: RoleProgress) -> dict[str, Any]:
    """Run a script as a replica; what that of replica 0 prints goes to the user."""
    assert spec.script is not None
    with _passing_on(channel, is_on=spec.replica == 0):
        return _run(spec.script, Connection(channel, spec, progress)).complete()


def _run(script: Script, connection: Connection) -> ScriptRun:
    run = ScriptRun(connection)
    _runs[:] = [run]
    sys.argv = [script.path, *script.arguments]
    sys.path.insert(0, str(Path(script.path).parent))
    passing = list[BaseException]()
    with blame("E363", f"the script {os.path.basename(script.path)}"):
        try:
            runpy.run_path(script.path, run_name="__main__")
        except SystemExit as end:
            if end.code not in (None, 0):
                raise
        except BadInput as error:
            passing.append(_name_line(error))
        except (CutsetError, Stopped) as error:
            passing.append(error)
        except StopIteration:
            if not run.is_passing_over:
                raise
            facts = "the script takes a batch of a pass that was made before it was resumed, and there is none"
            fix = "next() of one generator, not of an iter() for each step: while True: yield from data"
            passing.append(BadInput("E363", facts, fix=fix))
    if passing:
        raise passing[0]
    return run


def _name_line(error: BadInput) -> BadInput:
    """Return an error with the line of the script that meets it, unless it names one, as what is blamed does."""
    return error if error.__cause__ else BadInput(error.code, f"{error.facts}{locate(error)}", fix=error.fix)


@contextmanager
def _passing_on(channel: Channel, *, is_on: bool) -> Iterator[None]:
    """Pass on what is printed, besides writing it to the log."""
    before = sys.stdout, sys.stderr
    if is_on:
        sys.stdout, sys.stderr = (_PassedOn(stream, channel) for stream in before)
    try:
        yield
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        sys.stdout, sys.stderr = before


class _PassedOn(io.TextIOBase):
    """Sends what is written to the launcher, line by line, from the thread that the channel belongs to."""

    def __init__(self, log: Any, channel: Channel) -> None:
        self._log, self._channel, self._thread, self._text = log, channel, threading.get_ident(), ""

    def write(self, text: str) -> int:
        self._log.write(text)
        if threading.get_ident() == self._thread:
            self._text += text
            if "\n" in text or "\r" in text:
                self.flush()
        return len(text)

    def flush(self) -> None:
        self._log.flush()
        if threading.get_ident() != self._thread:
            return
        while self._text:
            part, self._text = self._text[:MAX_TEXT], self._text[MAX_TEXT:]
            self._channel.send(LAUNCHER, Message("output", body={"text": part}))

    def isatty(self) -> bool:
        return False

    def fileno(self) -> int:
        return int(self._log.fileno())

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return "utf-8"
