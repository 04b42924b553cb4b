"""`cutset bench stragglers`: what small portions and backup tasks gain in Sandblaster if one replica is slow.

"The coordinator assigns each of the N model replicas a small portion of work, much smaller than 1/Nth of the total size
of a batch, and assigns replicas new portions whenever they are free. ... To further manage slow model replicas at the
end of the batch, the coordinator schedules multiple copies of the outstanding portions and uses the result from
whichever model replica finishes first." (Dean et al., NIPS 2012, section 4.2.)

Measured with the coordinator, the shard and the workers of a real run as processes; the time to compute a portion is
emulated by sleeping, since the replicas share the cores of one host. Then simulated, event by event, for 2000 replicas.
"""

import statistics
import tempfile
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch

from ....ps.sandblaster.coordinator import Coordinator
from ....ps.sandblaster.coordinator_loop import coordinate
from ....ps.sandblaster.evaluation import GROUPS_PER_REPLICA
from ....ps.sandblaster.gradient_worker import GradientWorker
from ....ps.sandblaster.recovery_log import RecoveryLog
from ....ps.sandblaster.solver import Iteration, Portions, SolverRun
from ....ps.sandblaster.vector_ops import ITERATE, Evaluate
from ....ps.sandblaster.vector_shard import VectorShard, slice_initial_values
from ....ps.sandblaster.work_queue import MAX_COPIES, WorkQueue
from ....ps.server.serve_loop import serve
from ....ps.slices.slicing import slice_parameters
from ....runtime.channel.channel import Channel
from ....runtime.channel.mailbox import Mailbox
from ....runtime.channel.message import Message
from ....runtime.hosts.heartbeat import RoleProgress
from ....runtime.hosts.host import Role
from ....runtime.launcher.launcher import Launcher
from ....runtime.worker.flat_gradient import FlatGradient
from ...units import format_seconds
from ...virtual_time.sandblaster import time_queue
from ..bench_table import BenchTable, Column

REPLICAS, SLOWDOWN = 4, 5.0
PORTION_S = 0.005  # of a replica that is not slow
COUNT = 256  # portions of an iteration
ELEMENTS = 1000
ITERATIONS = 5
SIMULATED = 2000
ENTRY = "cutset.tools.bench.training.stragglers:{}"


class StragglerSetup(msgspec.Struct, frozen=True):
    """The setup of every role.

    single: one portion of the batch for each replica, and no backups. seconds: that a portion takes, by replica.
    """

    folder: str
    single: bool
    seconds: list[float]
    iterations: int


@dataclass(frozen=True)
class StragglerResult:
    """How long an iteration took, and how long it would take if all replicas were busy to the end.

    backups: portions that were issued twice, per iteration.
    """

    how: str
    replicas: int
    seconds: float
    ideal_s: float
    backups: float

    @property
    def ratio(self) -> float:
        """Seconds over the ideal."""
        return self.seconds / self.ideal_s


COLUMNS: tuple[Column[StragglerResult], ...] = (
    Column("portions", "how", align="left"),
    Column("replicas", "replicas"),
    Column("slow replica", value=lambda row: SLOWDOWN, format="{:g} x slower".format),
    Column("iteration", "seconds", format_seconds),
    Column("ideal", "ideal_s", format_seconds),
    Column("of the ideal", "ratio", "{:.2f} x".format),
    Column("issued twice", "backups", "{:.0f}".format),
)


def tabulate(rows: Sequence[StragglerResult]) -> BenchTable[StragglerResult]:
    """Return the table of the iterations."""
    return BenchTable(COLUMNS, rows)


def measure(rounds: int = 3, iterations: int = ITERATIONS) -> list[StragglerResult]:
    """Time small portions with backups and one portion each, in turn; then simulate both for many replicas."""
    seconds = [PORTION_S] * (REPLICAS - 1) + [PORTION_S * SLOWDOWN]
    ideal = COUNT / sum(1 / portion_s for portion_s in seconds)
    times: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
    for _ in range(rounds):
        for single, measured in times.items():
            measured += _run(single, seconds, iterations)
    results = []
    for single, measured in times.items():
        median_s, backups = (statistics.median(column) for column in zip(*measured, strict=True))
        results.append(StragglerResult(_describe(single), REPLICAS, median_s, ideal, backups))
    return results + [simulate(single) for single in times]


def simulate(single: bool, replicas: int = SIMULATED, slow: int = 1) -> StragglerResult:
    """Simulate one iteration of many replicas, the first `slow` of them slow; a portion takes the others a second."""
    count = replicas * (1 if single else GROUPS_PER_REPLICA)
    seconds = [SLOWDOWN if replica < slow else 1.0 for replica in range(replicas)]
    queue = WorkQueue(count, copies=1 if single else MAX_COPIES)
    ideal = count / sum(1 / portion_s for portion_s in seconds)
    taken_s = time_queue(queue, replicas, lambda replica: seconds[replica])
    return StragglerResult(f"{_describe(single)}, simulated", replicas, taken_s, ideal, float(queue.backups))


def _describe(single: bool) -> str:
    return "one portion each" if single else "small portions, backups"


def _run(single: bool, seconds: list[float], iterations: int) -> list[tuple[float, float]]:
    """Return the seconds of each iteration but the first, and how many backups were issued in it."""
    with tempfile.TemporaryDirectory() as folder:
        setup = msgspec.to_builtins(StragglerSetup(folder, single, seconds, iterations))
        names = ["coordinator", "shard-0", *(f"worker-{n}.0" for n in range(len(seconds)))]
        entries = ["run_coordinator", "run_shard", *["run_worker"] * len(seconds)]
        roles = [Role(name, ENTRY.format(entry), setup) for name, entry in zip(names, entries, strict=True)]
        reports: list[dict[str, Any]] = []
        left = set(names[2:])
        with Launcher(roles, job=f"stragglers-{uuid.uuid4().hex[:12]}") as launcher:
            launcher.start()
            for message in launcher.events():
                if message.kind == "iteration":
                    reports.append(message.body)
                left -= {message.sender} if message.kind == "finished" else set()
                if not left and message.kind == "finished" and message.sender in names[2:]:
                    for name in names[:2]:
                        launcher.send(name, Message("finish"))
    counts = [report["backups"] for report in reports]  # since the beginning of the run
    return [(b["seconds"], b["backups"] - before) for b, before in zip(reports[1:], counts, strict=False)]


def run_coordinator(channel: Channel, setup: Any, progress: RoleProgress) -> None:
    """Run the coordinator of a method that does nothing but evaluate the gradient."""
    config, portions = msgspec.convert(setup, StragglerSetup), Portions(COUNT, 1)

    def solve() -> SolverRun:
        for number in range(1, config.iterations + 1):
            loss, *_ = yield [Evaluate(ITERATE, "gradient", 0, COUNT)]
            yield Iteration(number, loss, 0.0, 0.0, number)
        return "done"

    log = RecoveryLog(Path(config.folder) / "log", {})
    coordinator = Coordinator(solve, portions, log, ["shard-0"], replicas=len(config.seconds), single=config.single)
    coordinate(coordinator, channel, progress)
    log.close()


def run_shard(channel: Channel, setup: Any, progress: RoleProgress) -> None:
    """Run the shard."""
    config, start = msgspec.convert(setup, StragglerSetup), torch.zeros(ELEMENTS)
    slices = slice_parameters([ELEMENTS], 1)
    shard = VectorShard(0, slices, Portions(COUNT, 1), slice_initial_values({0: start}), Path(config.folder))
    serve(shard, channel, progress=progress)


def run_worker(channel: Channel, setup: Any, progress: RoleProgress) -> None:
    """Run a worker, which sleeps for as long as it would compute."""
    config = msgspec.convert(setup, StragglerSetup)
    replica = int(channel.name.partition("-")[2].partition(".")[0])

    def compute(portion: int, step: int) -> float:
        time.sleep(config.seconds[replica])
        progress.value = f"portion {step}"
        return 1.0

    values, slices = torch.zeros(ELEMENTS), slice_parameters([ELEMENTS], 1)
    mailbox, portions, gradient = Mailbox(channel), Portions(COUNT, 1), FlatGradient(torch.zeros(ELEMENTS))
    GradientWorker(mailbox, slices, values, gradient, compute, portions, coordinator="coordinator").run()
