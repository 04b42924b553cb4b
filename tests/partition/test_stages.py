"""Contiguous stages: the dynamic program against brute force."""

import itertools

import pytest
from example_graphs import chain

from cutset.partition.cluster.machines import Cluster, Machine
from cutset.partition.dataflow.cut import Cut
from cutset.partition.dataflow.dataflow import flow
from cutset.partition.layouts.standard_cuts import stage_of


@pytest.mark.parametrize("machines", [2, 3])
def test_stages_are_the_best_of_all_contiguous_splits(machines: int) -> None:
    graph = chain(8, 32, 4, 16, 16, 8)
    cluster = Cluster(tuple(Machine(f"m{i}", 1e3) for i in range(machines)), bandwidth=1e2, latency_s=0.0)
    found = stage_of(graph, cluster, [m.flops_per_s for m in cluster.machines])
    count = len(graph.ops)
    every = [
        [sum(i >= edge for edge in edges) for i in range(count)]
        for edges in itertools.combinations(range(1, count), machines - 1)
    ]
    assert found in every
    assert largest_stage(graph, cluster, found) == pytest.approx(min(largest_stage(graph, cluster, e) for e in every))


def largest_stage(graph, cluster, machine_of) -> float:  # type: ignore[no-untyped-def]
    boxes = {op.name: [(op.nest.box, m)] for op, m in zip(graph.ops, machine_of, strict=True)}
    spelled = flow(graph, Cut(len(cluster), boxes))
    loads = []
    for machine in range(len(cluster)):
        flops = sum(op.flops for op, m in zip(graph.ops, machine_of, strict=True) if m == machine)
        entering = sum(spelled.bytes(e) for e in spelled.edges if e.target == machine)
        loads.append(3 * flops / cluster.machines[machine].flops_per_s + 2 * entering / cluster.bandwidth)
    return max(loads)
