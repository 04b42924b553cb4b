"""`SavedProbe`: measured constants of this machine, as a file in the user's cache folder.

The folder is $XDG_CACHE_HOME/cutset, or ~/.cache/cutset, with a file for each machine, its versions of torch and
cutset, and number of threads: a home folder may be shared by several machines. A file that is broken, or that another
machine has left, is as good as none, and a note says so.
"""

import hashlib
import os
import platform
import re
from contextlib import suppress
from dataclasses import replace
from functools import cache
from importlib.metadata import version
from pathlib import Path

import msgspec

from ...errors import BadInput
from ...partition.cluster.cluster_file import read, to_toml
from ...partition.cluster.machines import Cluster, ProcessMemory, SharedCores
from ...runtime.hosts.versions import read_cores
from ...whole_file import write_whole

FORMAT = 10
MAX_BYTES = 16 << 20  # of a file; a longer one is none of ours
MAX_SAVED = 20_000  # operators, and tasks; the oldest are dropped
MIN_RATIO, MAX_RATIO = 0.01, 100.0  # anything else is an accident
Ratio = tuple[float, float]  # forward, backward: measured over modelled seconds


class MachineKey(msgspec.Struct, frozen=True):
    """Whose constants they are: of this host, with these versions, for processes of so many threads of torch."""

    host: str
    cpu: str
    cores: int
    torch: str
    cutset: str
    threads: int


class SavedProbe(msgspec.Struct, frozen=True):
    """Constants of a machine.

    cluster: a cluster file of one such machine and the loopback between two processes. contention: as in `SharedCores`.
    busy: other processes that ran while it was measured; seconds: that this took. ratios: of operators by signature;
    memory: of processes, by the digest of the graph of their task; contentions: of tasks, by
    `name_contention`; speedups: of tasks, how many times as fast one process computes that has all the cores.
    steps: the seconds of cuts, and of one process beside each. learned: of classes of operators, from runs.
    learned_link: how many times as long messages took in runs as measured.
    """

    format: int
    key: MachineKey
    cluster: str
    contention: float
    busy: float
    seconds: float
    ratios: dict[str, Ratio] = {}
    memory: dict[str, ProcessMemory] = {}
    contentions: dict[str, float] = {}
    speedups: dict[str, float] = {}
    steps: dict[str, tuple[float, float]] = {}
    learned: dict[str, Ratio] = {}
    learned_link: float = 1.0

    def make_cluster(self, count: int, replicas: int = 1, *, task: str = "", unrolled: str = "") -> Cluster:
        """Return a cluster of so many processes of this machine, which share its cores, as `train` starts them.

        replicas: so many of these train side by side, each on its part of the cores. task: the digest of the graph;
        unrolled: of the task's unrolled form, if there is one.
        """
        one = read(self.cluster, name="the saved probe")
        known = self.memory.get(task, ProcessMemory(one.machines[0].process_bytes, 1.0))
        machine = replace(
            one.machines[0],
            memory_bytes=one.machines[0].memory_bytes // (count * replicas),
            process_bytes=known.process_bytes,
            memory_ratio=known.ratio,
            unrolled_memory=self.memory.get(unrolled),
            ratios={**self.learned, **self.ratios},
        )
        machines = tuple(replace(machine, name=f"machine {number}") for number in range(count))
        cores = max(1, self.key.cores // self.key.threads // replicas)
        known_as = name_contention(task, count * replicas, self.key.cores // self.key.threads)
        contention = self.contentions.get(known_as, self.contention)
        bandwidth, latency_s = one.bandwidth / self.learned_link, one.latency_s * self.learned_link
        if count == 1:
            return Cluster(machines, bandwidth, latency_s)
        speedup = self.speedups.get(task) if replicas == 1 else None
        shared = SharedCores(tuple(range(count)), cores, contention, bandwidth, speedup)
        return Cluster(machines, bandwidth, latency_s, shared=(shared,))


def make_saved_probe(key: MachineKey, cluster: Cluster, *, busy: float, seconds: float) -> SavedProbe:
    """Return what is to be saved of a measured cluster of processes of this machine."""
    contention = cluster.shared[0].contention if cluster.shared else 1.0
    memory = sum(machine.memory_bytes for machine in cluster.machines)
    one = replace(cluster, machines=(replace(cluster.machines[0], name="machine", memory_bytes=memory),), shared=())
    return SavedProbe(FORMAT, key, to_toml(one), contention, busy, seconds)


def name_contention(task: str, processes: int, cores: int) -> str:
    """Return under which name the contention of a task's processes is kept: where they take turns, it is another one.

    cores: how many processes have cores of their own.
    """
    return task if processes <= cores else f"{task} by {processes}"


def make_key(processes: int) -> MachineKey:
    """Return the key of this machine for so many processes, of which each has an equal part of the cores."""
    threads = max(1, read_cores() // processes)
    return MachineKey(platform.node(), _read_cpu(), read_cores(), version("torch"), version("cutset"), threads)


@cache
def _read_cpu() -> str:
    """Return the name of the processor, as far as the system tells it."""
    with suppress(OSError):
        found = re.search(r"^(?:model name|Model)\s*:\s*(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
        if found:
            return f"{platform.machine()} {found[1]}"
    return platform.machine()


def find_folder() -> Path | None:
    """Return the folder of saved probes; None where this user has no home."""
    stated = os.environ.get("XDG_CACHE_HOME", "")
    if Path(stated).is_absolute():  # as the XDG Base Directory Specification demands
        return Path(stated) / "cutset"
    try:
        return Path.home() / ".cache" / "cutset"
    except RuntimeError:
        return None


def find_file(key: MachineKey) -> Path | None:
    """Return the path of the file of a machine."""
    folder = find_folder()
    digest = hashlib.sha256(msgspec.json.encode((FORMAT, key))).hexdigest()[:16]
    return None if folder is None else folder / f"probe-{digest}.json"


def read_saved_probe(key: MachineKey) -> tuple[SavedProbe | None, str]:
    """Return what is saved of a machine, or None; and a sentence where there is a file that cannot be used."""
    path = find_file(key)
    if path is None or not path.is_file():
        return None, ""
    try:
        if path.stat().st_size > MAX_BYTES:
            return None, f"{path} is left out: it is no probe of this machine"
        saved = msgspec.json.decode(path.read_bytes(), type=SavedProbe)
        saved.make_cluster(1)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, BadInput, ZeroDivisionError) as error:
        return None, f"{path} is left out, since it cannot be read: {error}"
    if saved.format != FORMAT:
        return None, f"{path} is left out: another version of cutset has measured it"
    if saved.key != key:
        return None, f"{path} is left out: it is a probe of another machine ({_describe_difference(saved.key, key)})"
    ratios = [*saved.ratios.values(), *saved.learned.values(), (saved.learned_link, saved.contention)]
    ratios += [(ratio, ratio) for kept in (saved.contentions, saved.speedups) for ratio in kept.values()]
    ratios += [(memory.ratio, memory.ratio) for memory in saved.memory.values()]
    are_times = all(seconds > 0 for pair in saved.steps.values() for seconds in pair)
    are_bytes = all(memory.process_bytes >= 0 for memory in saved.memory.values())
    if not are_times or not are_bytes or not all(MIN_RATIO <= one <= MAX_RATIO for ratio in ratios for one in ratio):
        return None, f"{path} is left out: it has numbers that cannot be"
    return saved, ""


def _describe_difference(other: MachineKey, own: MachineKey) -> str:
    fields = MachineKey.__struct_fields__
    return ", ".join(f"{name} {getattr(other, name)}" for name in fields if getattr(other, name) != getattr(own, name))


def save_probe(saved: SavedProbe) -> str:
    """Write what is known of a machine, whole or not at all; return a sentence where it cannot be kept."""
    path = find_file(saved.key)
    if path is None:
        return "what was measured cannot be kept: this user has no home folder"
    measured = {name: getattr(saved, name) for name in ("ratios", "memory", "contentions", "speedups", "steps")}
    newest = {name: dict(list(kept.items())[-MAX_SAVED:]) for name, kept in measured.items()}
    kept = msgspec.structs.replace(saved, **newest)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, msgspec.json.encode(kept).decode())
    except OSError as error:
        return f"what was measured cannot be kept in {path.parent}: {error.strerror}"
    return ""
