"""The processes that measure the operators of a task, each by itself in whole steps (see task_operators.py)."""

import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import msgspec
import torch

from ...models.task import Data
from ...runtime.channel.channel import Channel
from ...runtime.channel.mailbox import Mailbox
from ...runtime.channel.message import Message
from ...runtime.hosts.heartbeat import RoleProgress
from ...runtime.worker.trace import Trace
from ...runtime.worker.worker import BACKWARD, FORWARD, Worker
from .timed_worker import (
    StepSetup,
    agree_on_start,
    hold_pushed,
    make_batch,
    make_worker,
    read_memory,
    restart_peak,
)

ENTRY = "cutset.tools.probe.operator_process:time_operators"
TIMEOUT_S = 120.0  # of those that wait while the first works alone
BUDGET_S, MIN_STEPS, MAX_STEPS = 1.5, 3, 30
PEAK_BUDGET_S, PEAK_STEPS = 1.0, 10  # what malloc holds grows for some steps, as what is freed leaves holes

Medians = list[tuple[float, float]]


class OperatorSetup(StepSetup, frozen=True):
    """What one of the processes does. whole: msgpack of the program whose memory is measured; `program` has a segment
    for each operator. threads: of torch, for all the cores. processes: all of them, by name; number: of this one, of
    which the first works alone, too."""

    whole: bytes = b""
    threads: int = 1
    processes: tuple[str, ...] = ()
    number: int = 0


class OperatorTimes(msgspec.Struct, frozen=True):
    """segments: seconds of each segment, forward and backward, while no other process works, none where that was not
    measured. peak_bytes: of a process that has the whole model; whole_s: seconds of its step, made in turn with those
    of the segments; undivided_s: of such a step by one process with all the cores; 0 where these were not measured.
    alone_s, crowded_s: seconds of each step of segments by itself and beside others, from the moment at which all
    begin; computed_s: of these beside others, without the waiting for a core."""

    segments: Medians
    peak_bytes: int
    whole_s: float = 0.0
    undivided_s: float = 0.0
    alone_s: list[float] = []
    crowded_s: list[float] = []
    computed_s: list[float] = []


def time_operators(channel: Channel, setup: Any, progress: RoleProgress) -> dict[str, Any]:
    """Return what a process with the whole model takes, and for each segment the seconds of an undisturbed step."""
    config, mailbox = msgspec.convert(setup, OperatorSetup), Mailbox(channel, timeout_s=TIMEOUT_S)
    batch = make_batch(config)
    times = OperatorTimes([], 0)
    if config.number == 0:
        peak = _measure_peak(config, mailbox, batch)
        times = _time_alone(config, mailbox, batch, progress)
        undivided_s = _time_undivided(config, mailbox, batch, progress)
        times = msgspec.structs.replace(times, peak_bytes=peak, undivided_s=undivided_s)
    if len(config.processes) > 1:
        steps = _agree_on_steps(mailbox, config, len(times.alone_s))
        crowded_s, computed_s = _time_beside_others(config, mailbox, batch, progress, steps)
        times = msgspec.structs.replace(times, crowded_s=crowded_s, computed_s=computed_s)
    return msgspec.to_builtins(times)  # type: ignore[no-any-return]


def _agree_on_steps(mailbox: Mailbox, config: OperatorSetup, steps: int) -> int:
    """Return how many steps the first process has made by itself, which all are to make at once."""
    first, *others = config.processes
    if config.number:
        return int(mailbox.wait([(first, "steps", 0, 0, 0)]).body["count"])
    for name in others:
        mailbox.send(name, Message("steps", body={"count": steps}))
    return steps


def _time_alone(config: OperatorSetup, mailbox: Mailbox, batch: Data, progress: RoleProgress) -> OperatorTimes:
    """Time steps of the whole model and of the segments, made in turn by one process."""
    whole = make_worker(msgspec.structs.replace(config, program=config.whole), mailbox)
    divided, clock = make_worker(config, mailbox), _choose_clock()
    divided.trace = Trace(range(1, config.steps), clock=clock)
    took, alone_s, deadline = list[float](), list[float](), time.monotonic() + 2 * BUDGET_S
    for step in range(config.steps):
        progress.value = step
        for worker in (whole, divided):
            worker.gradients.zero_()
            moment = agree_on_start(mailbox, config.processes[:1], 0, step)
            begin = clock()
            worker.step(batch, step)
            took += [clock() - begin] if worker is whole else []
            alone_s += [time.monotonic() - moment] if worker is divided else []
        if step >= MIN_STEPS and time.monotonic() > deadline:
            break
    return OperatorTimes(_collect(divided), 0, _pick(took), alone_s=alone_s)


def _time_undivided(config: OperatorSetup, mailbox: Mailbox, batch: Data, progress: RoleProgress) -> float:
    """Return the seconds of a step of the whole model with all the cores; 0 where this process has them anyway."""
    own = torch.get_num_threads()
    if config.threads <= own:
        return 0.0
    whole = make_worker(msgspec.structs.replace(config, program=config.whole), mailbox)
    took, deadline = list[float](), time.monotonic() + BUDGET_S
    torch.set_num_threads(config.threads)
    for step in range(config.steps):
        progress.value = step
        whole.gradients.zero_()
        begin = time.perf_counter()
        whole.step(batch, step)
        took.append(time.perf_counter() - begin)
        if step >= MIN_STEPS and time.monotonic() > deadline:
            break
    torch.set_num_threads(own)
    return _pick(took)


def _time_beside_others(
    config: OperatorSetup, mailbox: Mailbox, batch: Data, progress: RoleProgress, steps: int
) -> tuple[list[float], list[float]]:
    """Return the seconds of each step while all processes make the same step at once, and of its segments together."""
    worker, took = make_worker(config, mailbox), list[float]()
    worker.trace = Trace(range(1, steps), clock=_choose_clock())
    for step in range(steps):
        worker.gradients.zero_()
        progress.value = step
        moment = agree_on_start(mailbox, config.processes, config.number, step)
        worker.step(batch, step)
        took.append(time.monotonic() - moment)
    computed = defaultdict[int, float](float)
    for span in worker.trace.spans:
        if span.kind in (FORWARD, BACKWARD):
            computed[span.step] += span.stop_s - span.start_s
    return took, list(computed.values())


def _choose_clock() -> Callable[[], float]:
    return time.thread_time if torch.get_num_threads() == 1 else time.perf_counter


def _collect(worker: Worker) -> Medians:
    """Return the seconds of each segment, forward and backward, of a step that no other work disturbed."""
    seconds = defaultdict[tuple[str, int], list[float]](list)
    for span in worker.trace.spans:
        seconds[span.kind, span.part].append(span.stop_s - span.start_s)
    count = len(worker.program.segments)
    return [(_pick(seconds[FORWARD, part]), _pick(seconds[BACKWARD, part])) for part in range(count)]


def _measure_peak(config: OperatorSetup, mailbox: Mailbox, batch: Data) -> int:
    worker = make_worker(msgspec.structs.replace(config, program=config.whole), mailbox)
    pushed = hold_pushed(worker)
    restart_peak()
    deadline = time.monotonic() + PEAK_BUDGET_S
    for step in range(PEAK_STEPS):
        worker.gradients.zero_()
        worker.step(batch, -1 - step)
        if step >= MIN_STEPS and time.monotonic() > deadline:
            break
    del pushed
    return read_memory("VmHWM")


def _pick(seconds: list[float]) -> float:
    return sorted(seconds)[len(seconds) // 4]
