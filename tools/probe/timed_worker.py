"""A worker whose steps are timed: all workers of a replica begin each step at one moment.

The moment is agreed on beforehand and is one of the clock that all processes of a host share (CLOCK_MONOTONIC), so that
no message of the agreement is in the time of the step.
"""

import os
import time
from typing import Any

import msgspec

from ...models.task import Data
from ...runtime.channel.channel import Channel
from ...runtime.channel.mailbox import Mailbox
from ...runtime.channel.message import Message
from ...runtime.hosts.heartbeat import RoleProgress
from ...runtime.worker.program import Program
from ...runtime.worker.worker import Worker
from ..task.load_task import TaskSpec, build_model, load_task
from ..task.weight_source import read_tensors_from

STEP_ENTRY = "cutset.tools.probe.timed_worker:time_steps"
UNCUT_ENTRY = "cutset.tools.probe.timed_worker:time_uncut_steps"
LEAD_S = 2e-3  # from the agreement on a moment to the moment: longer than a message takes
NAP_S = 5e-4  # before the moment, at which who sleeps until then is awake for certain

Times = list[tuple[float, float, float]]


class StepSetup(msgspec.Struct, frozen=True):
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


def time_steps(channel: Channel, setup: Any, progress: RoleProgress) -> Times:
    """Return begin and end of every step by the host's clock, and for how long this thread had a core meanwhile."""
    config = msgspec.convert(setup, StepSetup)
    worker = make_worker(config, Mailbox(channel))
    batch = make_batch(config)
    times = []
    for step in range(config.steps):
        worker.gradients.zero_()
        progress.value = step
        begin = agree_on_start(worker.mailbox, config.peers, worker.program.machine, step)
        busy = time.thread_time()
        worker.step(batch, step)
        times.append((begin, time.monotonic(), time.thread_time() - busy))
    return times


def make_worker(config: StepSetup, mailbox: Mailbox) -> Worker:
    """Return the worker of a setup, with its weights."""
    load_task(config.spec)  # for the operators that it defines
    program = msgspec.msgpack.decode(config.program, type=Program)
    pace = (lambda position, backward: config.pace[position][backward]) if config.pace else None
    worker = Worker(program, mailbox, config.peers, pace=pace)
    worker.states.load(read_tensors_from(config.state))
    return worker


def time_uncut_steps(channel: Channel, setup: Any, progress: RoleProgress) -> Times:
    """Return the same of the uncut model, in one process."""
    from ...runtime.worker.uncut_worker import UncutWorker

    config = msgspec.convert(setup, StepSetup)
    task = load_task(config.spec)
    worker = UncutWorker(build_model(task, seed=0), task.loss, autocast=config.spec.autocast)
    batch = make_batch(config)
    times = []
    for step in range(config.steps):
        worker.gradients.zero_()
        progress.value = step
        begin, busy = time.monotonic(), time.thread_time()
        worker.step(batch, step)
        times.append((begin, time.monotonic(), time.thread_time() - busy))
    return times


def make_batch(config: StepSetup) -> Data:
    """Return the batch of a setup."""
    value = read_tensors_from(config.state)
    return Data(tuple(map(value, config.inputs)), tuple(map(value, config.targets)))


def agree_on_start(mailbox: Mailbox, peers: list[str], machine: int, step: int) -> float:
    """Wait for the moment that machine 0 names once all are ready, and return it."""
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
