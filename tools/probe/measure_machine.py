"""Measures this machine as the workers of a run find it, and returns a cluster of machines like it."""

import os
import statistics
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from ...partition.cluster.cost_model import CostModel
from ...partition.cluster.machines import Cluster, Machine, uniform_cluster
from ...partition.dataflow.cut import one_machine_cut
from ...partition.dataflow.lowering import lower_cut
from ...partition.ir.graph import Graph
from ...runtime.engines.reachability import launcher_address
from ...runtime.hosts.host import Host, LocalHost, Role
from ...runtime.hosts.remote_host import RemoteHost
from ...runtime.hosts.versions import read_memory
from ...runtime.launcher.launcher import Launcher
from ...runtime.worker.program import programs
from .fit_constants import (
    DIGITS,
    ChainSample,
    OperatorSample,
    add_random_rate,
    fit_machine,
    fit_network,
    make_cluster,
    share_cores,
)
from .probe_models import CHAIN_LENGTH, REPEATED, SUBJECTS, ExchangeChain, make_chains, make_gallery, name_repetition
from .probe_process import PROBE_ENTRY, ChainPart, ProbeSetup, ProbeTimes

OPERATORS_S = 6.0
CHAIN_STEPS = (30, 20, 8, 30)  # in each turn
FEW = 2
BUSY = 0.4  # processes a core, from which on the machine is said to be busy
PEERS = ["probe-0", "probe-1"]


@dataclass(frozen=True)
class ProbeResult:
    """What was measured, and the cluster made of it.

    workers: that share this host's cores; threads: of torch in each. samples, chains: medians. copy: bytes/s that a
    large copy reads and writes. busy: how many processes on average ran, or wanted to, in the minute before.
    """

    cluster: Cluster
    workers: int
    cores: int
    threads: int
    samples: tuple[OperatorSample, ...]
    chains: tuple[ChainSample, ...]
    copy: float
    busy: float

    @property
    def disturbed(self) -> bool:
        """Whether the machine had much else to do, so that what was measured is too slow."""
        return self.busy > BUSY * self.cores

    def to_dict(self) -> dict[str, Any]:
        """Return all that was measured as plain data: seconds, bytes, FLOP/s."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return plain


def probe(workers: int, *, name: str = "machine", brief: bool = False) -> ProbeResult:
    """Measure this host as each of `workers` on it finds it: with its share of the cores, while another one works.

    brief: everything a few times only. UsageError where `workers` are none or too many.
    """
    uniform_cluster(workers)
    with LocalHost() as here:
        return _measure(workers, name, (here, here), cores=here.cores, memory_bytes=read_memory(), brief=brief)


def probe_hosts(hosts: Sequence[RemoteHost], machines: Sequence[Machine], *, brief: bool = False) -> Cluster:
    """Measure hosts, one after the other, and the link of each to the next; return the cluster that they are.

    machines: what is known of each, of which address and interpreter stay.
    """
    measured = list[Machine]()
    bandwidths, latencies = list[float](), list[float]()
    for number, (host, known) in enumerate(zip(hosts, machines, strict=True)):
        pair, memory_bytes = (host, hosts[(number + 1) % len(hosts)]), host.ready.memory_bytes
        probed = _measure(1, host.name, pair, cores=host.cores, memory_bytes=memory_bytes, brief=brief)
        (machine,) = probed.cluster.machines
        measured.append(replace(machine, address=known.address, python=known.python))
        bandwidths.append(probed.cluster.bandwidth)
        latencies.append(probed.cluster.latency_s)
    fastest, shortest = max(bandwidths), statistics.median(latencies)
    own = [
        machine if bandwidth == fastest else replace(machine, bandwidth_out=bandwidth, bandwidth_in=bandwidth)
        for machine, bandwidth in zip(measured, bandwidths, strict=True)
    ]
    return Cluster(tuple(own), fastest, shortest)


def _measure(
    workers: int, name: str, hosts: tuple[Host, Host], *, cores: int, memory_bytes: int, brief: bool
) -> ProbeResult:
    """Measure the first of two hosts, and messages to the second, which may be the same."""
    busy = os.getloadavg()[0]
    threads = max(1, cores // workers)
    graph, groups = make_gallery()
    chains = make_chains()
    timed = _run([_make_setup(i, workers, threads, graph, groups, chains, brief) for i in range(2)], threads, hosts)
    samples = _collect_samples(graph, groups, timed)
    machine = fit_machine(name, samples, {n: _compute_medians(timed, name_repetition(n)) for n in REPEATED})
    machine = add_random_rate(machine, statistics.median(one.draw for one in timed))
    lines = [_collect_chain(i, chain, timed) for i, chain in enumerate(chains)]
    sends = [seconds for one in timed for seconds in one.sends]
    machine, bandwidth, latency_s = fit_network(machine, (chains[0].whole, chains[-1].whole), lines, sends)
    memory = int(float(f"{memory_bytes // workers:.{DIGITS}g}"))
    machine = share_cores(replace(machine, memory_bytes=memory), workers, cores)
    copy = statistics.median(one.copy for one in timed)
    cluster = make_cluster(machine, workers, bandwidth, latency_s)
    return ProbeResult(cluster, workers, cores, threads, tuple(samples), tuple(lines), copy, busy)


def _make_setup(
    machine: int,
    workers: int,
    threads: int,
    graph: Graph,
    groups: list[dict[str, list[str]]],
    chains: Sequence[ExchangeChain],
    brief: bool,
) -> ProbeSetup:
    """Return what one of the two processes does. A single worker has the cores to itself while operators are timed."""
    (whole,) = programs(lower_cut(graph, one_machine_cut(graph)), training=True)
    works = machine == 0 or workers > 1
    listed = []
    for steps, chain in zip(CHAIN_STEPS, chains, strict=True):
        for program, together in ((chain.alone if machine == 0 else None, False), (chain.parts[machine], True)):
            packed = msgspec.msgpack.encode(program) if program is not None else b""
            listed.append(ChainPart(packed, chain.width, chain.ways, together, FEW if brief else steps))
    return ProbeSetup(
        machine=machine,
        peers=PEERS,
        gallery=msgspec.msgpack.encode(whole) if works else b"",
        groups=groups,
        seconds=0.0 if brief else OPERATORS_S,
        single=works and threads > 1,
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
    graph: Graph, groups: Sequence[Mapping[str, list[str]]], timed: Sequence[ProbeTimes]
) -> list[OperatorSample]:
    costs, ops = CostModel(graph.tensors), {op.name: op for op in graph.ops}
    subjects = {name: ops_of for group in groups for name, ops_of in group.items()}
    samples = []
    for subject in SUBJECTS:
        (name,) = subjects[subject.name]
        work = costs.work(ops[name], ops[name].nest.box)
        single = [seconds for one in timed if one.single for seconds in one.single[subject.name][0]]
        forward, backward = _compute_medians(timed, subject.name)
        one_thread = statistics.median(single) if single else None
        samples.append(OperatorSample(subject.kind, subject.size, work, forward, backward, one_thread))
    return samples


def _compute_medians(timed: Sequence[ProbeTimes], name: str) -> tuple[float, float]:
    """Return the median seconds forward and backward, of all processes together."""
    forward = [seconds for one in timed if one.subjects for seconds in one.subjects[name][0]]
    backward = [seconds for one in timed if one.subjects for seconds in one.subjects[name][1]]
    return statistics.median(forward), statistics.median(backward)


def _collect_chain(number: int, chain: ExchangeChain, timed: Sequence[ProbeTimes]) -> ChainSample:
    alone, together = 2 * number, 2 * number + 1
    single = [end - begin for begin, end in timed[0].chains[alone]]
    both = [max(end for _, end in ends) - ends[0][0] for ends in zip(*(t.chains[together] for t in timed), strict=True)]
    return ChainSample(
        4 * chain.width,
        statistics.median(single) / chain.ways,
        statistics.median(both),
        messages=2 * CHAIN_LENGTH,
        segments=CHAIN_LENGTH,
        joins=2 * (chain.ways - 1),
    )
