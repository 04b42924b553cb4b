"""What a link between two machines does: a raw connection, and messages as workers send them.

One machine sends a message of some size and the other sends it back, as fast as it can. Half the time of a round is
what a message takes; sizes make a line, whose slope is more than that of the wire: a tensor is encrypted before it is
sent and decrypted when all of it is there. A message of machines that have computed meanwhile takes longer: what they
send it with is in no cache any more.
"""

import math
import socket
import statistics
import time
from dataclasses import dataclass
from typing import Any

import msgspec
import torch

from ....runtime.channel.channel import Channel
from ....runtime.channel.mailbox import Mailbox
from ....runtime.channel.message import Message
from ....runtime.hosts.heartbeat import RoleProgress
from ....runtime.hosts.host import Role
from ...measured.other_work import CoresUsed
from ...probe.measure_step import ProcessPlacement

ENTRY = "cutset.tools.bench.cluster.link:run_probe"
SIZES = (1 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20)
ROUNDS, WARM_UP, EXCHANGES = 12, 3, 40
WORK_S, WORK_SIZE = 5e-3, 512  # of machines that compute between messages: products of matrices of so many rows
HANDLING_S, MAX_ROUNDS, MIN_BUSY_S = 1.0, 200, 0.1  # the system tells what cores did in hundredths of a second
RAW_BYTES, CHUNK = 24 << 20, 1 << 20
PEERS = ["probe-0", "probe-1"]
TIMEOUT_S = 30.0


class LinkSetup(msgspec.Struct, frozen=True):
    """What one of the two machines does. machine: 0 or 1; host: the address of machine 1 for the raw connection."""

    machine: int
    host: str


class LinkSamples(msgspec.Struct, frozen=True):
    """What a machine measured: bytes/s of the raw connection, seconds of each round by size, and of each send.

    exchanges: when the machine began to send the smallest message after some work, and when it had the other one's; of
    all else, what the first machine measured counts. handled_per_s: as of `LinkTimes`.
    """

    raw: float
    rounds: dict[int, list[float]]
    sends: list[float]
    exchanges: list[tuple[float, float]]
    handled_per_s: float | None


@dataclass(frozen=True)
class LinkTimes:
    """What a link does. raw: bytes/s of one TCP connection. points: (bytes, median seconds of a message one way).

    message_s: what a worker spends on handing a message over, or on taking one. after_work_s: median seconds until two
    machines that have computed meanwhile have each other's smallest message. handled_per_s: bytes/s that a core can
    handle at one end, of the host of both; None where nobody knows.
    """

    raw: float
    points: tuple[tuple[int, float], ...]
    message_s: float
    after_work_s: float
    handled_per_s: float | None = None


def measure_link(process_placement: ProcessPlacement) -> LinkTimes:
    """Measure the link between machines 0 and 1, with nothing else on the network."""
    address = process_placement.hosts[1].address if process_placement.hosts else process_placement.address
    roles = [
        process_placement.place_role(Role(name, ENTRY, msgspec.to_builtins(LinkSetup(i, address))), i)
        for i, name in enumerate(PEERS)
    ]
    with process_placement.make_launcher(roles, "link") as launcher:
        timed, other = (msgspec.convert(one, LinkSamples, strict=False) for one in launcher.run())
    points = [(size, statistics.median(times[WARM_UP:]) / 2) for size, times in sorted(timed.rounds.items())]
    exchanges = list(zip(timed.exchanges, other.exchanges, strict=True))[WARM_UP:]
    after_work_s = statistics.median(max(a[1], b[1]) - max(a[0], b[0]) for a, b in exchanges)
    return LinkTimes(timed.raw, tuple(points), statistics.median(timed.sends), after_work_s, timed.handled_per_s)


def run_probe(channel: Channel, setup: Any, progress: RoleProgress) -> dict[str, Any]:
    """Run one of the two machines."""
    link_setup = msgspec.convert(setup, LinkSetup)
    mailbox = Mailbox(channel, timeout_s=TIMEOUT_S)
    raw = _receive_raw(mailbox, link_setup) if link_setup.machine else _send_raw(mailbox)
    rounds, sends = dict[int, list[float]](), list[float]()
    for number, size in enumerate(SIZES):
        tensor = torch.zeros(size, dtype=torch.uint8)
        rounds[size] = [
            _time_round(mailbox, link_setup.machine, number << 10 | i, tensor, sends) for i in range(ROUNDS)
        ]
        progress.value = number + 1
    exchanges = [_time_exchange(mailbox, link_setup.machine, i) for i in range(WARM_UP + EXCHANGES)]
    handled_per_s = _measure_handling(mailbox, link_setup.machine, raw)
    samples = LinkSamples(raw, rounds, sends, exchanges, handled_per_s)
    return msgspec.to_builtins(samples, str_keys=True)  # type: ignore[no-any-return]


def _measure_handling(mailbox: Mailbox, machine: int, raw: float) -> float | None:
    """Return the bytes/s that a core handles at one end, of what all cores of the host do for some rounds.

    raw: bytes/s of the connection, of which both machines know the same number. None where that is not known, and in
    machine 1.
    """
    size = SIZES[-1]
    rounds = min(MAX_ROUNDS, max(ROUNDS, math.ceil(HANDLING_S * raw / (2 * size))))
    tensor, before = torch.zeros(size, dtype=torch.uint8), CoresUsed.read() if machine == 0 else None
    for i in range(rounds):
        _time_round(mailbox, machine, len(SIZES) << 10 | i, tensor, [])
    after = CoresUsed.read() if machine == 0 else None
    if before is None or after is None or after.busy_s - before.busy_s < MIN_BUSY_S:
        return None
    return 2 * 2 * rounds * size / (after.busy_s - before.busy_s)  # there and back, and at both ends


def _time_round(mailbox: Mailbox, machine: int, step: int, tensor: torch.Tensor, sends: list[float]) -> float:
    """Return the seconds of a round trip."""
    peer, begin = PEERS[1 - machine], time.monotonic()
    message = Message("ball", step, tensors=(tensor,))
    if machine == 1:
        mailbox.wait([(peer, "ball", step, 0, 0)])
    busy = time.thread_time()
    mailbox.send(peer, message)
    sends.append(time.thread_time() - busy)
    if machine == 0:
        mailbox.wait([(peer, "ball", step, 0, 0)])
    return time.monotonic() - begin


def _time_exchange(mailbox: Mailbox, machine: int, step: int) -> tuple[float, float]:
    """Compute, then send the smallest message to the other machine, and take its; return when both began and ended.

    By the clock of the host, which both have.
    """
    peer, tensor = PEERS[1 - machine], torch.zeros(SIZES[0], dtype=torch.uint8)
    _work(WORK_S)
    begin = time.monotonic()
    mailbox.send(peer, Message("exchange", step, tensors=(tensor,)))
    mailbox.wait([(peer, "exchange", step, 0, 0)])
    return begin, time.monotonic()


def _work(seconds: float) -> None:
    """Compute for about so many seconds."""
    end, matrix = time.monotonic() + seconds, torch.ones(WORK_SIZE, WORK_SIZE)
    while time.monotonic() < end:
        matrix = matrix @ matrix / WORK_SIZE


def _receive_raw(mailbox: Mailbox, setup: LinkSetup) -> float:
    """Return the bytes/s of what machine 0 sends, from the first byte to the last."""
    buffer = bytearray(CHUNK)
    with socket.create_server((setup.host, 0)) as server:
        server.settimeout(TIMEOUT_S)
        mailbox.send(PEERS[0], Message("raw", body={"address": list(server.getsockname())}))
        connection = server.accept()[0]
    with connection:
        connection.settimeout(TIMEOUT_S)
        count, first = connection.recv_into(buffer), time.monotonic()
        begin = count
        while received := connection.recv_into(buffer):
            count += received
        rate = (count - begin) / (time.monotonic() - first)
    mailbox.send(PEERS[0], Message("raw rate", body={"rate": rate}))
    return rate


def _send_raw(mailbox: Mailbox) -> float:
    host, port = mailbox.wait([(PEERS[1], "raw", 0, 0, 0)]).body["address"]
    with socket.create_connection((str(host), int(port)), timeout=TIMEOUT_S) as connection:
        piece = bytes(CHUNK)
        for _ in range(RAW_BYTES // CHUNK):
            connection.sendall(piece)
    return float(mailbox.wait([(PEERS[1], "raw rate", 0, 0, 0)]).body["rate"])
