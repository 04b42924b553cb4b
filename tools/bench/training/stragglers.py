"""What small portions, handed out on demand, and backups are good for where one replica is slow: measured, simulated.

Measured with the coordinator, a shard and four workers of a real run, as processes; what a portion takes to compute is
emulated by waiting, since four replicas share what cores there are.
"""

import heapq
import statistics
import tempfile
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch

from ....ps.sandblaster.coordinator import CHUNKS, BatchCoordinator
from ....ps.sandblaster.gradient_worker import BatchWorker
from ....ps.sandblaster.work_queue import COPIES, Chunks
from ....ps.sandblaster.coordinator_loop import coordinate
from ....ps.slices.slicing import layout
from ....ps.sandblaster.solver import Iteration, Portions, Steps
from ....ps.sandblaster.recovery_log import OperationLog
from ....ps.server.serve_loop import serve
from ....ps.sandblaster.vector_ops import AT, Evaluate
from ....ps.sandblaster.vector_shard import VectorShard, from_whole
from ....runtime.launcher.heartbeat import Beacon
from ....runtime.channel.channel import Channel
from ....runtime.worker.flat_gradient import Gradient
from ....runtime.launcher.launcher import Launcher, Role
from ....runtime.channel.mailbox import Mailbox
from ....runtime.channel.message import Message
from ...report.console import make_console, print_columns
from ...units import seconds_text

REPLICAS, SLOWER = 4, 5.0
PORTION_S = 0.005  # of a replica that is not slow
COUNT = 256  # portions of an iteration
ELEMENTS = 1000
ITERATIONS = 5
SIMULATED = 2000
ENTRY = "cutset.tools.bench.training.stragglers:{}"


class Setup(msgspec.Struct, frozen=True):
    """single: one portion of the batch for each replica, and no backups. seconds: of a portion, by replica."""

    folder: str
    single: bool
    seconds: list[float]
    iterations: int


@dataclass(frozen=True)
class PortionRow:
    """How long an iteration took, and what it would with all at work to the end."""

    how: str
    replicas: int
    seconds: float
    ideal_s: float
    backups: float  # chunks that were given to two, an iteration

    @property
    def ratio(self) -> float:
        """Of the ideal."""
        return self.seconds / self.ideal_s


def measure(rounds: int = 3, iterations: int = ITERATIONS) -> list[PortionRow]:
    """Small portions with backups, and one portion each without, in turn; then both simulated for many replicas."""
    seconds = [PORTION_S] * (REPLICAS - 1) + [PORTION_S * SLOWER]
    ideal = COUNT / sum(1 / one for one in seconds)
    found: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
    for _ in range(rounds):
        for single, times in found.items():
            times += _run(single, seconds, iterations)
    rows = []
    for single, times in found.items():
        taken, backups = (statistics.median(column) for column in zip(*times, strict=True))
        rows.append(PortionRow(_how(single), REPLICAS, taken, ideal, backups))
    return rows + [simulated(single) for single in found]


def simulated(single: bool, replicas: int = SIMULATED, slow: int = 1) -> PortionRow:
    """One iteration of many replicas, of which some are slow, event by event; a portion takes the others a second."""
    count = replicas * (1 if single else CHUNKS)
    seconds = [SLOWER if replica < slow else 1.0 for replica in range(replicas)]
    chunks = Chunks(count, copies=1 if single else COPIES)
    ideal = count / sum(1 / one for one in seconds)
    events = [(0.0, replica, -1) for replica in range(replicas)]
    heapq.heapify(events)
    now = 0.0
    while not chunks.complete:
        now, replica, chunk = heapq.heappop(events)
        if chunk >= 0:
            chunks.done(str(replica), chunk)
        following = chunks.next(str(replica))
        if following is not None:
            heapq.heappush(events, (now + seconds[replica], replica, following))
    return PortionRow(f"{_how(single)}, simulated", replicas, now, ideal, float(chunks.backups))


def _how(single: bool) -> str:
    return "one portion each" if single else "small portions, backups"


def _run(single: bool, seconds: list[float], iterations: int) -> list[tuple[float, float]]:
    """Seconds of each iteration but for the first, and backups in it."""
    with tempfile.TemporaryDirectory() as folder:
        setup = msgspec.to_builtins(Setup(folder, single, seconds, iterations))
        names = ["coordinator", "shard-0", *(f"worker-{n}.0" for n in range(len(seconds)))]
        entries = ["coordinating", "serving", *["working"] * len(seconds)]
        roles = [Role(name, ENTRY.format(entry), setup) for name, entry in zip(names, entries, strict=True)]
        told: list[dict[str, Any]] = []
        left = set(names[2:])
        with Launcher(roles, job=f"portions-{uuid.uuid4().hex[:12]}") as launcher:
            launcher.start()
            for message in launcher.events():
                if message.kind == "iteration":
                    told.append(message.body)
                left -= {message.sender} if message.kind == "finished" else set()
                if not left and message.kind == "finished" and message.sender in names[2:]:
                    for name in names[:2]:
                        launcher.send(name, Message("finish"))
    counts = [one["backups"] for one in told]
    return [(b["seconds"], b["backups"] - before) for b, before in zip(told[1:], counts, strict=False)]


def coordinating(channel: Channel, setup: Any, beacon: Beacon) -> None:
    """The role of the coordinator, of a method that does nothing but evaluate."""
    given, portions = msgspec.convert(setup, Setup), Portions(COUNT, 1)

    def steps() -> Steps:
        for number in range(1, given.iterations + 1):
            loss, *_ = yield [Evaluate(AT, "gradient", 0, COUNT)]
            yield Iteration(number, loss, 0.0, 0.0, number)
        return "done"

    log = OperationLog(Path(given.folder) / "log", {})
    made = BatchCoordinator(steps, portions, log, ["shard-0"], replicas=len(given.seconds), single=given.single)
    coordinate(made, channel, beacon)
    log.close()


def serving(channel: Channel, setup: Any, beacon: Beacon) -> None:
    """The role of the shard."""
    given, start = msgspec.convert(setup, Setup), torch.zeros(ELEMENTS)
    slices = layout([ELEMENTS], 1)
    serve(
        VectorShard(0, slices, Portions(COUNT, 1), from_whole({0: start}), Path(given.folder)), channel, beacon=beacon
    )


def working(channel: Channel, setup: Any, beacon: Beacon) -> None:
    """The role of a worker, which waits as long as it would compute."""
    given = msgspec.convert(setup, Setup)
    replica = int(channel.name.partition("-")[2].partition(".")[0])

    def compute(portion: int, step: int) -> float:
        time.sleep(given.seconds[replica])
        beacon.progress = f"portion {step}"
        return 1.0

    values, slices = torch.zeros(ELEMENTS), layout([ELEMENTS], 1)
    mailbox, portions, gradient = Mailbox(channel), Portions(COUNT, 1), Gradient(torch.zeros(ELEMENTS))
    BatchWorker(mailbox, slices, values, gradient, compute, portions, coordinator="coordinator").run()


def print_rows(rows: list[PortionRow]) -> None:
    """Print them as a table."""
    columns = ("portions", "replicas", "one is slower", "an iteration", "ideal", "of the ideal", "given to two")
    cells = [
        (
            row.how,
            str(row.replicas),
            f"{SLOWER:g} x",
            seconds_text(row.seconds),
            seconds_text(row.ideal_s),
            f"{row.ratio:.2f} x",
            f"{row.backups:.0f}",
        )
        for row in rows
    ]
    print_columns(make_console(), columns, cells)
