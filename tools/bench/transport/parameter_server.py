"""How fast parameters go to shards and back, updates applied, beside what the machine and others can do.

A worker process and two of shards, as in a run: every way, rule and number of shards takes its turn in each round, so
that a busy second hits all of them alike. Rates are bytes of parameters moved, both ways together where both are used.
"""

import statistics
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from threading import Thread
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from torch import Tensor

from ....ps.client.client import Client
from ....ps.slices.slicing import Slice, layout, of_shard
from ....ps.methods.method import Serving
from ....ps.optimizers.registry import rule as rule_named
from ....ps.server.shard import Shard
from ....runtime.launcher.heartbeat import Beacon
from ....runtime.channel.channel import Channel
from ....runtime.channel.keys import Keys, make_keys
from ....runtime.launcher.launcher import Launcher, Role
from ....runtime.channel.mailbox import Mailbox
from ....runtime.channel.message import Message
from ....runtime.channel.shared_memory import ARENA_BYTES
from ....runtime.channel.zmq_channel import ZmqChannel
from .transports import CURVE, GLOO, MEMCPY, PATIENCE_S, PLAIN, RAW, SHARED, Ask, Transport, mailbox_of, opened

PUSHING, SERVING = (f"cutset.tools.bench.transport.parameter_server:{name}" for name in ("pushing", "serving"))
WORKER, SHARDS = "worker-0.0", ("shard-0", "shard-1")
PARAMETER_BYTES = 100 << 20
ROUNDS = 7
REPEATS = 3  # in a turn
RATE = 1e-3  # of the rules: it is as fast with any
WAYS, RULES = (PLAIN, CURVE, SHARED), ("sgd", "adagrad")
ONE_WAY, BOTH_WAYS, SUMMED = "one way", "both ways", "summed"
PUSH, PULL, PUSH_PULL = "push", "pull", "push+pull"


class Case(msgspec.Struct, frozen=True):
    """One use of shards."""

    way: str
    shards: int
    rule: str

    @property
    def slices(self) -> Callable[[int], list[Slice]]:
        """The slices of so many elements."""
        return lambda elements: layout([elements], self.shards)


CASES = tuple(Case(way, shards, rule) for way in WAYS for shards in (1, 2) for rule in RULES)


class Setup(msgspec.Struct, frozen=True):
    """index: of the shard, -1 for the worker. size: of the parameters in bytes."""

    index: int
    size: int
    rounds: int
    cases: list[Case]


@dataclass(frozen=True)
class PsRow:
    """One thing that was timed: bytes a second of every round. shards: 0 and rule: "" where there is none."""

    way: str
    what: str
    shards: int
    rule: str
    rates: tuple[float, ...]

    @property
    def rate(self) -> float:
        """The median."""
        return statistics.median(self.rates)


def measure(*, size: int = PARAMETER_BYTES, rounds: int = ROUNDS, cases: Sequence[Case] = CASES) -> list[PsRow]:
    """All rows, first of what is compared with."""
    setups = [Setup(index, size, rounds, list(cases)) for index in range(-1, len(SHARDS))]
    names, entries = (WORKER, *SHARDS), (PUSHING, *[SERVING] * len(SHARDS))
    roles = [Role(*one) for one in zip(names, entries, map(msgspec.to_builtins, setups), strict=True)]
    with Launcher(roles, job=f"ps-{uuid.uuid4().hex[:12]}") as launcher:
        timed = launcher.run()[0]
    return [PsRow(way, what, shards, rule, tuple(rates)) for (way, what, shards, rule), rates in timed]


def pushing(channel: Channel, setup: Any, beacon: Beacon) -> list[tuple[tuple[str, str, int, str], list[float]]]:
    """The worker's role: bytes a second of every round, by way, what is done, shards and rule."""
    given = msgspec.convert(setup, Setup)
    torch.set_num_threads(1)
    mailbox = mailbox_of(channel)
    asks = [Ask(mailbox, shard) for shard in SHARDS]
    values, gradients = torch.ones(given.size // 4), torch.full((given.size // 4,), 1e-3)
    others = {name: opened(name, 0, asks[0]) for name in (MEMCPY, RAW, GLOO)}
    channels = _channels(asks, {case.way for case in given.cases})
    clients = [
        Client(Mailbox(channels[case.way]), case.slices(len(values)), values, local_rate=0.0) for case in given.cases
    ]
    rates: dict[tuple[str, str, int, str], list[float]] = {}
    for turn in range(-1, given.rounds):  # one that does not count: connections and memory are made
        beacon.progress = f"round {turn}"
        found = _compared(others, asks[0], gradients)
        for case, client in zip(given.cases, clients, strict=True):
            beacon.progress = f"round {turn}, {case}"
            for ask in asks[: case.shards]:
                ask.both(None)
            if turn < 0:
                client.put()
                client.drain()
            for what, rate in _used(client, gradients, turn + 1).items():
                found[case.way, what, case.shards, case.rule] = rate
            for shard in SHARDS[: case.shards]:
                channels[case.way].send(shard, Message("over"))
        for key, rate in found.items():
            rates.setdefault(key, []).extend([rate] * (turn >= 0))
    for ask in asks:
        ask.both(None)
    _close(others, channels)
    return list(rates.items())


def serving(channel: Channel, setup: Any, beacon: Beacon) -> None:
    """The role of a shard: of one for every case, in turn."""
    given = msgspec.convert(setup, Setup)
    torch.set_num_threads(1)
    ask = Ask(mailbox_of(channel), WORKER)
    others = {name: opened(name, 1, ask) for name in (RAW, GLOO)} if given.index == 0 else {}
    channels = _channels([ask], {case.way for case in given.cases})
    cases = [case for case in given.cases if given.index < case.shards]
    shards = [
        Shard(given.index, of_shard(pieces, given.index), Serving(rule_named(case.rule, RATE)), copy=one.copy)
        for case in cases
        for pieces, one in [(case.slices(given.size // 4), channels[case.way])]
    ]
    values = torch.ones(given.size // 4)
    for turn in range(-1, given.rounds):
        beacon.progress = f"round {turn}"
        if others:
            _compared(others, ask, values)
        for case, shard in zip(cases, shards, strict=True):
            beacon.progress = f"round {turn}, {case}"
            ask.both(None)
            _serve(shard, channels[case.way])
    ask.both(None)
    _close(others, channels)


def _serve(shard: Shard, channel: Channel) -> None:
    """As `serve` does, until the worker has done its turn."""
    while (message := channel.receive(PATIENCE_S)).kind != "over":
        for peer, reply in shard.handle(message):
            channel.send(peer, reply)


def _used(client: Client, gradients: Tensor, step: int) -> dict[str, float]:
    """One push, one pull, and both, as a step of training makes them; to the end of the last acknowledgement.

    Gradients are given away, as by Downpour that pushes every few steps.
    """

    def push() -> None:
        client.push(gradients, step, given=True)
        client.drain()

    def pull() -> None:
        client.fetch()
        client.wait()

    def both() -> None:
        client.exchange(gradients, step, given=True)
        client.wait()
        client.drain()

    size = gradients.nbytes
    return {PUSH: size / _seconds(push), PULL: size / _seconds(pull), PUSH_PULL: 2 * size / _seconds(both)}


def _compared(ways: dict[str, Transport], ask: Ask, tensor: Tensor) -> dict[tuple[str, str, int, str], float]:
    """This end's part in what shards are compared with, and what it has timed."""
    raw, content = ways[RAW], tensor.view(torch.uint8)
    size, small, first = content.numel(), torch.ones(1, dtype=torch.uint8), MEMCPY in ways

    def one_way() -> None:
        if first:
            raw.send(content)
            raw.receive(1)
        else:
            raw.receive(size)
            raw.send(small)

    def both_ways() -> None:
        sending = Thread(target=raw.send, args=(content,))
        sending.start()
        raw.receive(size)
        sending.join()

    def summed() -> None:
        dist.all_reduce(work)

    work, found = tensor.clone(), {}
    if first:
        found[MEMCPY, ONE_WAY, 0, ""] = size / _seconds(lambda: ways[MEMCPY].send(content))
    for key, run, moved in (
        ((RAW, ONE_WAY, 0, ""), one_way, size),
        ((RAW, BOTH_WAYS, 0, ""), both_ways, 2 * size),
        ((GLOO, SUMMED, 0, ""), summed, 2 * size),
    ):
        ask.both(None)
        found[key] = moved / _seconds(run)
    return found


def _seconds(run: Callable[[], object]) -> float:
    """Of one run, of a few in a row, as a step follows the other: the first finds nothing in the caches."""
    begin = time.perf_counter()
    for _ in range(REPEATS):
        run()
    return (time.perf_counter() - begin) / REPEATS


def _channels(asks: Sequence[Ask], ways: set[str]) -> dict[str, ZmqChannel]:
    """This process's channel of every way. The worker, who asks two, makes the keys and tells them."""
    channels = {}
    for way in sorted(ways):
        pairs = make_keys((WORKER, *SHARDS)) if len(asks) > 1 else {}
        told = [ask.both(_plain(pairs[shard]) if pairs else None) for ask, shard in zip(asks, SHARDS, strict=False)]
        name, keys = (WORKER, pairs[WORKER]) if pairs else _given(told[0])
        shared = ARENA_BYTES if way == SHARED else 0
        channels[way] = ZmqChannel(name, f"ps {way}", keys, shared_bytes=shared, encrypted=way != PLAIN)
        peers = SHARDS if pairs else (WORKER,)
        channels[way].introduce(dict(zip(peers, [ask.both(channels[way].endpoint) for ask in asks], strict=True)))
    return channels


def _close(others: Mapping[str, Transport], channels: Mapping[str, ZmqChannel]) -> None:
    for transport in others.values():
        transport.close()
    for channel in channels.values():
        channel.close()


def _plain(keys: Keys) -> list[Any]:
    return [keys.public, keys.secret, keys.allowed]


def _given(told: list[Any]) -> tuple[str, Keys]:
    """Whose keys these are, and they themselves."""
    keys = Keys(*told)
    name = keys.owner(keys.public)
    assert name is not None
    return name, keys
