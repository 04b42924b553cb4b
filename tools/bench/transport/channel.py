"""`cutset bench channel`: how fast tensors travel between two processes of this host, by every transport.

Every transport and every size is timed once in each round, so that a disturbance hits all of them alike. One way: a
stream of tensors, acknowledged after each half of the window. Round trip: one tensor goes there and comes back.
"""

import statistics
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import torch

from ....runtime.channel.channel import Channel
from ....runtime.hosts.heartbeat import RoleProgress
from ....runtime.hosts.host import Role
from ....runtime.launcher.launcher import Launcher
from ...units import format_bytes, format_seconds
from ..bench_table import BenchTable, Column, format_rate
from .transports import GLOO, MEMCPY, RAW, TRANSPORTS, Handshake, Transport, make_mailbox, open_transport

ENTRY = "cutset.tools.bench.transport.channel:run_process"
SIZES = (1 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20)
ROUNDS = 7
STREAM_BYTES, RETURN_BYTES = 128 << 20, 32 << 20  # sent in each round, within the limits on the number of tensors
MIN_TENSORS, MAX_TENSORS = 3, 400
WINDOW_BYTES, WINDOW_TENSORS = 16 << 20, 64  # limits on what is in flight
NAMES = ("bench-0", "bench-1")


class ChannelSetup(msgspec.Struct, frozen=True):
    """What one of the two processes does. machine: 0, whose clock counts, or 1.

    fraction: of the usual bytes, how much to send in each round.
    """

    machine: int
    transports: list[str]
    sizes: list[int]
    rounds: int
    fraction: float


@dataclass(frozen=True)
class ChannelRates:
    """One transport and tensor size: in each round the bytes per second one way, and the seconds of a round trip."""

    transport: str
    size: int
    rates: tuple[float, ...]
    returns: tuple[float, ...]

    @property
    def rate(self) -> float:
        """The median rate one way, in bytes/s."""
        return statistics.median(self.rates)

    @property
    def there_and_back_s(self) -> float:
        """The median round trip in seconds."""
        return statistics.median(self.returns)


def tabulate(rows: Sequence[ChannelRates]) -> BenchTable[ChannelRates]:
    """Return the table of medians, and of their ratios to those of a raw socket and of gloo."""
    by_key = {(row.transport, row.size): row for row in rows}

    def compare(other: str, attribute: str) -> Callable[[ChannelRates], float | None]:
        def get_ratio(row: ChannelRates) -> float | None:
            reference = by_key.get((other, row.size))
            return None if reference is None else getattr(row, attribute) / getattr(reference, attribute)

        return get_ratio

    ratio = "{:.2f}".format
    columns: list[Column[ChannelRates]] = [
        Column("size", "size", format_bytes, align="left"),
        Column("transport", "transport", align="left"),
        Column("one way", "rate", format_rate),
        Column("round trip", "there_and_back_s", format_seconds),
        Column(f"of {RAW}", "", ratio, compare(RAW, "rate")),
        Column(f"of {GLOO}", "", ratio, compare(GLOO, "rate")),
        Column(f"round trip of {GLOO}", "", ratio, compare(GLOO, "there_and_back_s")),
        Column("", "rates"),
        Column("", "returns"),
    ]
    return BenchTable(columns, rows)


def measure(
    *,
    transports: Sequence[str] = TRANSPORTS,
    sizes: Sequence[int] = SIZES,
    rounds: int = ROUNDS,
    fraction: float = 1.0,
) -> list[ChannelRates]:
    """Time all transports and sizes; results are ordered by size. fraction: of the usual bytes, how much to send."""
    setups = [ChannelSetup(i, list(transports), list(sizes), rounds, fraction) for i in range(2)]
    roles = [Role(name, ENTRY, msgspec.to_builtins(setup)) for name, setup in zip(NAMES, setups, strict=True)]
    with Launcher(roles, job=f"channel-{uuid.uuid4().hex[:12]}") as launcher:
        timed, _ = launcher.run()
    return [
        ChannelRates(transport, size, *(tuple(times[i] for times in timed[f"{transport} {size}"]) for i in range(2)))
        for size in sizes
        for transport in transports
    ]


def run_process(channel: Channel, setup: Any, progress: RoleProgress) -> dict[str, list[tuple[float, float]]]:
    """Run one of the two processes: (bytes/s, seconds of a round trip) of every round, by transport and size."""
    config = msgspec.convert(setup, ChannelSetup)
    torch.set_num_threads(1)
    handshake = Handshake(make_mailbox(channel), NAMES[1 - config.machine])
    transports = {name: open_transport(name, config.machine, handshake) for name in config.transports}
    times: dict[str, list[tuple[float, float]]] = {}
    for number in range(-1, config.rounds):  # the first is a warm-up: connections are made and memory is allocated
        for size in config.sizes:
            for name, transport in transports.items():
                progress.value = f"{name}, {size} bytes, round {number}"
                handshake.exchange(None)
                timed = _time_transport(transport, config, size, alone=name == MEMCPY)
                if number >= 0:
                    times.setdefault(f"{name} {size}", []).append(timed)
    handshake.exchange(None)
    for transport in transports.values():
        transport.close()
    return times


def _time_transport(transport: Transport, config: ChannelSetup, size: int, *, alone: bool) -> tuple[float, float]:
    """Time a stream and round trips. alone: whether the transport (memcpy) needs no other process."""
    count = _count_tensors(STREAM_BYTES, size, config.fraction)
    tensor = torch.ones(size, dtype=torch.uint8)
    if alone:
        return _time_alone(transport, tensor, count) if config.machine == 0 else (0.0, 0.0)
    begin = time.perf_counter()
    if config.machine == 0:
        _send_stream(transport, tensor, count)
    else:
        _receive_stream(transport, size, count)
    rate = size * count / (time.perf_counter() - begin)
    count = _count_tensors(RETURN_BYTES, size, config.fraction)
    begin = time.perf_counter()
    for _ in range(count):
        if config.machine == 0:
            transport.send(tensor)
            transport.receive(size)
        else:
            transport.send(transport.receive(size))
    return rate, (time.perf_counter() - begin) / count


def _is_acknowledged(i: int, size: int, count: int) -> bool:
    """Whether the receiver acknowledges tensor i of a stream: the last of each half of the window, and of all."""
    half = max(1, min(WINDOW_TENSORS, WINDOW_BYTES // size) // 2)
    return (i + 1) % half == 0 or i + 1 == count


def _send_stream(transport: Transport, tensor: torch.Tensor, count: int) -> None:
    unacknowledged = 0
    for i in range(count):
        transport.send(tensor)
        unacknowledged += _is_acknowledged(i, tensor.numel(), count)
        if unacknowledged > 1:
            transport.receive(1)
            unacknowledged -= 1
    for _ in range(unacknowledged):
        transport.receive(1)


def _receive_stream(transport: Transport, size: int, count: int) -> None:
    acknowledgement = torch.ones(1, dtype=torch.uint8)
    for i in range(count):
        transport.receive(size)
        if _is_acknowledged(i, size, count):
            transport.send(acknowledgement)


def _time_alone(transport: Transport, tensor: torch.Tensor, count: int) -> tuple[float, float]:
    transport.send(tensor)
    begin = time.perf_counter()
    for _ in range(count):
        transport.send(tensor)
    seconds = (time.perf_counter() - begin) / count
    return tensor.numel() / seconds, 2 * seconds


def _count_tensors(total: int, size: int, fraction: float) -> int:
    """Return how many tensors of a size come to a fraction of `total` bytes, within the limits."""
    return max(MIN_TENSORS, min(int(fraction * MAX_TENSORS), int(fraction * total) // size))
