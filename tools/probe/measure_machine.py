"""`probe`: measures this machine as the workers of a run find it, and makes a cluster of machines like it."""

import os
import statistics
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from ...partition.cluster.machines import Cluster, alike
from ...partition.cluster.cost_model import Costs
from ...partition.dataflow.cut import one_machine
from ...partition.dataflow.dataflow import flow
from ...partition.ir.graph import Graph
from ...runtime.launcher.launcher import Launcher, Role
from ...runtime.worker.program import programs
from .fit_constants import DIGITS, ChainSample, Sample, cluster_of, fit_machine, fit_network, sharing, with_draws
from .probe_models import CHAIN_LENGTH, REPEATED, SUBJECTS, Chain, chains, gallery, repeated_name
from .probe_process import PROBING, ChainPart, Setup, Timed

OPERATORS_S = 6.0
CHAIN_STEPS = (30, 20, 8, 30)  # in each turn
FEW = 2
BUSY = 0.4  # processes a core, from which on the machine is said to be busy
PEERS = ["probe-0", "probe-1"]
CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")


@dataclass(frozen=True)
class Probed:
    """What was measured, and the cluster made of it.

    workers: that share this host's cores; threads: of torch in each. samples, chains: medians. copy: bytes/s that a
    large copy reads and writes. busy: how many processes on average ran, or wanted to, in the minute before.
    """

    cluster: Cluster
    workers: int
    cores: int
    threads: int
    samples: tuple[Sample, ...]
    chains: tuple[ChainSample, ...]
    copy: float
    busy: float

    @property
    def disturbed(self) -> bool:
        """Whether the machine had much else to do, so that what was measured is too slow."""
        return self.busy > BUSY * self.cores


def probe(workers: int, *, name: str = "machine", brief: bool = False) -> Probed:
    """Measure this host as each of `workers` on it finds it: with its share of the cores, while another one works.

    brief: everything a few times only. UsageError where `workers` are none or too many.
    """
    alike(workers)
    busy = os.getloadavg()[0]
    cores = os.cpu_count() or 1
    threads = _threads(workers)
    graph, groups = gallery()
    found = chains()
    timed = _run([_setup(i, workers, graph, groups, found, brief) for i in range(2)], threads)
    samples = _samples(graph, groups, timed)
    machine = fit_machine(name, samples, {n: _medians(timed, repeated_name(n)) for n in REPEATED})
    machine = with_draws(machine, statistics.median(one.draw for one in timed))
    lines = [_chain_sample(i, chain, timed) for i, chain in enumerate(found)]
    sends = [seconds for one in timed for seconds in one.sends]
    machine, bandwidth, latency_s = fit_network(machine, (found[0].whole, found[-1].whole), lines, sends)
    memory = int(float(f"{memory_bytes() // workers:.{DIGITS}g}"))
    machine = sharing(replace(machine, memory_bytes=memory), workers, cores)
    copy = statistics.median(one.copy for one in timed)
    cluster = cluster_of(machine, workers, bandwidth, latency_s)
    return Probed(cluster, workers, cores, threads, tuple(samples), tuple(lines), copy, busy)


def memory_bytes() -> int:
    """Of this host, or what its container may use of it."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if not CGROUP_LIMIT.is_file():
        return physical
    limit = CGROUP_LIMIT.read_text(encoding="ascii").strip()
    return min(physical, int(limit)) if limit.isdigit() else physical


def _setup(
    machine: int,
    workers: int,
    graph: Graph,
    groups: list[dict[str, list[str]]],
    chains: Sequence[Chain],
    brief: bool,
) -> Setup:
    """What one of the two processes does. A single worker has the cores to itself while operators are timed."""
    (whole,) = programs(flow(graph, one_machine(graph)), training=True)
    works = machine == 0 or workers > 1
    listed = []
    for steps, chain in zip(CHAIN_STEPS, chains, strict=True):
        for program, together in ((chain.alone if machine == 0 else None, False), (chain.parts[machine], True)):
            packed = msgspec.msgpack.encode(program) if program is not None else b""
            listed.append(ChainPart(packed, chain.width, chain.ways, together, FEW if brief else steps))
    return Setup(
        machine=machine,
        peers=PEERS,
        gallery=msgspec.msgpack.encode(whole) if works else b"",
        groups=groups,
        seconds=0.0 if brief else OPERATORS_S,
        single=works and _threads(workers) > 1,
        chains=listed,
    )


def _threads(workers: int) -> int:
    """Of torch in each of so many workers on this host."""
    return max(1, (os.cpu_count() or 1) // workers)


def _run(setups: Sequence[Setup], threads: int) -> list[Timed]:
    roles = [
        Role(name, PROBING, msgspec.to_builtins(setup, builtin_types=(bytes,)), threads=threads)
        for name, setup in zip(PEERS, setups, strict=True)
    ]
    with Launcher(roles, job=f"probe-{uuid.uuid4().hex[:12]}") as launcher:
        return [msgspec.convert(result, Timed) for result in launcher.run()]


def _samples(graph: Graph, groups: Sequence[Mapping[str, list[str]]], timed: Sequence[Timed]) -> list[Sample]:
    costs, ops = Costs(graph.tensors), {op.name: op for op in graph.ops}
    subjects = {name: found for group in groups for name, found in group.items()}
    samples = []
    for subject in SUBJECTS:
        (name,) = subjects[subject.name]
        work = costs.work(ops[name], ops[name].nest.box)
        single = [seconds for one in timed if one.single for seconds in one.single[subject.name][0]]
        forward, backward = _medians(timed, subject.name)
        one_thread = statistics.median(single) if single else None
        samples.append(Sample(subject.kind, subject.size, work, forward, backward, one_thread))
    return samples


def _medians(timed: Sequence[Timed], name: str) -> tuple[float, float]:
    """Median seconds forward and backward, of all processes together."""
    forward = [seconds for one in timed if one.subjects for seconds in one.subjects[name][0]]
    backward = [seconds for one in timed if one.subjects for seconds in one.subjects[name][1]]
    return statistics.median(forward), statistics.median(backward)


def _chain_sample(number: int, chain: Chain, timed: Sequence[Timed]) -> ChainSample:
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
