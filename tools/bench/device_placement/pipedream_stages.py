"""Cuts a profiled network into the stages of a pipeline: PipeDream's objective without replication (Narayanan et al.,
SOSP 2019, section 3.1).

A stage takes the time of its layers. Between two stages lie the outputs that a later stage uses; moving them takes
their output times. Computing and moving overlap, so the pipeline goes at the pace of the slowest of all.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from .downset import Rows, all_downsets, linear_orders, prefixes, united
from .downset_chain import best_chain
from .layer_graph import LayerGraph
from .layer_groups import grouped

DOWNSETS_MAX = 60_000
CELLS_MAX = 40_000_000  # downsets x layers
EFFORT_MAX = 5e9
MIXED_ORDERS = 12


@dataclass(frozen=True)
class PipelinePlan:
    """stage_of: per layer its stage. seconds: the slowest stage or transfer. proven: whether none is better."""

    stage_of: tuple[int, ...]
    seconds: float
    proven: bool


def pipeline_seconds(graph: LayerGraph, stage_of: Sequence[int]) -> float:
    """The slowest stage or transfer. Raises ValueError where an edge goes back to an earlier stage."""
    stages = max(stage_of) + 1
    compute, moving = [0.0] * stages, [0.0] * stages
    for layer, stage, users in zip(graph.layers, stage_of, graph.consumers(), strict=True):
        compute[stage] += layer.time
        last = max((stage_of[user] for user in users), default=stage)
        if any(stage_of[user] < stage for user in users):
            raise ValueError(f"{layer.name} of stage {stage} is used in an earlier one")
        for boundary in range(stage, last):
            moving[boundary] += layer.output_time
    return max([*compute, *moving])


def plan_pipeline(graph: LayerGraph, *, seed: int = 0) -> PipelinePlan:
    """The best stages for graph.accelerators machines; fewer are used where that is faster."""
    machines = min(graph.accelerators, len(graph.layers))
    groups = replace(grouped(replace(graph, accelerators=machines, cpus=0)), nets=(), memory_bytes=float("inf"))
    one = [0] * len(graph.layers)
    bound, chosen = pipeline_seconds(graph, one), one
    families = [prefixes(order, groups.count) for order in linear_orders(groups, seed=seed, count=MIXED_ORDERS)]
    complete = all_downsets(groups, at_most=min(DOWNSETS_MAX, CELLS_MAX // groups.count))
    proven = True
    for rows in (*families, complete if complete is not None else united(families)):
        crossing = _crossing(graph, rows)
        usable = crossing < bound
        chain = best_chain(groups, rows[usable], bound, effort=EFFORT_MAX, crossing=crossing[usable])
        proven = chain.complete
        if chain.device_of is not None:
            chosen = chain.device_of
            bound = pipeline_seconds(graph, chosen)
    return PipelinePlan(tuple(_numbered(chosen)), bound, proven and complete is not None)


def _crossing(graph: LayerGraph, rows: Rows) -> npt.NDArray[np.float64]:
    """Per downset the time to move the outputs that are used outside it."""
    time = np.zeros(len(rows))
    for layer, users in enumerate(graph.consumers()):
        if users:
            time += graph.layers[layer].output_time * (rows[:, layer] & ~rows[:, sorted(users)].all(axis=1))
    return time


def _numbered(stage_of: Sequence[int]) -> list[int]:
    """Stages without gaps in their numbers."""
    number = {stage: i for i, stage in enumerate(sorted(set(stage_of)))}
    return [number[stage] for stage in stage_of]
