"""The processes that measure the operators of a task, each by itself in whole steps (see task_operators.py).

The speed of a machine that others share changes within seconds, so what is compared is measured in turn: a round has
some steps of each kind, of which the last counts, as the first find caches and threads as another kind has left them.
"""

import math
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import torch

from ...models.task import Data
from ...runtime.channel.channel import Channel
from ...runtime.channel.mailbox import Mailbox
from ...runtime.channel.message import Message
from ...runtime.held_memory import read_resident_bytes, return_free_memory
from ...runtime.hosts.heartbeat import RoleProgress
from ...runtime.worker.trace import Trace
from ...runtime.worker.worker import BACKWARD, FORWARD, Worker
from .operator_halves import time_halves
from .operator_timer import choose_clock
from .timed_worker import (
    StepSetup,
    agree_on_start,
    hold_pushed,
    make_batch,
    make_worker,
    read_peak_bytes,
    restart_peak,
)

ENTRY = "cutset.tools.probe.operator_process:time_operators"
TIMEOUT_S = 120.0  # of those that wait while the first works alone
BUDGET_S, MIN_STEPS, MAX_STEPS = 4.5, 3, 30  # of all rounds
UNCOUNTED = -1  # number of the first round, and of steps before one that counts
AFTER_PEAK = -3  # number of the start that all processes agree on once they have measured their memory
SETTLING, SETTLING_S = 3, 0.2  # steps before one that counts, and how long they may take
PEAK_BUDGET_S, PEAK_STEPS = 3.0, 30  # what malloc holds grows for some steps, as what is freed leaves holes

Medians = list[tuple[float, float]]


class OperatorSetup(StepSetup, frozen=True):
    """What one of the processes does. whole: msgpack of the program whose memory is measured; `program` has a segment
    for each operator. threads: of torch, for all the cores. processes: all of them, by name; number: of this one, of
    which the first works alone, too. halves: programs of large operators and of their halves, see `list_halves`."""

    whole: bytes = b""
    threads: int = 1
    processes: tuple[str, ...] = ()
    number: int = 0
    halves: tuple[tuple[bytes, ...], ...] = ()


class OperatorTimes(msgspec.Struct, frozen=True):
    """segments: median seconds of each segment, forward and backward, while no other process works, none where that was
    not measured. peak_bytes: of a process that has the whole model; resting_bytes: that it has between two steps. The
    rest is by rounds, and empty where it was not measured. whole_s: seconds of that process's step; undivided_s: of
    such a step by one process with all the cores. alone_s, crowded_s: seconds of a step of segments by itself and
    beside others, from the moment at which all begin; computed_alone_s, crowded_segments_s: without the waiting for a
    core, of the first, and of each segment of the second, in their order. halves: what `time_halves` found."""

    segments: Medians
    peak_bytes: int
    resting_bytes: int
    whole_s: list[float] = []
    undivided_s: list[float] = []
    alone_s: list[float] = []
    crowded_s: list[float] = []
    computed_alone_s: list[float] = []
    crowded_segments_s: list[list[float]] = []
    halves: list[Medians] = []


def time_operators(channel: Channel, setup: Any, progress: RoleProgress) -> dict[str, Any]:
    """Return what a process with the whole model takes, and what its steps and their segments take by themselves."""
    config, mailbox = msgspec.convert(setup, OperatorSetup), Mailbox(channel, timeout_s=TIMEOUT_S)
    batch = make_batch(config)
    memory = _measure_memory(config, mailbox, batch)
    agree_on_start(mailbox, config.processes, config.number, AFTER_PEAK)
    rounds = _Rounds(config, mailbox, batch, progress)
    for number in range(_agree_on_rounds(rounds, mailbox, config)):
        rounds.make(number)
    halves = [] if config.number else time_halves(config.halves, progress)
    return msgspec.to_builtins(msgspec.structs.replace(rounds.collect(*memory), halves=halves))  # type: ignore[no-any-return]


def _agree_on_rounds(rounds: "_Rounds", mailbox: Mailbox, config: OperatorSetup) -> int:
    """Return how many rounds there will be: as many as the first process has time for, by one that does not count."""
    first, *others = config.processes
    if config.number:
        count = int(mailbox.wait([(first, "rounds", 0, 0, 0)]).body["count"])
    else:
        begin = time.monotonic()
        rounds.make_own(UNCOUNTED)
        steps_s = time.monotonic() - begin
        count = min(config.steps, max(MIN_STEPS, int(BUDGET_S / steps_s)))
        for name in others:
            mailbox.send(name, Message("rounds", body={"count": count}))
    rounds.make_crowded(UNCOUNTED)
    return count


class _Rounds:
    """The rounds of one process. The first makes steps alone, and then one beside the others, which make no other."""

    def __init__(self, config: OperatorSetup, mailbox: Mailbox, batch: Data, progress: RoleProgress) -> None:
        self._config, self._mailbox, self._batch, self._progress = config, mailbox, batch, progress
        self._clock, self._threads = choose_clock(), torch.get_num_threads()
        self._whole = None if config.number else make_worker(_with_whole(config), mailbox)
        self._divided = make_worker(config, mailbox)
        self._divided.trace = Trace(range(2 * config.steps), clock=self._clock)
        self._whole_s, self._undivided_s = list[float](), list[float]()
        self._alone_s, self._crowded_s = list[float](), list[float]()
        self._step_s = math.inf

    def make(self, number: int) -> None:
        """Make the steps of a round."""
        self.make_own(number)
        self.make_crowded(number)

    def make_own(self, number: int) -> None:
        """Make the steps of a round that this process makes while no other one works."""
        if self._whole is None:
            return
        if self._config.threads > self._threads:
            torch.set_num_threads(self._config.threads)
            took = self._time_whole(self._whole, number, time.perf_counter)
            self._undivided_s += [took] if number >= 0 else []
            torch.set_num_threads(self._threads)
        took = self._time_whole(self._whole, number, self._clock)
        self._whole_s += [took] if number >= 0 else []
        self._time_divided(2 * number, self._config.processes[:1], self._alone_s)

    def make_crowded(self, number: int) -> None:
        """Make the step of a round that all processes make at once."""
        if len(self._config.processes) > 1:
            self._time_divided(2 * number + 1, self._config.processes, self._crowded_s)

    def collect(self, peak_bytes: int, resting_bytes: int) -> OperatorTimes:
        """Return what the rounds took. peak_bytes, resting_bytes: what the whole model took before."""
        segments, computed = defaultdict[tuple[str, int], list[float]](list), defaultdict[int, list[float]](list)
        for span in self._divided.trace.spans:
            if span.kind not in (FORWARD, BACKWARD):
                continue
            computed[span.step].append(span.stop_s - span.start_s)
            if not span.step % 2:
                segments[span.kind, span.part].append(span.stop_s - span.start_s)
        parts = range(0 if self._whole is None else len(self._divided.program.segments))
        middle = {key: statistics.median(seconds) for key, seconds in segments.items()}
        return OperatorTimes(
            [(middle.get((FORWARD, part), 0.0), middle.get((BACKWARD, part), 0.0)) for part in parts],
            peak_bytes,
            resting_bytes,
            self._whole_s,
            self._undivided_s,
            self._alone_s,
            self._crowded_s,
            [sum(computed[step]) for step in sorted(computed) if not step % 2],
            [computed[step] for step in sorted(computed) if step % 2],
        )

    def _time_whole(self, worker: Worker, number: int, clock: Callable[[], float]) -> float:
        self._progress.value = f"round {number}, {torch.get_num_threads()} threads"
        self._settle(worker)
        # A pause, after which caches and threads are as in training, and as where steps are measured
        agree_on_start(self._mailbox, self._config.processes[:1], self._config.number, number)
        begin = clock()
        worker.step(self._batch, number)
        return clock() - begin

    def _time_divided(self, step: int, processes: Sequence[str], took: list[float]) -> None:
        self._progress.value = None  # who awaits the steps of the first process is not stuck
        agree_on_start(self._mailbox, processes, self._config.number, step)  # until then the others do nothing
        self._progress.value = f"step {step}"
        self._settle(self._divided)
        moment = agree_on_start(self._mailbox, processes, self._config.number, step)
        self._divided.step(self._batch, step)
        self._step_s = time.monotonic() - moment
        took += [self._step_s] if step >= 0 else []

    def _settle(self, worker: Worker) -> None:
        """Make some short steps before the one that counts; long ones fill the caches, and wake threads, themselves."""
        for _ in range(min(SETTLING, int(SETTLING_S / self._step_s))):
            worker.step(self._batch, UNCOUNTED)
        worker.gradients.zero_()


def _with_whole(config: OperatorSetup) -> OperatorSetup:
    return msgspec.structs.replace(config, program=config.whole)


def _measure_memory(config: OperatorSetup, mailbox: Mailbox, batch: Data) -> tuple[int, int]:
    """Return the most that the whole model takes in a step, and what it holds between steps."""
    worker = make_worker(_with_whole(config), mailbox)
    pushed = hold_pushed(worker)
    restart_peak()
    deadline = time.monotonic() + PEAK_BUDGET_S
    for step in range(PEAK_STEPS):
        worker.gradients.zero_()
        worker.step(batch, -1 - step)
        if step >= MIN_STEPS and time.monotonic() > deadline:
            break
    return_free_memory()
    peak, resting = read_peak_bytes(), read_resident_bytes()
    del pushed
    return peak, resting
