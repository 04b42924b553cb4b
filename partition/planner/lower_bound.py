"""A lower bound of the step that no plan can be below: all machines compute all the time, and nothing is sent.

The work of an operator may be divided among machines in any parts. That is a linear program; any weights of the
machines give a bound of it by its dual,

    step >= sum over operators of min over machines of (weight of the machine x seconds of the operator there),

where weights add up to 1. They are taken in proportion to the speed at which a machine computes the whole model, which
is exact where machines differ in speed alone. Starts of operators, which every part has, are left out: how many parts
there are is up to the plan. Parts of an operator together have its FLOPs, and read and write at least its bytes, so
together they take at least its time by the roofline model; and no part that was measured is taken to be quicker.
"""

import numpy as np

from ..cluster.cost_model import CostModel
from ..cluster.machines import Cluster, Machine
from ..ir.graph import Graph


def bound_step_seconds(graph: Graph, cluster: Cluster, costs: CostModel, *, micro_batches: int = 1) -> float:
    """Return seconds of a step of so many micro-batches that no plan on these machines is below."""
    known: dict[tuple[object, ...], list[float]] = {}  # machines of one kind take the same
    columns = []
    for machine in cluster.machines:
        kind = (machine.flops_per_s, machine.memory_bandwidth, *sorted(machine.rates.items()))
        if kind not in known:
            known[kind] = _compute_seconds(graph, costs, machine)
        columns.append(known[kind])
    seconds = np.array(columns).T  # [operators, machines]
    speeds = 1 / np.maximum(seconds.sum(axis=0), 1e-30)
    return float(micro_batches * (seconds * (speeds / speeds.sum())).min(axis=1).sum())


def _compute_seconds(graph: Graph, costs: CostModel, machine: Machine) -> list[float]:
    """Return the seconds of each operator on one machine, forward and backward, without starts."""
    out = []
    for op in graph.ops:
        work = costs.work(op, op.nest.box)
        out.append(max(0.0, sum(work.seconds(machine)) - sum(work.starts(machine))))
    return out
