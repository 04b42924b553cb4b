"""A worker whose steps are timed: all workers of a replica begin each step at one moment.

The moment is agreed on beforehand and is one of the clock that all processes of a host share (CLOCK_MONOTONIC), so that
no message of the agreement is in the time of the step. A worker by itself waits as long: in training there is always
something between two steps, after which the first calls of a step take longer.
"""

import gc
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
from torch import Tensor

from ...models.task import Data
from ...runtime.channel.channel import Channel
from ...runtime.channel.mailbox import Mailbox
from ...runtime.channel.message import Message
from ...runtime.held_memory import read_resident_bytes, return_free_memory
from ...runtime.hosts.heartbeat import RoleProgress
from ...runtime.hosts.versions import read_cores
from ...runtime.worker.program import Program
from ...runtime.worker.worker import Worker
from ..task.load_task import TaskSpec, build_model, load_task
from ..task.weight_source import load_pieces, open_weights, read_tensors_from

STEP_ENTRY = "cutset.tools.probe.timed_worker:time_steps"
UNCUT_ENTRY = "cutset.tools.probe.timed_worker:time_uncut_steps"
LEAD_S = 2e-3  # from the agreement on a moment to the moment: longer than a message takes
NAP_S = 5e-4  # before the moment, at which who sleeps until then is awake for certain


class WorkerRecord(msgspec.Struct, frozen=True):
    """What one worker measured.

    times: begin and end of every step by the host's clock, and for how long this thread had a core meanwhile.
    bytes_sent: bytes of the tensors that it sent in the last step; bytes_left_out: of rows of zeros, which did not
    travel. before_bytes, peak_bytes: its resident memory before it had a model, and the most that it had while it made
    steps; 0 where the system does not say.
    """

    times: list[tuple[float, float, float]]
    bytes_sent: int
    bytes_left_out: int
    before_bytes: int
    peak_bytes: int


class StepSetup(msgspec.Struct, frozen=True):
    """program: msgpack of the worker's Program. state: file of weights and batch. peers: names by machine.

    pace: of an emulated machine, the seconds that each segment takes at least, by kind. pauses: whether all workers
    wait for each other before every step; else before the first one, and steps follow each other at once.

    turn: how many steps these workers make before others make theirs, 0 where there are no others. leaders: the worker
    of machine 0 of each of those that take turns, in their order; leader: the number of this one's.
    """

    spec: TaskSpec
    program: bytes
    state: str
    inputs: list[str]
    targets: list[str]
    peers: list[str]
    steps: int
    pace: list[Mapping[str, float]] = []
    pauses: bool = True
    turn: int = 0
    leaders: list[str] = []
    leader: int = 0


class _CountingMailbox(Mailbox):
    """A mailbox that counts the bytes of the tensors that it sends."""

    bytes_sent = 0

    def send(self, peer: str, message: Message) -> Message:
        self.bytes_sent += sum(tensor.nbytes for tensor in message.tensors)
        return super().send(peer, message)


def time_steps(channel: Channel, setup: Any, progress: RoleProgress) -> dict[str, Any]:
    """Time every step of one machine of a cut model; return a `WorkerRecord` as plain data."""
    config = msgspec.convert(setup, StepSetup)
    before, mailbox = read_resident_bytes(), _CountingMailbox(channel)
    worker = make_worker(config, mailbox)
    batch, pushed = make_batch(config), hold_pushed(worker)
    restart_peak()
    times, sent, left_out = [], 0, 0
    for step in range(config.steps):
        worker.gradients.zero_()
        if config.turn and step % config.turn == 0:
            progress.value = None  # while others take their turn
            if worker.program.machine == 0:
                _await_turn(config, mailbox, step)
        waits = config.pauses or not step
        begin = agree_on_start(mailbox, config.peers, worker.program.machine, step) if waits else time.monotonic()
        progress.value = step
        busy, sent, left_out = time.thread_time(), mailbox.bytes_sent, worker.remote.bytes_left_out
        worker.step(batch, step)
        times.append((begin, time.monotonic(), time.thread_time() - busy))
        if config.turn and (step + 1) % config.turn == 0:
            _end_turn(config, mailbox, worker.program.machine, step)
    sent, left_out = mailbox.bytes_sent - sent, worker.remote.bytes_left_out - left_out
    record = WorkerRecord(times, sent, left_out, before, read_peak_bytes())
    del pushed
    return msgspec.to_builtins(record)  # type: ignore[no-any-return]


def _await_turn(config: StepSetup, mailbox: Mailbox, step: int) -> None:
    """Wait until those before have made their turn; the first ones wait for the last, with their turn before."""
    if config.leader:
        mailbox.wait([(config.leaders[config.leader - 1], "turn", step, 0, 0)])
    elif step:
        mailbox.wait([(config.leaders[-1], "turn", step - config.turn, 0, 0)])


def _end_turn(config: StepSetup, mailbox: Mailbox, machine: int, step: int) -> None:
    """Let the next ones make their turn, once all workers of this one have made the last step of theirs."""
    if machine:
        mailbox.send(config.peers[0], Message("finished", step))
        return
    for peer in config.peers[1:]:
        mailbox.wait([(peer, "finished", step, 0, 0)])
    following = (config.leader + 1) % len(config.leaders)
    if following or step + 1 < config.steps:
        mailbox.send(config.leaders[following], Message("turn", step + 1 - config.turn))


def restart_peak() -> None:
    """Forget the peak of this process's memory so far, and what malloc keeps of it."""
    gc.collect()
    return_free_memory()
    with suppress(OSError):  # not every container allows it; the peak is then that of the whole process
        Path("/proc/self/clear_refs").write_text("5")


def read_peak_bytes() -> int:
    """Return the most memory that this process has held since `restart_peak`, 0 where the system does not say."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), 0)


def make_worker(config: StepSetup, mailbox: Mailbox) -> Worker:
    """Return the worker of a setup, with its weights."""
    load_task(config.spec)  # for the operators that it defines
    program = msgspec.msgpack.decode(config.program, type=Program)
    pace = (lambda position, kind: config.pace[position][kind]) if config.pace else None
    worker = Worker(program, mailbox, config.peers, pace=pace)
    with open_weights(Path(config.state)) as weights:  # as in training: a whole tensor may be larger than all its parts
        load_pieces(worker.states, weights)
    return worker


def hold_pushed(worker: Worker) -> Tensor:
    """Return what a worker in training holds besides: a copy of its gradients on its way to the shards."""
    return worker.gradients.clone()


def time_uncut_steps(channel: Channel, setup: Any, progress: RoleProgress) -> dict[str, Any]:
    """Return the same of the uncut model, in one process."""
    from ...runtime.worker.uncut_worker import UncutWorker

    config = msgspec.convert(setup, StepSetup)
    before, task = read_resident_bytes(), load_task(config.spec)
    worker = UncutWorker(build_model(task, seed=0), task.loss, autocast=config.spec.autocast)
    batch = make_batch(config)
    restart_peak()
    times = []
    for step in range(config.steps):
        worker.gradients.zero_()
        progress.value = step
        begin, busy = time.monotonic(), time.thread_time()
        worker.step(batch, step)
        times.append((begin, time.monotonic(), time.thread_time() - busy))
    record = WorkerRecord(times, 0, 0, before, read_peak_bytes())
    return msgspec.to_builtins(record)  # type: ignore[no-any-return]


def make_batch(config: StepSetup) -> Data:
    """Return the batch of a setup."""
    value = read_tensors_from(config.state)
    return Data(tuple(map(value, config.inputs)), tuple(map(value, config.targets)))


def agree_on_start(mailbox: Mailbox, peers: Sequence[str], machine: int, step: int) -> float:
    """Wait for the moment that machine 0 names once all are ready, and return it. peers: all, this one included."""
    if machine == 0:
        for peer in peers[1:]:
            mailbox.wait([(peer, "ready", step, 0, 0)])
        moment = time.monotonic() + LEAD_S
        for peer in peers[1:]:
            mailbox.send(peer, Message("go", step, body={"at": moment}))
    else:
        mailbox.send(peers[0], Message("ready", step))
        moment = float(mailbox.wait([(peers[0], "go", step, 0, 0)]).body["at"])
    if len(peers) > read_cores():  # who spins has the core that another one needs
        time.sleep(max(0.0, moment - NAP_S - time.monotonic()))
    while time.monotonic() < moment:
        pass
    return moment
