"""What a process of its own does with one entry, and what became of it."""

import os
import resource
from multiprocessing.connection import Connection

import torch

from cutset.runtime.hosts.failure_report import out_of_memory_error

from .examination import describe_error, examine
from .plain import OutsideTheSweepError, find_subject
from .registry import list_trials
from .selection import Entry


def run_entry(entry: Entry, machines: tuple[int, ...], memory_bytes: int, out: Connection) -> None:
    """Examine an entry, and send facts as they become known; the last has an outcome."""
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    for stream in (1, 2):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream)  # libraries warn a lot
    torch.set_num_threads(1)
    try:
        out.send({"stage": "plain"})
        subject = find_subject(list_trials(entry))
        out.send({"says": subject.says, "dtype": str(subject.dtype).removeprefix("torch.")})
        examine(subject, machines=machines, tell=out.send)
    except OutsideTheSweepError as error:
        out.send({"outcome": "outside", "message": str(error)})
    except BaseException as raised:  # of torch, the library or cutset: all of them are results
        # All machines of a cut compute in this one process; in a run the launcher says it in these words too.
        error = out_of_memory_error(raised, entry.key) or raised
        code = getattr(error, "code", "")
        out.send({"outcome": "refused" if code else "error", **describe_error(error)})
    else:
        out.send({"outcome": "done"})
