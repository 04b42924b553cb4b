"""Measures this machine as the workers of a run find it, and returns a cluster of machines like it."""

import os
import statistics
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from typing import Any

import msgspec

from ...partition.cluster.cost_model import CostModel
from ...partition.cluster.machines import Cluster, Machine, NetworkLink, SharedCores, uniform_cluster
from ...partition.dataflow.cut import one_machine_cut
from ...partition.dataflow.lowering import lower_cut
from ...partition.ir.graph import Graph
from ...runtime.engines.reachability import launcher_address
from ...runtime.hosts.host import Host, LocalHost, Role
from ...runtime.hosts.remote_host import RemoteHost
from ...runtime.hosts.versions import read_memory
from ...runtime.launcher.launcher import Launcher
from ...runtime.worker.program import programs
from .contention import compute_contention
from .fit_constants import (
    ChainSample,
    OperatorSample,
    add_random_rate,
    fit_machine,
    fit_network,
    make_cluster,
    round_digits,
)
from .probe_models import CHAIN_LENGTH, REPEATED, SUBJECTS, ExchangeChain, make_chains, make_gallery, name_repetition
from .probe_process import PROBE_ENTRY, TURNS, ChainPart, ProbeSetup, ProbeTimes, Times

OPERATORS_S = 6.0
CHAIN_STEPS = (30, 20, 8, 30)  # in each turn
QUICK = 0.25  # of these, in a probe that nobody asked for
FEW = 2
BUSY = 0.4  # processes a core, from which on the machine is said to be busy
PEERS = ["probe-0", "probe-1"]


@dataclass(frozen=True)
class ProbeResult:
    """What was measured, and the cluster made of it.

    workers: that share this host's cores; threads: of torch in each. samples, chains: seconds of an undisturbed round.
    copy: bytes/s that a large copy reads and writes. busy: how many processes on average ran, or wanted to, in the
    minute before. seconds: that probing took.
    """

    cluster: Cluster
    workers: int
    cores: int
    threads: int
    samples: tuple[OperatorSample, ...]
    chains: tuple[ChainSample, ...]
    copy: float
    busy: float
    seconds: float

    @property
    def disturbed(self) -> bool:
        """Whether the machine had much else to do, so that what was measured is too slow."""
        return self.busy > BUSY * self.cores

    def to_dict(self) -> dict[str, Any]:
        """Return all that was measured as plain data: seconds, bytes, FLOP/s."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return plain


def probe(workers: int, *, name: str = "machine", brief: bool = False, effort: float = 1.0) -> ProbeResult:
    """Measure this host as each of `workers` on it finds it: with its share of the cores.

    brief: everything a few times only. effort: for how long, as a part of a thorough probe. UsageError where `workers`
    are none or too many.
    """
    uniform_cluster(workers)
    effort = 0.0 if brief else effort
    with LocalHost() as here:
        return _measure(workers, name, (here, here), cores=here.cores, memory_bytes=read_memory(), effort=effort)


def probe_hosts(hosts: Sequence[RemoteHost], stated: Cluster, *, brief: bool = False) -> Cluster:
    """Measure hosts, one after the other, and the link of each to the next; return the cluster that they are.

    stated: what is known of them, of which addresses and interpreters stay, who shares a host, and links that two
    machines have alone. Between those that share a host's card one link is measured, and taken for all.
    """
    measured, effort = list[Machine](), 0.0 if brief else 1.0
    bandwidths, latencies = list[float](), list[float]()
    for number, (host, known) in enumerate(zip(hosts, stated.machines, strict=True)):
        probed = _measure_pair(host, hosts[_find_next(number, stated)], effort)
        (machine,) = probed.machines
        measured.append(replace(machine, address=known.address, python=known.python))
        bandwidths.append(probed.bandwidth)
        latencies.append(probed.latency_s)
    cards = {number: max(bandwidths[m] for m in card.machines) for card in stated.cards for number in card.machines}
    common = min(cards.values(), default=max(bandwidths))  # a file has one rate for all cards that are shared
    own = [
        machine
        if number in cards or bandwidth == common
        else replace(machine, bandwidth_out=bandwidth, bandwidth_in=bandwidth)
        for number, (machine, bandwidth) in enumerate(zip(measured, bandwidths, strict=True))
    ]
    links = [link for link in stated.links if not stated.is_inside(link)]
    for card in stated.cards:
        first, second, *_ = card.machines
        inside = _measure_pair(hosts[first], hosts[second], 0.0)
        links += [NetworkLink(*pair, inside.bandwidth, inside.latency_s) for pair in permutations(card.machines, 2)]
    network = common, statistics.median(latencies)
    return Cluster(tuple(own), *network, links=tuple(links), shared=stated.shared, cards=stated.cards)


def _find_next(number: int, cluster: Cluster) -> int:
    """Return the machine after another one, in a circle, that does not share its card; the next one if all do."""
    others = [(number + i) % len(cluster) for i in range(1, len(cluster) + 1)]
    card = cluster.shared_card(number)
    return next((other for other in others if card is None or cluster.shared_card(other) is not card), others[0])


def _measure_pair(host: RemoteHost, other: RemoteHost, effort: float) -> Cluster:
    """Measure a host and messages from it to another one; return a cluster of the one."""
    memory_bytes = host.ready.memory_bytes
    return _measure(1, host.name, (host, other), cores=host.cores, memory_bytes=memory_bytes, effort=effort).cluster


def _measure(
    workers: int, name: str, hosts: tuple[Host, Host], *, cores: int, memory_bytes: int, effort: float
) -> ProbeResult:
    """Measure the first of two hosts, and messages to the second, which may be the same."""
    busy, begin = os.getloadavg()[0], time.monotonic()
    threads = max(1, cores // workers)
    graph, groups = make_gallery()
    chains = make_chains()
    timed = _run([_make_setup(i, workers, threads, graph, groups, chains, effort) for i in range(2)], threads, hosts)
    samples = _collect_samples(graph, groups, timed[0])
    repeated = {n: _pick_undisturbed(timed[0].subjects[name_repetition(n)]) for n in REPEATED}
    machine = add_random_rate(fit_machine(name, samples, repeated), timed[0].draw)
    lines = [_collect_chain(i, chain, timed) for i, chain in enumerate(chains)]
    machine, bandwidth, latency_s = fit_network(machine, (chains[0].whole, chains[-1].whole), lines)
    memory, taken = memory_bytes // workers, max(one.taken_bytes for one in timed)
    machine = replace(machine, memory_bytes=round_digits(memory), process_bytes=round_digits(taken))
    cluster = make_cluster(machine, workers, bandwidth, latency_s)
    if workers > 1:
        shared = SharedCores(tuple(range(workers)), max(1, cores // threads), _compute_contention(timed), bandwidth)
        cluster = replace(cluster, shared=(shared,))
    seconds = time.monotonic() - begin
    return ProbeResult(
        cluster, workers, cores, threads, tuple(samples), tuple(lines), timed[0].copy, busy, round(seconds, 1)
    )


def _compute_contention(timed: Sequence[ProbeTimes]) -> float:
    """Return the contention of large operators of every class."""
    crowded = [[_sum_undisturbed(one.crowded)] for one in timed]
    alone = {name: timed[0].subjects[name] for name in timed[0].crowded}
    return compute_contention([_sum_undisturbed(alone)], crowded, len(crowded))


def _sum_undisturbed(subjects: Times) -> float:
    return sum(sum(_pick_undisturbed(rounds)) for rounds in subjects.values())


def _make_setup(
    machine: int,
    workers: int,
    threads: int,
    graph: Graph,
    groups: list[dict[str, list[str]]],
    chains: Sequence[ExchangeChain],
    effort: float,
) -> ProbeSetup:
    """Return what one of the two processes does. A single worker has the cores to itself all the time."""
    (whole,) = programs(lower_cut(graph, one_machine_cut(graph)), training=True)
    works = machine == 0 or workers > 1
    listed = []
    for steps, chain in zip(CHAIN_STEPS, chains, strict=True):
        for program, together in ((chain.alone if machine == 0 else None, False), (chain.parts[machine], True)):
            packed = msgspec.msgpack.encode(program) if program is not None else b""
            listed.append(ChainPart(packed, chain.width, chain.ways, together, max(FEW, round(effort * steps))))
    return ProbeSetup(
        machine=machine,
        peers=PEERS,
        gallery=msgspec.msgpack.encode(whole) if works else b"",
        groups=groups,
        seconds=effort * OPERATORS_S,
        single=works and threads > 1,
        crowded=workers > 1,
        chains=listed,
    )


def _run(setups: Sequence[ProbeSetup], threads: int, hosts: tuple[Host, Host]) -> list[ProbeTimes]:
    roles = [
        Role(name, PROBE_ENTRY, msgspec.to_builtins(setup, builtin_types=(bytes,)), threads=threads, host=host.name)
        for name, setup, host in zip(PEERS, setups, hosts, strict=True)
    ]
    remote = [host for host in hosts if isinstance(host, RemoteHost)]
    distinct = list({host.name: host for host in hosts}.values())
    job, address = f"probe-{uuid.uuid4().hex[:12]}", launcher_address(remote)
    with Launcher(roles, job=job, hosts=distinct, address=address) as launcher:
        return [msgspec.convert(result, ProbeTimes) for result in launcher.run()]


def _collect_samples(
    graph: Graph, groups: Sequence[Mapping[str, list[str]]], timed: ProbeTimes
) -> list[OperatorSample]:
    costs, ops = CostModel(graph.tensors), {op.name: op for op in graph.ops}
    subjects = {name: ops_of for group in groups for name, ops_of in group.items()}
    samples = []
    for subject in SUBJECTS:
        (name,) = subjects[subject.name]
        work = costs.work(ops[name], ops[name].nest.box)
        forward, backward = _pick_undisturbed(timed.subjects[subject.name])
        one_thread = _pick_undisturbed(timed.single[subject.name])[0] if timed.single else None
        samples.append(OperatorSample(subject.kind, subject.size, work, forward, backward, one_thread))
    return samples


def _pick_undisturbed(rounds: tuple[list[float], list[float]]) -> tuple[float, float]:
    """Return the seconds, forward and backward, of a round that no other work disturbed: one in four is quicker."""
    forward, backward = (sorted(seconds)[len(seconds) // 4] for seconds in rounds)
    return forward, backward


def _collect_chain(number: int, chain: ExchangeChain, timed: Sequence[ProbeTimes]) -> ChainSample:
    """Return the medians of a chain in the turn in which they were least: other work only makes a turn longer."""
    alone, together = 2 * number, 2 * number + 1
    single = [end - begin for begin, end, _ in timed[0].chains[alone]]
    steps = list(zip(*(t.chains[together] for t in timed), strict=True))
    both = [max(end for _, end, _ in step) - step[0][0] for step in steps]
    busy = [sum(busy for _, _, busy in step) for step in steps]
    return ChainSample(
        4 * chain.width,
        _least_median(single) / chain.ways,
        _least_median(both),
        messages=2 * CHAIN_LENGTH,
        segments=CHAIN_LENGTH,
        joins=2 * (chain.ways - 1),
        busy_s=_least_median(busy),
    )


def _least_median(seconds: Sequence[float]) -> float:
    """Return the least of the medians of turns."""
    turn = len(seconds) // TURNS
    return min(statistics.median(seconds[i : i + turn]) for i in range(0, turn * TURNS, turn))
