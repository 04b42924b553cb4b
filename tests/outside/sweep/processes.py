"""Examines entries in processes of their own, some at a time, each with a limit of time and memory."""

import multiprocessing
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from .one_model import run_entry
from .selection import Entry


@dataclass
class _Running:
    entry: Entry
    process: BaseProcess
    inbox: Connection
    end: float
    begin: float = field(default_factory=time.monotonic)
    facts: dict[str, Any] = field(default_factory=dict)


def examine_all(
    entries: Sequence[Entry], *, machines: tuple[int, ...], jobs: int, timeout_s: float
) -> Iterator[dict[str, Any]]:
    """Yield the facts of each entry, in the order in which they are ready. Processes share the machine's memory."""
    memory_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // jobs
    context = multiprocessing.get_context("fork")  # of a process that has the libraries imported
    waiting, running = list(reversed(entries)), dict[Connection, _Running]()
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                entry = waiting.pop()
                inbox, outbox = context.Pipe(duplex=False)
                process = context.Process(target=run_entry, args=(entry, machines, memory_bytes, outbox), daemon=True)
                process.start()
                outbox.close()
                running[inbox] = _Running(entry, process, inbox, time.monotonic() + timeout_s)
            first = min(one.end for one in running.values())
            ready = wait(list(running), timeout=max(0.0, first - time.monotonic()))
            for inbox in [*running]:
                one = running[inbox]
                if inbox in ready and _read(one):
                    continue
                if inbox not in ready and time.monotonic() < one.end:
                    continue
                del running[inbox]
                yield _finish(one, timed_out=inbox not in ready)
    finally:  # also where the sweep is stopped
        for one in running.values():
            one.process.kill()
            one.process.join()


def _read(one: _Running) -> bool:
    """Take in a message; return False at the end."""
    try:
        one.facts.update(one.inbox.recv())
    except EOFError:
        return False
    return True


def _finish(one: _Running, *, timed_out: bool) -> dict[str, Any]:
    if timed_out:
        one.process.kill()
        one.facts["outcome"] = "timeout"
    one.process.join()
    one.inbox.close()
    if "outcome" not in one.facts:
        one.facts |= {"outcome": "died", "message": f"the process ended with {one.process.exitcode}"}
    entry = one.entry
    own = {"key": entry.key, "library": entry.library, "family": entry.family, "task": entry.task}
    return own | one.facts | {"total_s": time.monotonic() - one.begin}
