"""Fills the waits of a machine in backward with gradients of parameters, which nobody is waiting for.

1. In a simulated step, note how long each machine waits after backward of each segment, on average over micro-batches.
2. From the end of the model to its begin, defer the parameters' gradients of a segment to the longest wait that is left
   among those after its backward and the next two. Where there is none, they are computed right after backward has sent
   what others wait for; nothing is deferred where it sends nothing.

Waits are others then: simulate the cut, and do it once more.

Machines that share cores are left alone: what moves their messages needs these cores, too, and a wait is none for them.
Two processes on two cores, joined by an emulated link, took as long with gradients deferred as without.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

from ..cluster.cost_model import CostModel
from ..cluster.machines import Cluster
from .cut import Cut
from .dataflow import Dataflow
from .deferred_gradients import SegmentKey
from .machine_schedules import BACKWARD, WEIGHTS, deferrable_seconds, first_readers
from .simulator import SEND, Activity, Simulation

REACH = 3  # waits that gradients may go to: after their own segment's backward, and after those that follow
WORTH = 0.02  # of a step, that some machine waits: less is not worth filling


def fill_waits(dataflow: Dataflow, simulation: Simulation, cluster: Cluster, costs: CostModel) -> Cut | None:
    """Return the cut with gradients of parameters deferred to where machines wait in the simulated step.

    None where they hardly wait, or nothing can be deferred. costs: of the graph that was cut.
    """
    if min(simulation.busy_s) > (1 - WORTH) * simulation.step_s:
        return None
    sharing = {machine for shared in cluster.shared if len(shared.machines) > 1 for machine in shared.machines}
    possible = deferrable_seconds(dataflow, cluster, costs)
    recomputed = dataflow.cut.recomputed
    seconds = {key: own for key, own in possible.items() if key[0] not in sharing and key not in recomputed}
    readers = first_readers(dataflow)
    sending = {(edge.target, readers[edge.index]) for edge in dataflow.edges if edge.gradient_bytes}
    deferred = dict[SegmentKey, int]()
    for machine, waits in _measure_waits(simulation).items() if seconds else ():
        deferred |= _place(machine, waits, seconds, sending)
    return replace(dataflow.cut, deferred=deferred) if deferred else None


def _measure_waits(simulation: Simulation) -> dict[int, dict[int, float]]:
    """Return, by machine and stage, how long it waits after backward, in the order in which backward runs."""
    waits = defaultdict[int, dict[int, list[float]]](lambda: defaultdict(list))
    last = dict[int, Activity]()
    for activity in sorted(simulation.timeline, key=lambda activity: activity.start_s):
        if activity.kind in (SEND, WEIGHTS):  # what gradients fill counts as a wait, though some may have been none
            continue
        before = last.get(activity.machine)
        if before is not None and before.kind == BACKWARD:
            waits[activity.machine][before.stage].append(activity.start_s - before.stop_s)
        last[activity.machine] = activity
    for machine, activity in last.items():
        waits[machine][activity.stage].append(0.0)
    return {
        machine: {stage: sum(gaps) / len(gaps) for stage, gaps in sorted(own.items(), reverse=True)}
        for machine, own in waits.items()
    }


def _place(
    machine: int, waits: dict[int, float], seconds: Mapping[SegmentKey, float], sending: Collection[SegmentKey]
) -> Iterator[tuple[SegmentKey, int]]:
    """Yield each segment that defers gradients with the stage after which it computes them; waits get shorter."""
    stages = list(waits)
    for n, stage in enumerate(stages):
        needed = seconds.get((machine, stage), 0.0)
        after = max(stages[n : n + REACH], key=lambda one: min(waits[one], needed))  # the first of the longest
        if needed and (waits[after] > 0 or (machine, stage) in sending):
            waits[after] = max(0.0, waits[after] - needed)
            yield (machine, stage), after
