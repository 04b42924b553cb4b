"""A real run of `train` with faults at chosen steps: signals to its processes, and links that break or swallow all."""

import contextlib
import os
import random
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from listening import Listening
from relay import Relay

from cutset.errors import CutsetError
from cutset.runtime.hosts.role_process import PROCESS_TITLE
from cutset.tools.config.run_config import RunConfig
from cutset.tools.job.prepare import prepare
from cutset.tools.train import run


@dataclass(frozen=True)
class Signal:
    """Send `number` to the process of `role` once replica 0 has done `step` steps."""

    role: str
    number: signal.Signals
    step: int


@dataclass(frozen=True)
class Break:
    """Cut the link between two roles, or let it "swallow" all, once replica 0 has done `step` steps."""

    a: str
    b: str
    how: str
    step: int


Fault = Signal | Break


@dataclass
class Outcome:
    """How a run ended, and how long after the last fault. notes: what it said of restarts."""

    error: CutsetError | None = None
    result: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    happened: list[Fault] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def random_fault(seed: int, roles: Sequence[str], steps: range) -> Fault:
    """A signal to a role or a break between two that talk, the same for the same seed."""
    chance = random.Random(seed)
    a, b = chance.sample(list(roles), 2)
    while not _talk(a, b):
        a, b = chance.sample(list(roles), 2)
    step = chance.choice(steps)
    choices: list[Fault] = [Signal(a, number, step) for number in (signal.SIGKILL, signal.SIGSTOP)]
    choices += [Break(a, b, how, step) for how in ("cut", "swallow")]
    return choices[seed % len(choices)]


def _talk(a: str, b: str) -> bool:
    """Whether two roles send each other anything: workers of one replica do, and a worker and a shard."""
    replicas = [name.partition(".")[0] for name in (a, b)]
    shards = sum(name.startswith("shard") for name in (a, b))
    return shards == 1 or (shards == 0 and replicas[0] == replicas[1])


def train_with_faults(options: RunConfig, faults: Sequence[Fault]) -> Outcome:
    """Train and let the faults happen, one at a time and in this order, each at its step or as soon after as it can.

    Those of one step happen together.

    A fault that concerns a role which is being started again waits until its replica trains.
    """
    outcome, left, since = Outcome(), list(faults), time.monotonic()
    with ExitStack() as stack:
        relays: dict[tuple[str, str], Relay] = {}
        routed = {pair for f in faults if isinstance(f, Break) for pair in ((f.a, f.b), (f.b, f.a))}

        def route(source: str, target: str, endpoint: str) -> str:
            if (source, target) not in routed:
                return endpoint
            if (source, target) not in relays:
                relays[source, target] = stack.enter_context(Relay(endpoint))
            return relays[source, target].endpoint

        def tell(step: int, loss: float) -> None:
            nonlocal since
            while left and step >= left[0].step and _happens(left[0], relays):
                since = time.monotonic()
                outcome.happened.append(left.pop(0))
                if not left or left[0].step != outcome.happened[-1].step:
                    break

        try:
            outcome.result = run(prepare(options), Listening(tell, on_notice=outcome.notes.append), route=route)
        except CutsetError as error:
            outcome.error = error
        outcome.seconds = time.monotonic() - since
    return outcome


def _happens(fault: Fault, relays: dict[tuple[str, str], Relay]) -> bool:
    """Let it happen, if that is possible now."""
    if isinstance(fault, Signal):
        return signalled(fault.role, fault.number)
    ways = [relay for pair, relay in relays.items() if set(pair) == {fault.a, fault.b}]
    for way in ways:
        getattr(way, fault.how)()
    return bool(ways)


def signalled(role: str, number: signal.Signals) -> bool:
    """Send a signal to the process of a role that this process has started, or of the one that took its place."""
    for pid, name in children():
        if name.partition("+")[0] == role:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
                return True
    return False


def children() -> Iterator[tuple[int, str]]:
    """The roles' processes that this process has started: number and name."""
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            title, _, name = (folder / "cmdline").read_text().rstrip("\0").rpartition(" ")
            server = parent_of(int(folder.name))
            if title == PROCESS_TITLE and parent_of(server) == os.getpid():
                yield int(folder.name), name


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def roles_of(options: RunConfig, machines: int) -> list[str]:
    """The names of workers and shards."""
    workers = [f"worker-{r}.{m}" for r in range(options.replicas) for m in range(machines)]
    return [*workers, *(f"shard-{s}" for s in range(options.shards))]
