"""The role of a worker whose steps are timed: all workers of a replica begin each step at one moment.

The moment is agreed on beforehand and is one of the clock that all processes of a host share (CLOCK_MONOTONIC), so that
no message of the agreement is in the time of the step.
"""

import time
from typing import Any

import msgspec

from ...models.task import Data
from ...runtime.beacon import Beacon
from ...runtime.channel import Channel
from ...runtime.mailbox import Mailbox
from ...runtime.message import Message
from ...runtime.program import Program
from ...runtime.worker import Worker
from ..load import TaskSpec, build_model, load_task
from ..roles import stored

STEPPING = "cutset.tools.bench.stepping:stepping"
UNCUT = "cutset.tools.bench.stepping:uncut"
LEAD_S = 2e-3  # from the agreement on a moment to the moment: longer than a message takes


class Setup(msgspec.Struct, frozen=True):
    """program: msgpack of the worker's Program. state: file of weights and batch. peers: names by machine."""

    spec: TaskSpec
    program: bytes
    state: str
    inputs: list[str]
    targets: list[str]
    peers: list[str]
    steps: int


def stepping(channel: Channel, setup: Any, beacon: Beacon) -> list[tuple[float, float]]:
    """Begin and end of every step, by the clock of the host."""
    given = msgspec.convert(setup, Setup)
    load_task(given.spec)  # for the operators that it defines
    program = msgspec.msgpack.decode(given.program, type=Program)
    mailbox = Mailbox(channel)
    worker = Worker(program, mailbox, given.peers)
    value = stored(given.state)
    worker.states.load(value)
    batch = _batch(given)
    times = []
    for step in range(given.steps):
        worker.gradients.zero_()
        beacon.progress = step
        begin = agreed(mailbox, given.peers, program.machine, step)
        worker.step(batch, step)
        times.append((begin, time.monotonic()))
    return times


def uncut(channel: Channel, setup: Any, beacon: Beacon) -> list[tuple[float, float]]:
    """The same of the model as it is, in one process."""
    from ...runtime.plain import PlainWorker

    given = msgspec.convert(setup, Setup)
    task = load_task(given.spec)
    worker = PlainWorker(build_model(task, seed=0), task.loss)
    batch = _batch(given)
    times = []
    for step in range(given.steps):
        worker.gradients.zero_()
        beacon.progress = step
        begin = time.monotonic()
        worker.step(batch, step)
        times.append((begin, time.monotonic()))
    return times


def _batch(given: Setup) -> Data:
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
    while time.monotonic() < moment:
        pass
    return moment
