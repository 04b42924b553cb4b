"""Measures this machine where a plan needs it: its constants and the operators of the task, once, and keeps them.

A probe of some seconds is made for each number of threads that a worker's process may have, and again where versions
change; operators are measured when a task first comes that has them.
"""

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec

from ...errors import CutsetError
from ...partition.cluster.machines import Cluster, ProcessMemory
from ..measured.saved_probe import (
    SavedProbe,
    find_folder,
    make_key,
    make_saved_probe,
    name_contention,
    read_saved_probe,
    save_probe,
)
from ..task.capture_task import CapturedTask, capture_unrolled
from ..task.load_task import TaskSpec
from ..task.plan_request import HERE, PlanRequest

if TYPE_CHECKING:
    from .measure_machine import ProbeResult

Tell = Callable[[str], None]


def find_machines(
    capture: CapturedTask, spec: TaskSpec, request: PlanRequest, tell: Tell, *, again: bool = False
) -> Cluster | None:
    """Return the machines to plan a captured task for, after measuring what is not known of them.

    None where they are not processes of this machine, or there is one machine to plan for and nothing to compare. tell:
    is called with a sentence for what takes time, and for what cannot be used or kept. again: measure everything for
    this plan alone, and leave what is kept as it is.
    """
    if request.source != HERE or request.count == 1:
        return None
    saved = _probe(request.processes) if again else probe_once(request.processes, tell)
    other = capture_unrolled(capture, spec)
    captures = [capture] if other is None or not other.unrolled else [capture, other]
    digests = [one.train.digest for one in captures]
    known = measure_task(saved, captures, spec, tell, processes=request.processes, keep=not again)
    return known.make_cluster(request.count, request.replicas, task=digests[0], unrolled=digests[-1])


def probe_once(processes: int, tell: Tell) -> SavedProbe:
    """Return what is known of this machine for so many processes; measure it where nothing is.

    What was measured while other work disturbed it is measured again once the machine is idle.
    """
    from .measure_machine import BUSY

    key = make_key(processes)
    saved, note = read_saved_probe(key)
    if note:
        tell(note)
    idle_now = os.getloadavg()[0] <= BUSY * key.cores
    if saved is not None and not (idle_now and saved.busy > BUSY * key.cores):
        return saved
    threads = f"{key.threads} thread" + ("s" if key.threads > 1 else "")
    again = "again, since it was busy when it was measured" if saved is not None else "once"
    tell(f"measuring this machine, {again}, for processes of {threads}: some seconds")
    measured = _probe(processes)
    while_busy = f", while {measured.busy:.1f} other processes ran" if measured.busy > BUSY * key.cores else ""
    tell(f"measured in {measured.seconds:.0f} s{while_busy}; kept in {find_folder()}")
    return save(measured, tell)


def _probe(processes: int) -> SavedProbe:
    """Measure this machine for so many processes, by a short probe."""
    from .measure_machine import QUICK, probe

    return summarise(probe(min(processes, max(2, make_key(processes).cores)), effort=QUICK))


def summarise(probed: "ProbeResult") -> SavedProbe:
    """Return what is to be kept of a probe."""
    return make_saved_probe(make_key(probed.workers), probed.cluster, busy=probed.busy, seconds=probed.seconds)


def save(saved: SavedProbe, tell: Tell) -> SavedProbe:
    """Keep what was measured, and return it."""
    note = save_probe(saved)
    if note:
        tell(note)
    return saved


def measure_task(
    saved: SavedProbe,
    captures: Sequence[CapturedTask],
    spec: TaskSpec,
    tell: Tell,
    *,
    processes: int,
    keep: bool = True,
) -> SavedProbe:
    """Return what is known with the operators of captured tasks, which are measured where they are not known.

    processes: to plan for. keep: for later plans, too.
    """
    from .task_operators import has_unknown, measure_operators

    machine, threads = saved.make_cluster(1).machines[0], saved.key.threads
    cores = saved.key.cores // threads
    for capture in captures:
        task = name_contention(capture.train.digest, processes, cores)
        knows_speedup = cores == 1 or capture.train.digest in saved.speedups
        is_known = capture.train.digest in saved.memory and task in saved.contentions and knows_speedup
        if is_known and not has_unknown(capture, saved.ratios):
            continue
        own = msgspec.structs.replace(spec, unrolled=capture.unrolled)
        try:
            found = measure_operators(
                capture, own, machine, saved.ratios, threads=threads, processes=max(processes, cores), cores=cores
            )
        except CutsetError as error:
            tell(f"the operators of {spec.model} could not be measured one by one: {error.facts}")
            continue
        if found is not None:
            known = {
                "ratios": {**saved.ratios, **found.operators},
                "memory": {
                    **saved.memory,
                    capture.train.digest: found.memory or ProcessMemory(machine.process_bytes, 1.0),
                },
                "contentions": {**saved.contentions, task: found.contention or saved.contention},
                "speedups": {**saved.speedups, capture.train.digest: found.speedup or 1.0},
            }
            saved = msgspec.structs.replace(saved, **known)
            if keep:
                save(saved, tell)
    return saved
