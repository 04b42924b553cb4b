"""Shares of the work that fit in memory: by the speed of machines, but for those that have too little memory for it.

A cut with shares by speed is made first. Where a machine needs more memory than it has, its share is limited to what
its memory would hold if its needs grew with its share; the others take the rest, by their speed up to limits of their
own. What a machine needs with these shares says more, and so on for a few rounds.
"""

from collections.abc import Callable, Sequence

from ..cluster.machines import HeldBytes
from ..dataflow.cut import Cut
from ..dataflow.lowering import lower_cut
from ..dataflow.memory_model import least_memory, whole_memory
from ..dataflow.pipeline_depth import count_in_flight
from .plan import CutOrReason, PlanningProblem

ROUNDS = 6
MARGIN = 0.98  # of the memory of a machine that is to be filled; parts are rounded to whole units
COPIES = 4  # of a part of the model, on so many machines, beyond which a plan that copies more is no good one
MIN_SHARE = 1e-3  # of the work, below which a machine has no part to speak of

CutMaker = Callable[[Sequence[float]], tuple[CutOrReason, Cut | None]]


def is_memory_tight(problem: PlanningProblem) -> bool:
    """Whether shares must look at memory: some machine could not hold a few times its share of the model."""
    machines = problem.cluster.machines
    held = whole_memory(problem.graph, in_flight=min(problem.micro_batches, len(machines)))
    speed = sum(machine.flops_per_s for machine in machines)
    for machine in machines:
        share = min(1.0, COPIES * machine.flops_per_s / speed)
        part = HeldBytes(round(share * held.steady), round(share * held.working))
        if machine.needed_bytes(part) > machine.memory_bytes:
            return True
    return False


def fit_shares(problem: PlanningProblem, make: CutMaker) -> CutOrReason:
    """Return a cut that fits, or why there is none. make: a cut with shares of the machines, or why there is none."""
    machines = problem.cluster.machines
    speeds = [machine.flops_per_s for machine in machines]
    shares = [speed / sum(speeds) for speed in speeds]
    for number in range(ROUNDS):
        made, cut = make(shares)
        if cut is None:
            return made
        lowered = lower_cut(problem.graph, cut)
        held = least_memory(lowered, count_in_flight(lowered, problem.micro_batches))
        needed = [machine.needed_bytes(size) for machine, size in zip(machines, held, strict=True)]
        fits = [size <= machine.memory_bytes for size, machine in zip(needed, machines, strict=True)]
        if all(fits):
            return made if number else "shares by speed fit as they are"
        if not any(fits):
            break  # no machine has room for what another would give up
        limits = [
            share * MARGIN * machine.memory_bytes / max(1, size)
            for share, machine, size in zip(shares, machines, needed, strict=True)
        ]
        if sum(limits) < MIN_SHARE:
            break
        shares = _share_up_to(limits, speeds)
    return "no shares of the machines were found that fit in their memory"


def _share_up_to(limits: Sequence[float], speeds: Sequence[float]) -> list[float]:
    """Shares by speed, none beyond its limit; where these do not add up to all, each as far beyond."""
    if sum(limits) <= 1.0:
        return [max(MIN_SHARE, limit / sum(limits)) for limit in limits]
    free, rest, out = set(range(len(limits))), 1.0, [0.0] * len(limits)
    while True:
        total = sum(speeds[n] for n in free)
        full = {n for n in free if rest * speeds[n] / total >= limits[n]}
        if not full:
            break
        for n in full:
            out[n] = limits[n]
        rest -= sum(limits[n] for n in full)
        free -= full
        if not free:
            break
    for n in free:
        out[n] = rest * speeds[n] / sum(speeds[m] for m in free)
    return [max(MIN_SHARE, share) for share in out]
