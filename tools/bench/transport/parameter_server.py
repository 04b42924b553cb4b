"""`cutset bench ps`: how fast parameters travel to shards and back, updates applied, compared with other transports.

One worker process and two shard processes, as in a run. Every transport, optimizer and number of shards is timed once
in each round, so that a disturbance hits all of them alike. A rate counts the bytes of parameters moved, in both
directions together if both are used.
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
from ....ps.optimizers.registry import parse_optimizer
from ....ps.server.serving import ServingConfig
from ....ps.server.shard import Shard
from ....ps.slices.slicing import ParameterSlice, slice_parameters, slices_of_shard
from ....runtime.channel.channel import Channel
from ....runtime.channel.curve import Keys, make_keys
from ....runtime.channel.mailbox import Mailbox
from ....runtime.channel.message import Message
from ....runtime.channel.shared_memory import ARENA_BYTES
from ....runtime.channel.zmq_channel import ZmqChannel
from ....runtime.hosts.heartbeat import RoleProgress
from ....runtime.hosts.host import Role
from ....runtime.launcher.launcher import Launcher
from .transports import (
    CURVE,
    GLOO,
    MEMCPY,
    PLAIN,
    RAW,
    SHARED,
    TIMEOUT_S,
    Handshake,
    Transport,
    make_mailbox,
    open_transport,
)

WORKER_ENTRY, SHARD_ENTRY = (
    f"cutset.tools.bench.transport.parameter_server:{name}" for name in ("run_worker", "run_shard")
)
WORKER, SHARDS = "worker-0.0", ("shard-0", "shard-1")
PARAMETER_BYTES = 100 << 20
ROUNDS = 7
REPEATS = 3  # in each round
LR = 1e-3  # an optimizer is as fast at any rate
WAYS, OPTIMIZERS = (PLAIN, CURVE, SHARED), ("sgd", "adagrad")
ONE_WAY, BOTH_WAYS, SUMMED = "one way", "both ways", "summed"
PUSH, PULL, PUSH_PULL = "push", "pull", "push+pull"


class Case(msgspec.Struct, frozen=True):
    """One setting to time: a transport, a number of shards and an optimizer."""

    way: str
    shards: int
    optimizer: str

    def make_slices(self, elements: int) -> list[ParameterSlice]:
        """Return the slices of a flat buffer of so many elements."""
        return slice_parameters([elements], self.shards)


CASES = tuple(Case(way, shards, optimizer) for way in WAYS for shards in (1, 2) for optimizer in OPTIMIZERS)


class ServerBenchSetup(msgspec.Struct, frozen=True):
    """What one process does. index: of the shard; -1 is the worker. size: of the parameters, in bytes."""

    index: int
    size: int
    rounds: int
    cases: list[Case]


@dataclass(frozen=True)
class ServerRate:
    """One operation that was timed: bytes per second in each round.

    way: the transport; what: push, pull or both, or how a transport without shards was used. shards is 0 and optimizer
    "" for such a transport.
    """

    way: str
    what: str
    shards: int
    optimizer: str
    rates: tuple[float, ...]

    @property
    def rate(self) -> float:
        """The median rate, in bytes/s."""
        return statistics.median(self.rates)


def measure(*, size: int = PARAMETER_BYTES, rounds: int = ROUNDS, cases: Sequence[Case] = CASES) -> list[ServerRate]:
    """Time all cases and, before them, what they are compared with."""
    setups = [ServerBenchSetup(index, size, rounds, list(cases)) for index in range(-1, len(SHARDS))]
    names, entries = (WORKER, *SHARDS), (WORKER_ENTRY, *[SHARD_ENTRY] * len(SHARDS))
    roles = [Role(*one) for one in zip(names, entries, map(msgspec.to_builtins, setups), strict=True)]
    with Launcher(roles, job=f"ps-{uuid.uuid4().hex[:12]}") as launcher:
        timed = launcher.run()[0]
    return [ServerRate(way, what, shards, optimizer, tuple(rates)) for (way, what, shards, optimizer), rates in timed]


Key = tuple[str, str, int, str]  # way, what, shards, optimizer


def run_worker(channel: Channel, setup: Any, progress: RoleProgress) -> list[tuple[Key, list[float]]]:
    """Run the worker: it returns the bytes per second of every round, by way, operation, shards and optimizer."""
    config = msgspec.convert(setup, ServerBenchSetup)
    torch.set_num_threads(1)
    mailbox = make_mailbox(channel)
    handshakes = [Handshake(mailbox, shard) for shard in SHARDS]
    values, gradients = torch.ones(config.size // 4), torch.full((config.size // 4,), 1e-3)
    others = {name: open_transport(name, 0, handshakes[0]) for name in (MEMCPY, RAW, GLOO)}
    channels = _open_channels(handshakes, {case.way for case in config.cases})
    clients = [
        Client(Mailbox(channels[case.way]), case.make_slices(len(values)), values, local_rate=0.0)
        for case in config.cases
    ]
    rates: dict[Key, list[float]] = {}
    for number in range(-1, config.rounds):  # the first is a warm-up: connections are made and memory is allocated
        progress.value = f"round {number}"
        timed = _time_others(others, handshakes[0], gradients)
        for case, client in zip(config.cases, clients, strict=True):
            progress.value = f"round {number}, {case}"
            for handshake in handshakes[: case.shards]:
                handshake.exchange(None)
            if number < 0:
                client.put()
                client.drain()
            for what, rate in _time_client(client, gradients, number + 1).items():
                timed[case.way, what, case.shards, case.optimizer] = rate
            for shard in SHARDS[: case.shards]:
                channels[case.way].send(shard, Message("over"))
        for key, rate in timed.items():
            rates.setdefault(key, []).extend([rate] * (number >= 0))
    for handshake in handshakes:
        handshake.exchange(None)
    _close(others, channels)
    return list(rates.items())


def run_shard(channel: Channel, setup: Any, progress: RoleProgress) -> None:
    """Run a shard process: a shard for every case, one after the other."""
    config = msgspec.convert(setup, ServerBenchSetup)
    torch.set_num_threads(1)
    handshake = Handshake(make_mailbox(channel), WORKER)
    others = {name: open_transport(name, 1, handshake) for name in (RAW, GLOO)} if config.index == 0 else {}
    channels = _open_channels([handshake], {case.way for case in config.cases})
    cases = [case for case in config.cases if config.index < case.shards]
    shards = [
        Shard(
            config.index,
            slices_of_shard(pieces, config.index),
            ServingConfig(parse_optimizer(case.optimizer, LR)),
            copy=one.copy,
        )
        for case in cases
        for pieces, one in [(case.make_slices(config.size // 4), channels[case.way])]
    ]
    values = torch.ones(config.size // 4)
    for number in range(-1, config.rounds):
        progress.value = f"round {number}"
        if others:
            _time_others(others, handshake, values)
        for case, shard in zip(cases, shards, strict=True):
            progress.value = f"round {number}, {case}"
            handshake.exchange(None)
            _serve_case(shard, channels[case.way])
    handshake.exchange(None)
    _close(others, channels)


def _serve_case(shard: Shard, channel: Channel) -> None:
    """Answer messages, as `serve` does, until the worker is done with the case."""
    while (message := channel.receive(TIMEOUT_S)).kind != "over":
        for peer, reply in shard.handle(message):
            channel.send(peer, reply)


def _time_client(client: Client, gradients: Tensor, step: int) -> dict[str, float]:
    """One push, one pull, and both, as a step of training makes them; to the end of the last acknowledgement.

    Gradients are given away, as by Downpour that pushes every few steps. What the cases before have left in the caches
    is no part of this one, so both are done once before: a program that is compared has its rounds one after another.
    """

    def push() -> None:
        client.push(gradients, step, donate=True)
        client.drain()

    def pull() -> None:
        client.fetch()
        client.wait()

    def both() -> None:
        client.exchange(gradients, step, donate=True)
        client.wait()
        client.drain()

    size = gradients.nbytes
    both()
    return {PUSH: size / _time(push), PULL: size / _time(pull), PUSH_PULL: 2 * size / _time(both)}


def _time_others(transports: dict[str, Transport], handshake: Handshake, tensor: Tensor) -> dict[Key, float]:
    """Run this end's part of the transports that shards are compared with, and return the rates that it timed."""
    raw, content = transports[RAW], tensor.view(torch.uint8)
    size, small, first = content.numel(), torch.ones(1, dtype=torch.uint8), MEMCPY in transports

    def send_one_way() -> None:
        if first:
            raw.send(content)
            raw.receive(1)
        else:
            raw.receive(size)
            raw.send(small)

    def send_both_ways() -> None:
        sending = Thread(target=raw.send, args=(content,))
        sending.start()
        raw.receive(size)
        sending.join()

    def sum_up() -> None:
        dist.all_reduce(work)

    work, rates = tensor.clone(), {}
    if first:
        rates[MEMCPY, ONE_WAY, 0, ""] = size / _time(lambda: transports[MEMCPY].send(content))
    for key, run, moved in (
        ((RAW, ONE_WAY, 0, ""), send_one_way, size),
        ((RAW, BOTH_WAYS, 0, ""), send_both_ways, 2 * size),
        ((GLOO, SUMMED, 0, ""), sum_up, 2 * size),
    ):
        handshake.exchange(None)
        rates[key] = moved / _time(run)
    return rates


def _time(run: Callable[[], object]) -> float:
    """Return the seconds of one run, over a few in a row as steps follow each other: the first finds cold caches."""
    begin = time.perf_counter()
    for _ in range(REPEATS):
        run()
    return (time.perf_counter() - begin) / REPEATS


def _open_channels(handshakes: Sequence[Handshake], ways: set[str]) -> dict[str, ZmqChannel]:
    """Open this process's channel of every transport. The worker, who has two peers, makes the keys and tells them."""
    channels = {}
    for way in sorted(ways):
        pairs = make_keys((WORKER, *SHARDS)) if len(handshakes) > 1 else {}
        received = [
            handshake.exchange(_pack_keys(pairs[shard]) if pairs else None)
            for handshake, shard in zip(handshakes, SHARDS, strict=False)
        ]
        name, keys = (WORKER, pairs[WORKER]) if pairs else _unpack_keys(received[0])
        shared = ARENA_BYTES if way == SHARED else 0
        channels[way] = ZmqChannel(name, f"ps {way}", keys, shared_bytes=shared, encrypted=way != PLAIN)
        peers = SHARDS if pairs else (WORKER,)
        endpoints = [handshake.exchange(channels[way].endpoint) for handshake in handshakes]
        channels[way].introduce(dict(zip(peers, endpoints, strict=True)))
    return channels


def _close(others: Mapping[str, Transport], channels: Mapping[str, ZmqChannel]) -> None:
    for transport in others.values():
        transport.close()
    for channel in channels.values():
        channel.close()


def _pack_keys(keys: Keys) -> list[Any]:
    return [keys.public, keys.secret, keys.allowed]


def _unpack_keys(packed: list[Any]) -> tuple[str, Keys]:
    """Return whose keys these are, and the keys."""
    keys = Keys(*packed)
    name = keys.owner(keys.public)
    assert name is not None
    return name, keys
