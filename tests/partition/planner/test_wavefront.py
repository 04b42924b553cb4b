"""Layers of recurrent nets on different machines compute different time steps at the same time."""

import functools
from dataclasses import replace

import pytest
from candidate_cuts import candidates
from example_graphs import chain
from recurrent_nets import unrolled

from cutset.partition.cluster.machines import Cluster, uniform_cluster
from cutset.partition.dataflow.lowering import lower_cut
from cutset.partition.dataflow.machine_schedules import FORWARD
from cutset.partition.dataflow.simulator import simulate
from cutset.partition.ir.graph import Graph
from cutset.partition.planner.candidates import candidate_names
from cutset.partition.planner.plan import Candidate, PlanningProblem
from cutset.partition.planner.wavefront import assign_layers, find_layers


@functools.cache
def graph() -> Graph:
    """A language model whose time steps are operators."""
    return unrolled("language_model").graph


def slow_cluster() -> Cluster:
    """Two machines whose time is all in products, and a fast network."""
    machines = [replace(m, flops_per_s=1e6, operator_s=0.0, gradient_s=0.0) for m in uniform_cluster(2).machines]
    return Cluster(tuple(machines), bandwidth=1e9, latency_s=1e-6)


def wavefront(cluster: Cluster) -> Candidate:
    return next(c for c in candidates(graph(), cluster) if c.name.startswith("wavefront 2x1/1"))


def test_a_layer_is_what_repeats_a_weight() -> None:
    layers = find_layers(graph())
    repeated = [{name for i in layer for name in graph().ops[i].inputs if "weight" in name} for layer in layers]
    assert repeated == [{"lstm.weight_hh_l0"}, {"lstm.weight_ih_l1"}, {"lstm.weight_hh_l1"}]
    assert find_layers(chain(4, 4, 4)) == []
    assert not any(
        name.startswith("wavefront") for name in candidate_names(PlanningProblem(chain(4, 4, 4), slow_cluster()))
    )


@pytest.mark.parametrize("groups", [1, 2, 3])
def test_layers_go_to_contiguous_groups(groups: int) -> None:
    layers = find_layers(graph())
    group_of = assign_layers(graph(), layers, groups)
    numbers = [group_of[graph().ops[layer[0]].name] for layer in layers]
    assert numbers == sorted(numbers)
    assert sorted(set(numbers)) == list(range(groups))


@pytest.mark.run
def test_the_second_machine_starts_before_the_first_has_all_time_steps() -> None:
    cluster = slow_cluster()
    cut = wavefront(cluster).cut
    waved, at_once = (lower_cut(graph(), replace(cut, wave=wave)) for wave in (cut.wave, 0))
    assert len(waved.edges) > len(at_once.edges)
    assert waved.bytes_forward == at_once.bytes_forward
    runs = [simulate(dataflow, cluster) for dataflow in (waved, at_once)]
    assert runs[0].step_s < 0.95 * runs[1].step_s
    spans = [[a for a in runs[0].timeline if a.kind == FORWARD and a.machine == machine] for machine in (0, 1)]
    overlapping = [
        (a.label, b.label) for a in spans[0] for b in spans[1] if a.start_s < b.stop_s and b.start_s < a.stop_s
    ]
    assert len(overlapping) >= 4
