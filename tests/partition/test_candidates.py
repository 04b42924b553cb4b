"""The portfolio: all legal, all machines used, and the dynamic program against brute force."""

import itertools

import pytest
from example_graphs import chain, conv_line, mlp_block

from cutset.partition.candidates import candidates, slices, stages
from cutset.partition.cluster import Cluster, Machine, alike
from cutset.partition.cut import check
from cutset.partition.exchange import flow


@pytest.mark.parametrize("machines", [2, 3, 4])
@pytest.mark.parametrize("graph", [chain(16, 12, 8), conv_line(16), mlp_block(8, 4, 16)], ids=["chain", "conv", "mlp"])
def test_every_candidate_is_legal_and_uses_every_machine(graph, machines) -> None:  # type: ignore[no-untyped-def]
    found = list(candidates(graph, alike(machines), seed=0))
    assert len({c.name for c in found}) == len(found) >= 2
    for candidate in found:
        check(graph, candidate.cut)
        used = {machine for pieces in candidate.cut.boxes.values() for _, machine in pieces}
        assert used == set(range(machines)), candidate.name


def test_candidates_are_the_same_every_time() -> None:
    graph = chain(16, 12, 8)
    first, second = (list(candidates(graph, alike(3), seed=7)) for _ in range(2))
    assert first == second


def test_slices_cut_every_layer_along_its_units() -> None:
    boxes = slices(chain(16, 12, 8), 4)
    assert boxes is not None
    assert [box[1] for box, _ in boxes["linear"]] == [(0, 3), (3, 6), (6, 9), (9, 12)]
    assert [machine for _, machine in boxes["linear_1"]] == [0, 1, 2, 3]


@pytest.mark.parametrize("machines", [2, 3])
def test_stages_are_the_best_of_all_contiguous_splits(machines: int) -> None:
    graph = chain(8, 32, 4, 16, 16, 8)
    cluster = Cluster(tuple(Machine(f"m{i}", 1e3) for i in range(machines)), bandwidth=1e2, latency_s=0.0)
    boxes = stages(graph, cluster)
    assert boxes is not None
    found = [boxes[op.name][0][1] for op in graph.ops]
    count = len(graph.ops)
    every = [
        [sum(i >= edge for edge in edges) for i in range(count)]
        for edges in itertools.combinations(range(1, count), machines - 1)
    ]
    assert found in every
    assert largest_stage(graph, cluster, found) == pytest.approx(min(largest_stage(graph, cluster, e) for e in every))


def largest_stage(graph, cluster, machine_of) -> float:  # type: ignore[no-untyped-def]
    from cutset.partition.cut import Cut

    boxes = {op.name: [(op.nest.box, m)] for op, m in zip(graph.ops, machine_of, strict=True)}
    spelled = flow(graph, Cut(len(cluster), boxes))
    loads = []
    for machine in range(len(cluster)):
        flops = sum(op.flops for op, m in zip(graph.ops, machine_of, strict=True) if m == machine)
        entering = sum(spelled.bytes(e) for e in spelled.edges if e.target == machine)
        loads.append(3 * flops / cluster.machines[machine].flops_per_s + 2 * entering / cluster.bandwidth)
    return max(loads)
