"""A link that breaks while a cut model trains on an emulated cluster: what is said of it, and how soon.

"cut" pulls the cable of one machine: its card and the switch notice. "blackhole" lets everything to and from it vanish,
which nothing notices but who waits for an answer.
"""

import tempfile
import time
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
from rich.text import Text

from ....partition.cluster.machines import Cluster
from ....errors import CutsetError
from ....runtime.launcher.assignment import LAUNCHER
from ....runtime.launcher.heartbeat import Beacon
from ....runtime.channel.channel import Channel
from ....runtime.launcher.launcher import Launcher
from ....runtime.channel.mailbox import Mailbox
from ....runtime.channel.message import Message
from ....runtime.worker.program import programs
from ...report.console import make_console
from ...units import seconds_text
from .lockstep_vs_pipelined import EMULATED, FASTEST, Asked, planned
from .emulated_cluster import EmulatedCluster
from ..planner.measure_step import setup_of, stepping_roles
from ...probe.timed_worker import Setup, batch_of, worker_of

TRAINING = "cutset.tools.bench.cluster.broken_link:training"
BREAK_AT = 10  # the step after which the link breaks
PATIENCE_S = 60.0  # of a worker that hears nothing: by then this has ended, whatever else fails to notice
Tell = Callable[[str], None]


@dataclass(frozen=True)
class Outcome:
    """What came of a broken link. error: its class; seconds: from the break to the error, and to the end of all
    processes.
    """

    fault: str
    machine: int
    step: int
    error: str
    code: str
    facts: str
    fix: str
    seconds: float
    ended_s: float


def breaking(asked: Asked, cluster: EmulatedCluster, fault: str, tell: Tell) -> Outcome:
    """Train, break the link of a machine in the middle, and wait for the error."""
    count_ = asked.micro_batches[0]
    like = replace(EMULATED, flops_per_s=asked.flops or FASTEST)
    machines = tuple(replace(like, name=f"machine {i}") for i in range(asked.machines))
    variant = planned(asked.spec, Cluster(machines, cluster.payload_rate), count_, tell)
    victim = asked.machines // 2
    with tempfile.TemporaryDirectory(prefix="cutset-fault-") as folder:
        setup = setup_of(variant.spec, variant.ready, Path(folder), steps=0, micro_batches=count_)
        compiled = programs(variant.judged.flow, training=True)
        roles = stepping_roles(TRAINING, setup, compiled, venue=cluster.venue)
        launcher = Launcher(roles, job=f"fault-{uuid.uuid4().hex[:12]}", host=cluster.venue.host)
        with launcher:
            launcher.start()
            broken, error = _watch(launcher, lambda: _break(cluster, fault, victim, tell))
            noticed = time.monotonic()
    said = (type(error).__name__, error.code, error.facts, error.fix)
    return Outcome(fault, victim, BREAK_AT, *said, noticed - broken, time.monotonic() - broken)


def _break(cluster: EmulatedCluster, fault: str, victim: int, tell: Tell) -> None:
    tell(f"after step {BREAK_AT}: {fault} of the link of machine {victim}")
    if fault == "cut":
        cluster.cut(victim)
    else:
        cluster.black_hole(victim)


def _watch(launcher: Launcher, break_: Callable[[], None]) -> tuple[float, CutsetError]:
    """When the link broke, and the error of the run."""
    broken = 0.0
    try:
        for message in launcher.events():
            if message.kind == "stepped" and message.step == BREAK_AT and not broken:
                break_()
                broken = time.monotonic()
    except CutsetError as error:
        if not broken:
            raise
        return broken, error
    raise RuntimeError("workers that train until they are stopped have ended by themselves")


def training(channel: Channel, setup: Any, beacon: Beacon) -> None:
    """The role of a worker that trains until it is stopped."""
    given = msgspec.convert(setup, Setup)
    worker = worker_of(given, Mailbox(channel, timeout_s=PATIENCE_S))
    batch = batch_of(given)
    for step in count():
        worker.gradients.zero_()
        worker.step(batch, step)
        beacon.progress = step
        if worker.program.machine == 0:
            channel.send(LAUNCHER, Message("stepped", step))


def print_outcome(outcome: Outcome) -> None:
    """Print what was said."""
    console = make_console()
    what = {"cut": "cable pulled", "blackhole": "everything vanishes"}[outcome.fault]
    console.print(Text(f"machine {outcome.machine}, after step {outcome.step}: {what}", style="bold"))
    console.print(Text(f"{outcome.error} {outcome.code} after {seconds_text(outcome.seconds)}: {outcome.facts}"))
    console.print(Text(f"fix: {outcome.fix}"))
    console.print(Text(f"every process had ended {seconds_text(outcome.ended_s)} after the break"))


def as_data(outcome: Outcome) -> dict[str, Any]:
    """For JSON."""
    return asdict(outcome)
