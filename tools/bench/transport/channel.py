"""How fast tensors go from one process of this host to another: our ways beside memcpy, a raw socket and gloo.

Two processes; every way and every size takes its turn in each round, so that a busy second hits all of them alike. One
way: a stream of tensors, acknowledged after each half of what may be on its way. To and fro: one goes there and comes
back.
"""

import statistics
import time
import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import msgspec
import torch

from ....runtime.launcher.heartbeat import Beacon
from ....runtime.channel.channel import Channel
from ....runtime.launcher.launcher import Launcher, Role
from ...report.console import make_console, print_columns
from ...units import bytes_text, seconds_text
from .transports import GLOO, MEMCPY, RAW, TRANSPORTS, Ask, Transport, mailbox_of, opened

EXCHANGING = "cutset.tools.bench.transport.channel:exchanging"
SIZES = (1 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20)
ROUNDS = 7
STREAM_BYTES, RETURN_BYTES = 128 << 20, 32 << 20  # in a turn, but for so few and so many tensors
FEWEST, MOST = 3, 400
WINDOW_BYTES, WINDOW_TENSORS = 16 << 20, 64  # on their way at most
NAMES = ("bench-0", "bench-1")


class Setup(msgspec.Struct, frozen=True):
    """machine: 0, whose clock counts, or 1. share: of what is sent in a turn otherwise."""

    machine: int
    transports: list[str]
    sizes: list[int]
    rounds: int
    share: float


@dataclass(frozen=True)
class ChannelRow:
    """One way and size: bytes a second one way, and seconds to and fro, of every round."""

    transport: str
    size: int
    rates: tuple[float, ...]
    returns: tuple[float, ...]

    @property
    def rate(self) -> float:
        """The median rate."""
        return statistics.median(self.rates)

    @property
    def there_and_back_s(self) -> float:
        """The median of the seconds to and fro."""
        return statistics.median(self.returns)


def measure(
    *, transports: Sequence[str] = TRANSPORTS, sizes: Sequence[int] = SIZES, rounds: int = ROUNDS, share: float = 1.0
) -> list[ChannelRow]:
    """All rows, by size."""
    setups = [Setup(i, list(transports), list(sizes), rounds, share) for i in range(2)]
    roles = [Role(name, EXCHANGING, msgspec.to_builtins(setup)) for name, setup in zip(NAMES, setups, strict=True)]
    with Launcher(roles, job=f"channel-{uuid.uuid4().hex[:12]}") as launcher:
        timed, _ = launcher.run()
    return [
        ChannelRow(transport, size, *(tuple(one[i] for one in timed[f"{transport} {size}"]) for i in range(2)))
        for size in sizes
        for transport in transports
    ]


def exchanging(channel: Channel, setup: Any, beacon: Beacon) -> dict[str, list[tuple[float, float]]]:
    """The role of either process: (bytes/s, seconds to and fro) of every round, by way and size."""
    given = msgspec.convert(setup, Setup)
    torch.set_num_threads(1)
    ask = Ask(mailbox_of(channel), NAMES[1 - given.machine])
    ways = {name: opened(name, given.machine, ask) for name in given.transports}
    times: dict[str, list[tuple[float, float]]] = {}
    for turn in range(-1, given.rounds):  # one that does not count: connections and memory are made
        for size in given.sizes:
            for name, way in ways.items():
                beacon.progress = f"{name}, {size} bytes, round {turn}"
                ask.both(None)
                one = _turn(way, given.machine, size, given.share, alone=name == MEMCPY)
                if turn >= 0:
                    times.setdefault(f"{name} {size}", []).append(one)
    ask.both(None)
    for way in ways.values():
        way.close()
    return times


def _turn(way: Transport, machine: int, size: int, share: float, *, alone: bool) -> tuple[float, float]:
    count = _count(STREAM_BYTES, size, share)
    half = max(1, min(WINDOW_TENSORS, WINDOW_BYTES // size) // 2)
    tensor, small = torch.ones(size, dtype=torch.uint8), torch.ones(1, dtype=torch.uint8)
    if alone:
        return _alone(way, tensor, count) if machine == 0 else (0.0, 0.0)
    begin = time.perf_counter()
    unanswered = 0
    for i in range(count):
        ends = (i + 1) % half == 0 or i + 1 == count
        if machine == 1:
            way.receive(size)
            if ends:
                way.send(small)
            continue
        way.send(tensor)
        unanswered += ends
        if unanswered > 1:
            way.receive(1)
            unanswered -= 1
    for _ in range(unanswered):
        way.receive(1)
    rate = size * count / (time.perf_counter() - begin)
    count = _count(RETURN_BYTES, size, share)
    begin = time.perf_counter()
    for _ in range(count):
        if machine == 0:
            way.send(tensor)
            way.receive(size)
        else:
            way.send(way.receive(size))
    return rate, (time.perf_counter() - begin) / count


def _alone(way: Transport, tensor: torch.Tensor, count: int) -> tuple[float, float]:
    way.send(tensor)
    begin = time.perf_counter()
    for _ in range(count):
        way.send(tensor)
    seconds = (time.perf_counter() - begin) / count
    return tensor.numel() / seconds, 2 * seconds


def _count(total: int, size: int, share: float) -> int:
    return max(FEWEST, min(int(share * MOST), int(share * total) // size))


def as_data(row: ChannelRow) -> dict[str, Any]:
    """A row for JSON."""
    return {**asdict(row), "rate": row.rate, "there_and_back_s": row.there_and_back_s}


def print_rows(rows: Sequence[ChannelRow]) -> None:
    """Print medians, and what they are of those of a raw socket and of gloo."""
    console = make_console()
    by = {(row.transport, row.size): row for row in rows}
    cells = []
    for row in rows:
        against = [by.get((other, row.size)) for other in (RAW, GLOO)]
        ratios = [f"{row.rate / other.rate:.2f}" if other else "-" for other in against]
        ratios += [f"{row.there_and_back_s / other.there_and_back_s:.2f}" if other else "-" for other in against[1:]]
        times = f"{row.rate / 1e9:.2f} GB/s", seconds_text(row.there_and_back_s)
        cells.append((bytes_text(row.size), row.transport, *times, *ratios))
    columns = ("size", "way", "one way", "to and fro", "of raw TCP", "of gloo", "to and fro, of gloo")
    print_columns(console, columns, cells, left=2)
