"""Cuts a profiled network into the stages of a pipeline: PipeDream's objective without replication (Narayanan et al.,
SOSP 2019, section 3.1).

A stage takes the time of its layers. Between two stages lie the outputs that a later stage uses; moving them takes
their output times. Computing and moving overlap, so the pipeline goes at the pace of the slowest of all.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from .downset import Downsets, generate_orders, list_downsets, list_prefixes, unite_downsets
from .downset_chain import find_best_chain
from .graphs.layer_graph import LayerGraph
from .layer_groups import group_layers

MAX_DOWNSETS = 60_000
MAX_CELLS = 40_000_000  # downsets x layers
MAX_EFFORT = 5e9
MIXED_ORDERS = 12


@dataclass(frozen=True)
class PipelinePlan:
    """A pipeline. stage_of: by layer; seconds: of the slowest stage or transfer; proven: whether none is better."""

    stage_of: tuple[int, ...]
    seconds: float
    proven: bool


def compute_pipeline_seconds(graph: LayerGraph, stage_of: Sequence[int]) -> float:
    """Return the seconds of the slowest stage or transfer. Raises ValueError if an edge goes to an earlier stage."""
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
    """Return the best stages for graph.accelerators machines; fewer are used if that is faster."""
    machines = min(graph.accelerators, len(graph.layers))
    groups = replace(group_layers(replace(graph, accelerators=machines, cpus=0)), nets=(), memory_bytes=float("inf"))
    one = [0] * len(graph.layers)
    bound, chosen = compute_pipeline_seconds(graph, one), one
    families = [list_prefixes(order, groups.count) for order in generate_orders(groups, seed=seed, count=MIXED_ORDERS)]
    complete = list_downsets(groups, limit=min(MAX_DOWNSETS, MAX_CELLS // groups.count))
    proven = True
    for rows in (*families, complete if complete is not None else unite_downsets(families)):
        crossing = compute_crossing_times(graph, rows)
        usable = crossing < bound
        chain = find_best_chain(groups, rows[usable], bound, effort=MAX_EFFORT, crossing=crossing[usable])
        proven = chain.complete
        if chain.device_of is not None:
            chosen = chain.device_of
            bound = compute_pipeline_seconds(graph, chosen)
    return PipelinePlan(tuple(renumber_stages(chosen)), bound, proven and complete is not None)


def compute_crossing_times(graph: LayerGraph, rows: Downsets) -> npt.NDArray[np.float64]:
    """Return for each downset the time to move the outputs that are used outside it."""
    time = np.zeros(len(rows))
    for layer, users in enumerate(graph.consumers()):
        if users:
            time += graph.layers[layer].output_time * (rows[:, layer] & ~rows[:, sorted(users)].all(axis=1))
    return time


def renumber_stages(stage_of: Sequence[int]) -> list[int]:
    """Renumber the stages without gaps."""
    number = {stage: i for i, stage in enumerate(sorted(set(stage_of)))}
    return [number[stage] for stage in stage_of]
