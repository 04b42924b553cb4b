"""The form of recurrent nets is chosen by the simulated step."""

import functools
from dataclasses import replace

import pytest
from recurrent_nets import unrolled, whole

from cutset.errors import Infeasible
from cutset.partition.cluster.machines import Cluster, Machine, ProcessMemory, uniform_cluster
from cutset.partition.ir.graph import Graph
from cutset.partition.placement.from_plan import plan_placement
from cutset.partition.planner.forms import find_form


@functools.cache
def graphs() -> tuple[Graph, Graph]:
    """A language model, whole and unrolled."""
    return whole("language_model").graph, unrolled("language_model").graph


def cluster(flops_per_s: float, count: int = 2) -> Cluster:
    """Machines that compute so fast, in a fast network; starting an operator takes no time."""
    machines = [
        replace(m, flops_per_s=flops_per_s, operator_s=0.0, gradient_s=0.0) for m in uniform_cluster(count).machines
    ]
    return Cluster(tuple(machines), bandwidth=1e9, latency_s=1e-6)


@pytest.mark.run
def test_where_a_step_computes_for_long_the_unrolled_form_is_better() -> None:
    slow = cluster(1e6)
    choice = find_form(*graphs(), slow)
    assert choice.unrolled
    assert choice.runner_up is not None
    assert choice.result.winner.simulation.step_s < choice.runner_up.winner.simulation.step_s
    assert choice.result.one_machine is choice.runner_up.one_machine
    whole_form, unrolled_form = graphs()
    placement = plan_placement(whole_form, slow, model="m", unrolled=unrolled_form)
    assert placement.unrolled
    assert placement.verdict.startswith("Worth distributing: 2 machines ")
    assert "Recurrent nets are computed step by step; whole, a step would take " in placement.verdict


@pytest.mark.run
def test_each_form_takes_the_memory_that_was_measured_of_it() -> None:
    slow = cluster(1e6)
    unrolled = ProcessMemory(3000, 1.0)
    machines = tuple(replace(machine, process_bytes=2000, unrolled_memory=unrolled) for machine in slow.machines)
    plain, own = (find_form(*graphs(), one) for one in (slow, replace(slow, machines=machines)))
    assert own.unrolled
    assert own.runner_up is not None
    assert plain.runner_up is not None
    for form, other, size in (
        (own.result, plain.result, 3000),
        (own.runner_up, plain.runner_up, 2000),
    ):
        pairs = zip(form.winner.simulation.memory_bytes, other.winner.simulation.memory_bytes, strict=True)
        assert all(taken == size + modelled for taken, modelled in pairs)


@pytest.mark.slow
def test_where_messages_take_long_the_whole_form_is_better() -> None:
    far = replace(cluster(1e12), latency_s=1e-2)
    whole_form, unrolled_form = graphs()
    placement = plan_placement(whole_form, far, model="m", unrolled=unrolled_form)
    assert not placement.unrolled
    assert "Recurrent nets are computed whole; step by step, a step would take " in placement.verdict


@pytest.mark.slow
def test_one_of_several_machines_has_the_whole_form() -> None:
    whole_form, unrolled_form = graphs()
    placement = plan_placement(whole_form, uniform_cluster(3), model="m", unrolled=unrolled_form, fewer=True)
    assert (len(placement.machines), placement.unrolled) == (1, False)


@pytest.mark.slow
def test_without_a_plan_of_any_form_the_error_is_that_of_the_whole_form() -> None:
    tiny = Cluster(tuple(Machine(f"thimble {i}", memory_bytes=100) for i in range(2)))
    with pytest.raises(Infeasible, match="E404"):
        find_form(*graphs(), tiny)
