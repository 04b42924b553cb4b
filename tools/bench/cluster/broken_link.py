"""`cutset bench cluster --fault`: a link breaks while a cut model trains: which error is raised, and how soon.

"cut" pulls the cable of one machine: its card and the switch notice. "blackhole" lets everything to and from it vanish,
which nobody notices except a peer that waits for an answer.
"""

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

import msgspec

from ....errors import CutsetError
from ....partition.cluster.machines import Cluster
from ....runtime.channel.channel import Channel
from ....runtime.channel.mailbox import Mailbox
from ....runtime.channel.message import LAUNCHER, Message
from ....runtime.hosts.heartbeat import RoleProgress
from ....runtime.launcher.launcher import Launcher
from ....runtime.worker.program import programs
from ...probe.measure_step import make_roles, make_setup
from ...probe.timed_worker import StepSetup, make_batch, make_worker
from ...units import format_seconds
from .emulated_cluster import EmulatedCluster
from .lockstep_vs_pipelined import EMULATED, FASTEST, ClusterExperiment, plan_variant

ENTRY = "cutset.tools.bench.cluster.broken_link:run_worker"
BREAK_AT = 10  # the step after which the link breaks
TIMEOUT_S = 60.0  # after which a worker that hears nothing ends, so that the benchmark ends whatever fails to notice
Tell = Callable[[str], None]


@dataclass(frozen=True)
class FaultReport:
    """What came of a broken link.

    error: the class of the error; code, facts, fix: as it says. seconds: from the break to the error; ended_s: from the
    break to the end of all processes.
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

    def describe(self) -> str:
        """Say in lines what broke and what was reported."""
        what = {"cut": "cable pulled", "blackhole": "all packets vanish"}[self.fault]
        return (
            f"machine {self.machine}, after step {self.step}: {what}\n"
            f"{self.error} {self.code} after {format_seconds(self.seconds)}: {self.facts}\n"
            f"fix: {self.fix}\n"
            f"all processes had ended {format_seconds(self.ended_s)} after the break"
        )


def measure_fault(experiment: ClusterExperiment, cluster: EmulatedCluster, fault: str, tell: Tell) -> FaultReport:
    """Train, break the link of a machine in the middle, and wait for the error."""
    micro_batches = experiment.micro_batches[0]
    like = replace(EMULATED, flops_per_s=experiment.flops or FASTEST)
    machines = tuple(replace(like, name=f"machine {i}") for i in range(experiment.machines))
    variant = plan_variant(experiment.spec, Cluster(machines, cluster.payload_rate), micro_batches, tell)
    victim, placement = experiment.machines // 2, cluster.process_placement
    with tempfile.TemporaryDirectory(prefix="cutset-fault-") as folder:
        setup = make_setup(variant.spec, variant.capture, Path(folder), steps=0, micro_batches=micro_batches)
        compiled = programs(variant.plan.dataflow, training=True)
        roles = make_roles(ENTRY, setup, compiled, process_placement=placement)
        launcher = placement.make_launcher(roles, "fault")
        with launcher:
            launcher.start()
            broken, error = _watch(launcher, lambda: _break_link(cluster, fault, victim, tell))
            noticed = time.monotonic()
    facts = (type(error).__name__, error.code, error.facts, error.fix)
    return FaultReport(fault, victim, BREAK_AT, *facts, noticed - broken, time.monotonic() - broken)


def _break_link(cluster: EmulatedCluster, fault: str, victim: int, tell: Tell) -> None:
    tell(f"after step {BREAK_AT}: {fault} of the link of machine {victim}")
    if fault == "cut":
        cluster.pull_cable(victim)
    else:
        cluster.drop_packets(victim)


def _watch(launcher: Launcher, break_link: Callable[[], None]) -> tuple[float, CutsetError]:
    """Break the link at its step; return when it broke, and the error of the run."""
    broken = 0.0
    try:
        for message in launcher.events():
            if message.kind == "stepped" and message.step == BREAK_AT and not broken:
                break_link()
                broken = time.monotonic()
    except CutsetError as error:
        if not broken:
            raise
        return broken, error
    raise RuntimeError("workers that train until they are stopped have ended by themselves")


def run_worker(channel: Channel, setup: Any, progress: RoleProgress) -> None:
    """Run a worker that trains until it is stopped."""
    config = msgspec.convert(setup, StepSetup)
    worker = make_worker(config, Mailbox(channel, timeout_s=TIMEOUT_S))
    batch = make_batch(config)
    for step in count():
        worker.gradients.zero_()
        worker.step(batch, step)
        progress.value = step
        if worker.program.machine == 0:
            channel.send(LAUNCHER, Message("stepped", step))
