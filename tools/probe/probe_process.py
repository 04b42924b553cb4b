"""A process of `cutset probe`: it times operators by themselves, then steps of chains together with its peer.

Operators of about one size are timed in turn, again and again, as they come in a step: the same one twice in a row
would find the machine's caches full of itself, and a small one after a large one would find them empty. Where torch has
one thread, it is this thread's time that counts: other work on the machine hardly disturbs it.
"""

import statistics
import time
from collections.abc import Callable
from typing import Any

import msgspec
import torch

from ...models.task import Data
from ...models.tasks import locally_connected as local  # noqa: F401 - defines the operator of locally connected layers
from ...runtime.channel.channel import Channel
from ...runtime.channel.mailbox import Mailbox
from ...runtime.channel.zmq_channel import ZmqChannel
from ...runtime.hosts.heartbeat import RoleProgress
from ...runtime.worker.program import Program
from ...runtime.worker.worker import Worker
from .operator_timer import OperatorTimer, choose_clock, make_random_states
from .timed_worker import agree_on_start, read_peak_bytes, restart_peak

PROBE_ENTRY = "cutset.tools.probe.probe_process:run_probe"
PROBE_TIMEOUT_S = 120.0
WARM_UP = 3
FIRST_CHAIN = 1 << 10  # number of a chain that is not timed
TURNS = 5  # that chains take, so that a busy second does not hit one of them alone

Times = dict[str, tuple[list[float], list[float]]]


class ChainPart(msgspec.Struct, frozen=True):
    """program: msgpack of this machine's part, empty for none; together: whether the peer has the other part; width:
    elements of a tensor; ways: how many there are; steps: how many to time in each turn."""

    program: bytes
    width: int
    ways: int
    together: bool
    steps: int


class ProbeSetup(msgspec.Struct, frozen=True):
    """machine: 0 or 1. gallery: msgpack of the Program of all operators to time, empty for none.

    groups: subjects that are timed in turn, each with the names of its operators. seconds: how long to time operators
    at most, and at least once each. single: then also with one thread.
    """

    machine: int
    peers: list[str]
    gallery: bytes
    groups: list[dict[str, list[str]]]
    seconds: float
    single: bool
    crowded: bool
    chains: list[ChainPart]


class ProbeTimes(msgspec.Struct, frozen=True):
    """What was timed.

    subjects: seconds forward and backward of each round, by name; single: with one thread; crowded: of the last group,
    while the other process timed it, too. chains: begin and end of each step, and for how long all threads of this
    process had a core meanwhile, but for what they looked for messages. copy: bytes/s of a large copy, both ways; draw:
    random numbers a second, as masks are made of them. taken_bytes: the most memory that the process took for steps of
    a net that has next to no tensors.
    """

    subjects: Times
    single: Times
    crowded: Times
    chains: list[list[tuple[float, float, float]]]
    copy: float
    draw: float
    taken_bytes: int


def run_probe(channel: Channel, setup: Any, progress: RoleProgress) -> dict[str, Any]:
    """Time everything that the setup names."""
    config = msgspec.convert(setup, ProbeSetup)
    mailbox, read_busy = Mailbox(channel, timeout_s=PROBE_TIMEOUT_S), _measure_busy(channel)
    restart_peak()
    _time_chain(mailbox, config, FIRST_CHAIN, config.chains[1], read_busy)  # the smallest messages, between both
    taken = read_peak_bytes()
    chains = _time_chains(mailbox, config, progress, read_busy)
    progress.value = "operators"
    groups = _make_timers(config) if config.gallery else []
    works = config.machine == 0  # the other one waits meanwhile, so that this one has the host to itself
    subjects = _time_groups(groups, config.seconds) if works else {}
    single = _time_single_thread(groups, config.seconds / 2) if works and config.single else {}
    copy, draw = (_measure_copy(), _measure_random()) if works else (0.0, 0.0)
    agree_on_start(mailbox, config.peers, config.machine, -1)
    crowded = _time_groups(groups[-1:], config.seconds / 4) if config.crowded else {}
    progress.value = None
    times = ProbeTimes(subjects, single, crowded, chains, copy, draw, taken)
    return msgspec.to_builtins(times)  # type: ignore[no-any-return]


# Operators ---------------------------------------------------------------------------------------------------------


def _make_timers(config: ProbeSetup) -> list[dict[str, OperatorTimer]]:
    program = msgspec.msgpack.decode(config.gallery, type=Program)
    states = make_random_states(program)
    steps = [step for segment in program.segments for step in segment.steps]
    return [
        {name: OperatorTimer(program, [s for s in steps if s.op in ops], states) for name, ops in group.items()}
        for group in config.groups
    ]


def _time_groups(groups: list[dict[str, OperatorTimer]], seconds: float) -> Times:
    """Return the seconds of every round, by subject; each group gets its part of `seconds`, and at least one round."""
    times: Times = {name: ([], []) for group in groups for name in group}
    for group in groups:
        for one in group.values():  # not counted: kernels are chosen, memory is mapped
            one.run()
        deadline = time.monotonic() + seconds / len(groups)
        while True:
            for name, one in group.items():
                forward, backward = one.run()
                times[name][0].append(forward)
                times[name][1].append(backward)
            if time.monotonic() > deadline:
                break
    return times


def _time_single_thread(groups: list[dict[str, OperatorTimer]], seconds: float) -> Times:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _time_groups(groups, seconds)
    finally:
        torch.set_num_threads(threads)


def _measure_copy() -> float:
    """Return the bytes/s that a copy of 64 MiB reads and writes, the best of five."""
    source = torch.zeros(16 << 20)
    target = torch.zeros(16 << 20)
    best, clock = float("inf"), choose_clock()
    for _ in range(5):
        begin = clock()
        target.copy_(source)
        best = min(best, clock() - begin)
    return 2 * source.numel() * source.element_size() / best


def _measure_random() -> float:
    """Return the random numbers per second of a mask of a million, the median of five."""
    numbers, generator = torch.empty(1 << 20), torch.Generator().manual_seed(0)
    times, clock = [], choose_clock()
    for _ in range(5):
        begin = clock()
        numbers.bernoulli_(0.9, generator=generator).div_(0.9)
        times.append(clock() - begin)
    return numbers.numel() / statistics.median(times)


# Chains ------------------------------------------------------------------------------------------------------------


def _measure_busy(channel: Channel) -> Callable[[], float]:
    """Return what says for how long this process has had cores, all threads together, but for looking for messages.

    Who waits looks for some time before it sleeps; that takes a core only from those that do nothing either.
    """
    assert isinstance(channel, ZmqChannel)  # as those of all roles are
    return lambda: time.process_time() - channel.looking_s


def _time_chains(
    mailbox: Mailbox, config: ProbeSetup, progress: RoleProgress, read_busy: Callable[[], float]
) -> list[list[tuple[float, float, float]]]:
    """Return every step of every chain: its begin and end, and for how long this process was busy."""
    chains: list[list[tuple[float, float, float]]] = [[] for _ in config.chains]
    for turn in range(TURNS):
        for i, chain in enumerate(config.chains):
            progress.value = f"chain {i}, turn {turn}"
            chains[i] += _time_chain(mailbox, config, turn * len(config.chains) + i, chain, read_busy)
    return chains


def _time_chain(
    mailbox: Mailbox, config: ProbeSetup, number: int, chain: ChainPart, read_busy: Callable[[], float]
) -> list[tuple[float, float, float]]:
    """Return every step of a chain, which both machines begin together if both have a part in it."""
    if not chain.program:
        return []
    program = msgspec.msgpack.decode(chain.program, type=Program)
    worker = Worker(program, mailbox, config.peers, tag=f"chain {number} ")
    batch = Data((torch.ones(1, chain.width),) * chain.ways, ())
    clock = time.monotonic if chain.together else choose_clock()
    times = []
    peers = config.peers if chain.together else config.peers[:1]
    for step in range(WARM_UP + chain.steps):
        moment = agree_on_start(mailbox, peers, program.machine, number << 20 | step)
        busy, begin = read_busy(), moment if chain.together else clock()
        worker.step(batch, step)
        times.append((begin, clock(), read_busy() - busy))
    return times[WARM_UP:]
