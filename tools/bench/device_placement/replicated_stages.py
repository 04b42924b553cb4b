"""Cuts a profiled network into the stages of a pipeline, each run by several replicas: PipeDream's whole objective.

Narayanan et al., "PipeDream: Generalized Pipeline Parallelism for DNN Training", SOSP 2019, section 3.1, as its
optimizer computes it (optimizer_graph_hierarchical.py). With T the compute of a stage, W the time that its parameters
take to cross the network four times, a the time to move an output and its gradient, and m replicas of the stage:

    a stage takes (T + W (m - 1) / m) / m,
    its input a / m, and its output, unless it is the first, a / m;

the pipeline goes at the pace of the slowest. The optimizer has a dynamic program over downsets and machines. Here it is
turned round: for a pace, how many machines does it take to come to each downset? That needs no second dimension, and
bisection finds the best pace.

    f(j) = min over i < j of f(i) + the fewest replicas with which stage i .. j keeps the pace
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from .downset import Downsets, generate_orders, list_downsets, list_prefixes, unite_downsets
from .graphs.layer_graph import LayerGraph
from .layer_groups import group_layers
from .pipedream_stages import MAX_CELLS, MIXED_ORDERS, compute_crossing_times, renumber_stages

Numbers = npt.NDArray[np.int64]

MAX_PAIRS = 30_000_000  # of downsets that are compared for one pace; with more, only prefixes of orders are looked at
EXACT = 1e-9  # relative difference of two paces that are one
PLAIN_ORDERS = 5  # that `generate_orders` makes beside mixed ones
NONE = 1 << 30  # machines: no number suffices


@dataclass(frozen=True)
class ReplicatedPipeline:
    """A pipeline. stage_of: by layer; replicas: of each stage; seconds: of the slowest stage or transfer.

    proven: whether none is better.
    """

    stage_of: tuple[int, ...]
    replicas: tuple[int, ...]
    seconds: float
    proven: bool


def compute_replicated_seconds(graph: LayerGraph, stage_of: Sequence[int], replicas: Sequence[int]) -> float:
    """Return the seconds of the slowest stage or transfer. Raises ValueError if an edge goes to an earlier stage."""
    stages = len(replicas)
    compute, syncing, moving = [0.0] * stages, [0.0] * stages, [0.0] * stages
    for layer, stage, users in zip(graph.layers, stage_of, graph.consumers(), strict=True):
        compute[stage] += layer.time
        syncing[stage] += layer.sync_time
        if any(stage_of[user] < stage for user in users):
            raise ValueError(f"{layer.name} of stage {stage} is used in an earlier one")
        for boundary in range(stage, max((stage_of[user] for user in users), default=stage)):
            moving[boundary] += layer.output_time
    times = [(t + w * (m - 1) / m) / m for t, w, m in zip(compute, syncing, replicas, strict=True)]
    times += [moving[stage - 1] / replicas[stage] for stage in range(1, stages)]
    times += [moving[stage] / replicas[stage] for stage in range(1, stages - 1)]
    return max(times)


def plan_replicated_pipeline(graph: LayerGraph, *, seed: int = 0) -> ReplicatedPipeline:
    """Return the best stages and replicas for graph.accelerators machines; fewer are used if that is faster."""
    machines = graph.accelerators
    groups = replace(group_layers(replace(graph, cpus=0)), nets=(), memory_bytes=float("inf"))
    most = min(math.isqrt(2 * MAX_PAIRS), MAX_CELLS // groups.count)
    mixed = max(0, min(MIXED_ORDERS, most // groups.count - PLAIN_ORDERS))
    families = [list_prefixes(order, groups.count) for order in generate_orders(groups, seed=seed, count=mixed)]
    complete = list_downsets(groups, limit=most)
    whole = (0,) * len(graph.layers)
    alone = [
        ReplicatedPipeline(whole, (count,), compute_replicated_seconds(graph, whole, (count,)), False)
        for count in range(1, machines + 1)
    ]
    best = min(alone, key=lambda plan: plan.seconds)
    for rows in (*families, complete if complete is not None else unite_downsets(families)):
        best = _ReplicatedChains(graph, rows, groups.group_of, machines).improve(best)
    return replace(best, proven=complete is not None)


class _ReplicatedChains:
    """The chains of a family of downsets, which are in rising order of their time."""

    def __init__(self, graph: LayerGraph, family: Downsets, group_of: Sequence[int], machines: int) -> None:
        self.graph, self.group_of, self.machines = graph, np.array(group_of), machines
        time, syncing = np.zeros(family.shape[1]), np.zeros(family.shape[1])
        np.add.at(time, self.group_of, [layer.time for layer in graph.layers])
        np.add.at(syncing, self.group_of, [layer.sync_time for layer in graph.layers])
        self.rows = family[np.lexsort((family.sum(axis=1), family @ time))]
        self.time, self.syncing = self.rows @ time, self.rows @ syncing
        self.crossing = compute_crossing_times(graph, self.rows[:, self.group_of])
        self.subsets = [self._find_subsets(number) for number in range(len(self.rows))]

    def _find_subsets(self, number: int) -> Numbers:
        """Return the downsets before this one that are parts of it."""
        return np.flatnonzero(~(self.rows[:number] & ~self.rows[number]).any(axis=1))

    def improve(self, best: ReplicatedPipeline) -> ReplicatedPipeline:
        """Return the best pipeline of the family, if it is better than one that is known."""
        low = self.time[-1] / self.machines * (1 - EXACT)
        pace = best.seconds * (1 - EXACT)  # first of all, is there anything better?
        while low < best.seconds * (1 - EXACT):
            found = self._keep_pace(pace)
            if found is None or found.seconds >= best.seconds * (1 - EXACT):  # the last by rounding alone
                low = pace
            else:
                best = found
            pace = min((low + best.seconds) / 2, best.seconds * (1 - EXACT))
        return best

    def _keep_pace(self, pace: float) -> ReplicatedPipeline | None:
        """Return a pipeline whose stages and transfers take so long at most; None where there is none."""
        fewest = np.full(len(self.rows), NONE)
        before, used = np.full(len(self.rows), -1), np.zeros(len(self.rows), dtype=np.int64)
        fewest[0] = 0
        for number in range(1, len(self.rows)):
            starts = self.subsets[number]
            starts = starts[fewest[starts] < self.machines]
            if not len(starts):
                continue
            replicas = self._count_replicas(starts, number, pace)
            total = fewest[starts] + replicas
            best = int(total.argmin())
            rest = self.time[-1] - self.time[number]  # even without transfers it takes machines
            if total[best] + rest / pace * (1 - EXACT) <= self.machines:
                fewest[number], before[number], used[number] = total[best], starts[best], replicas[best]
        return self._trace_back(before, used) if fewest[-1] <= self.machines else None

    def _count_replicas(self, starts: Numbers, number: int, pace: float) -> Numbers:
        """Return the fewest replicas with which a stage from each start to a downset keeps the pace.

        With two and more, T / m + W (m - 1) / m^2 falls as m rises; it is the pace at the larger root of
        pace m^2 - (T + W) m + W.
        """
        compute, syncing = self.time[number] - self.time[starts], self.syncing[number] - self.syncing[starts]
        moving = np.maximum(self.crossing[starts], self.crossing[number])
        moving[starts == 0] = 0.0
        both = compute + syncing
        root = (both + np.sqrt(np.maximum(0.0, both**2 - 4 * pace * syncing))) / (2 * pace)
        several = np.ceil(np.maximum(np.maximum(root, moving / pace), 2.0) * (1 - EXACT))
        out = np.where((compute <= pace) & (moving <= pace), 1.0, several)
        return np.minimum(out, NONE // 2).astype(np.int64)

    def _trace_back(self, before: Numbers, used: Numbers) -> ReplicatedPipeline:
        stage_of_group = np.zeros(self.rows.shape[1], dtype=np.int64)
        replicas, at = list[int](), len(self.rows) - 1
        while at:
            stage_of_group[self.rows[at] & ~self.rows[before[at]]] = -len(replicas)
            replicas.append(int(used[at]))
            at = int(before[at])
        stage_of = renumber_stages(stage_of_group[self.group_of].tolist())
        seconds = compute_replicated_seconds(self.graph, stage_of, replicas[::-1])
        return ReplicatedPipeline(tuple(stage_of), tuple(replicas[::-1]), seconds, False)
