"""Steps of plain torch beside processes that only wait: what the ends of waits cost a step by themselves.

A process that waits takes a core at the end of every wait, for a moment, and all threads of a step wait for the one
that had it. Nothing here is read, collated or sent, so its step is shorter than one that is fed; its waits are, too,
and their ends count for more. What it shows of the others is the time lost at each wait, not their ratio.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import msgspec
from torch.utils.data import default_collate

from ....runtime.channel.channel import Channel
from ....runtime.hosts.heartbeat import RoleProgress
from ...task.load_task import TaskSpec, load_task
from .plain_loader import WARM_UP, make_step, run_loop

BARE_WAITS_ENTRY = "cutset.tools.bench.training.bare_waits:train_beside_waits"
AHEAD = 2  # batches that each process is asked for before the first is taken, as by torch's DataLoader

# For each byte of its input, a batch of waits and a byte of output; it ends with its input, that is with who asks.
_WAIT = """
import os, sys, time
waits, seconds = int(sys.argv[1]), float(sys.argv[2])
while os.read(0, 1):
    for _ in range(waits):
        time.sleep(seconds)
    os.write(1, b".")
"""


class BareWaitsSetup(msgspec.Struct, frozen=True):
    """processes: that wait. seconds: of each wait, one for each sample; 0 for no waits. lr: the rate of SGD."""

    spec: TaskSpec
    processes: int
    seconds: float
    lr: float


def train_beside_waits(channel: Channel, setup: Any, progress: RoleProgress) -> float:
    """Train for as many steps as an epoch has, with one batch; return samples/s after the first steps."""
    config = msgspec.convert(setup, BareWaitsSetup)
    task = load_task(config.spec)
    assert task.data is not None
    dataset = task.data("train")
    inputs, targets = default_collate([dataset[number] for number in range(task.batch)])
    step, steps, began = make_step(task, config.lr), len(dataset) // task.batch, time.perf_counter()
    waiting = waiting_processes(config.processes, task.batch, config.seconds)
    with waiting if config.seconds else nullcontext(lambda: None) as await_batch:
        for number in range(steps):
            if number == WARM_UP:
                began = time.perf_counter()
            await_batch()
            step(inputs, targets)
            progress.value = number
        return (steps - WARM_UP) * task.batch / (time.perf_counter() - began)


@contextmanager
def waiting_processes(count: int, waits: int, seconds: float) -> Iterator[Callable[[], None]]:
    """Run processes that make batches of waits ahead. Yields what waits for the next batch, and asks for one more."""
    asked, ask = os.pipe()
    taken, made = os.pipe()
    command = [sys.executable, "-I", "-c", _WAIT, str(waits), repr(seconds)]
    processes = [subprocess.Popen(command, stdin=asked, stdout=made) for _ in range(count)]
    os.close(asked)
    os.close(made)
    try:
        os.write(ask, b"." * AHEAD * count)

        def await_batch() -> None:
            if not os.read(taken, 1):
                raise RuntimeError("the processes that wait have ended")
            os.write(ask, b".")

        yield await_batch
    finally:
        os.close(ask)
        for process in processes:
            process.wait()
        os.close(taken)


def measure_bare_waits(spec: TaskSpec, seconds: float, *, processes: int, threads: int, lr: float) -> float:
    """Return the samples/s of such steps in a process of their own, with so many threads for the model."""
    return run_loop(BARE_WAITS_ENTRY, BareWaitsSetup(spec, processes, seconds, lr), threads=threads)
