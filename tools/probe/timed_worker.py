"""The role of a worker whose steps are timed: all workers of a replica begin each step at one moment.

The moment is agreed on beforehand and is one of the clock that all processes of a host share (CLOCK_MONOTONIC), so that
no message of the agreement is in the time of the step.
"""

import os
import time
from typing import Any

import msgspec

from ...models.task import Data
from ...runtime.launcher.heartbeat import Beacon
from ...runtime.channel.channel import Channel
from ...runtime.channel.mailbox import Mailbox
from ...runtime.channel.message import Message
from ...runtime.worker.program import Program
from ...runtime.worker.worker import Worker
from ..task.load_task import TaskSpec, build_model, load_task
from ..task.weight_source import stored

STEPPING = "cutset.tools.probe.timed_worker:stepping"
UNCUT = "cutset.tools.probe.timed_worker:uncut"
LEAD_S = 2e-3  # from the agreement on a moment to the moment: longer than a message takes
NAP_S = 5e-4  # before the moment, at which who sleeps until then is awake for certain

Times = list[tuple[float, float, float]]


class Setup(msgspec.Struct, frozen=True):
    """program: msgpack of the worker's Program. state: file of weights and batch. peers: names by machine.

    pace: of an emulated machine, the seconds that each segment takes at least, forward and backward.
    """

    spec: TaskSpec
    program: bytes
    state: str
    inputs: list[str]
    targets: list[str]
    peers: list[str]
    steps: int
    pace: list[tuple[float, float]] = []


def stepping(channel: Channel, setup: Any, beacon: Beacon) -> Times:
    """Begin and end of every step by the clock of the host, and for how long this thread had a core meanwhile."""
    given = msgspec.convert(setup, Setup)
    worker = worker_of(given, Mailbox(channel))
    batch = batch_of(given)
    times = []
    for step in range(given.steps):
        worker.gradients.zero_()
        beacon.progress = step
        begin = agreed(worker.mailbox, given.peers, worker.program.machine, step)
        busy = time.thread_time()
        worker.step(batch, step)
        times.append((begin, time.monotonic(), time.thread_time() - busy))
    return times


def worker_of(given: Setup, mailbox: Mailbox) -> Worker:
    """The worker of a setup, with its weights."""
    load_task(given.spec)  # for the operators that it defines
    program = msgspec.msgpack.decode(given.program, type=Program)
    pace = (lambda position, backward: given.pace[position][backward]) if given.pace else None
    worker = Worker(program, mailbox, given.peers, pace=pace)
    worker.states.load(stored(given.state))
    return worker


def uncut(channel: Channel, setup: Any, beacon: Beacon) -> Times:
    """The same of the model as it is, in one process."""
    from ...runtime.worker.uncut_worker import PlainWorker

    given = msgspec.convert(setup, Setup)
    task = load_task(given.spec)
    worker = PlainWorker(build_model(task, seed=0), task.loss, autocast=given.spec.autocast)
    batch = batch_of(given)
    times = []
    for step in range(given.steps):
        worker.gradients.zero_()
        beacon.progress = step
        begin, busy = time.monotonic(), time.thread_time()
        worker.step(batch, step)
        times.append((begin, time.monotonic(), time.thread_time() - busy))
    return times


def batch_of(given: Setup) -> Data:
    """The batch of a setup."""
    value = stored(given.state)
    return Data(tuple(map(value, given.inputs)), tuple(map(value, given.targets)))


def agreed(mailbox: Mailbox, peers: list[str], machine: int, step: int) -> float:
    """Wait for the moment that machine 0 names once all are ready; the moment."""
    if machine == 0:
        for peer in peers[1:]:
            mailbox.wait([(peer, "ready", step, 0, 0)])
        moment = time.monotonic() + LEAD_S
        for peer in peers[1:]:
            mailbox.send(peer, Message("go", step, body={"at": moment}))
    else:
        mailbox.send(peers[0], Message("ready", step))
        moment = float(mailbox.wait([(peers[0], "go", step, 0, 0)]).body["at"])
    if len(peers) > (os.cpu_count() or 1):  # who spins has the core that another one needs
        time.sleep(max(0.0, moment - NAP_S - time.monotonic()))
    while time.monotonic() < moment:
        pass
    return moment
