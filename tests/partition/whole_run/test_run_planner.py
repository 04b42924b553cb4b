"""The plan of a whole run: predicted speeds by hand, what limits them, and which split is taken."""

import math
from dataclasses import replace
from functools import partial

import pytest
from example_graphs import chain
from hypothesis import given
from hypothesis import strategies as st

from cutset.errors import Infeasible, UsageError
from cutset.partition.cluster.machines import Cluster, Machine, NetworkLink, uniform_cluster
from cutset.partition.dataflow.memory_model import uncut_memory
from cutset.partition.ir.graph import Graph
from cutset.partition.planner.plan import PlanningResult
from cutset.partition.planner.planner import find_plan
from cutset.partition.whole_run.exchange import Exchange
from cutset.partition.whole_run.run_planner import RunPlan, list_replicas, list_widths, plan_run
from cutset.partition.whole_run.run_split import COMPUTING, EXCHANGING, RunSplit, predict_split

BATCH = 32
GRAPH = chain(64, 64, 64, batch=BATCH)
PARAMETERS = 4 * sum(math.prod(info.shape) for info in GRAPH.parameters)  # bytes
NOTHING = Exchange(0.0, 0.0)


def cluster_of(*speeds: float, bandwidth: float = 1e6, latency_s: float = 0.0) -> Cluster:
    machines = tuple(
        Machine(f"m {i}", speed, memory_bandwidth=1e30, operator_s=0.0, gradient_s=0.0)
        for i, speed in enumerate(speeds)
    )
    return Cluster(machines, bandwidth, latency_s)


def one_machine_plan(cluster: Cluster, graph: Graph = GRAPH) -> PlanningResult:
    return find_plan(graph, cluster.select([0]))


def predict(cluster: Cluster, exchange: Exchange, replicas: int, shards: int = 1) -> RunSplit:
    return predict_split(cluster, one_machine_plan(cluster), exchange, replicas=replicas, shards=shards, batch=BATCH)


def plan(cluster: Cluster, exchange: Exchange) -> RunPlan:
    return plan_run(cluster, exchange, lambda machines: find_plan(GRAPH, machines), batch=BATCH)


def test_replicas_that_exchange_nothing_add_up() -> None:
    cluster = cluster_of(1e6, 1e6, 5e5)
    step = one_machine_plan(cluster).winner.simulation.step_s
    found = predict(cluster, NOTHING, 3)
    assert found.samples_per_s == pytest.approx(BATCH * (1 / step + 1 / step + 1 / (2 * step)))
    assert found.limit == COMPUTING
    assert found.compute_s == pytest.approx(found.step_s)


def test_in_lock_step_all_wait_for_the_slowest() -> None:
    cluster = cluster_of(1e6, 5e5)
    step = one_machine_plan(cluster).winner.simulation.step_s
    found = predict(cluster, Exchange(0.0, 0.0, lock_step=True), 2)
    assert found.samples_per_s == pytest.approx(2 * BATCH / (2 * step))


def test_a_push_and_a_fetch_come_after_the_step() -> None:
    cluster = cluster_of(1e6, 1e6, latency_s=0.5)
    step = one_machine_plan(cluster).winner.simulation.step_s
    away = step + 2 * PARAMETERS / 1e6 + 3 * 0.5
    found = predict(cluster, Exchange(), 2)
    assert found.samples_per_s == pytest.approx(BATCH * (1 / step + 1 / away)), "the first has the shard at home"
    overlapping = predict(cluster, Exchange(overlaps=True), 2)
    assert overlapping.samples_per_s == pytest.approx(BATCH * (1 / step + 1 / max(step, away - step)))
    seldom = predict(cluster, Exchange(1 / 4, 1 / 8), 2)
    sometimes = step + (PARAMETERS / 1e6 + 0.5) / 4 + (PARAMETERS / 1e6 + 1) / 8
    assert seldom.samples_per_s == pytest.approx(BATCH * (1 / step + 1 / sometimes))


def test_the_card_of_one_shard_limits_many_replicas() -> None:
    """Whatever they compute, a card sends no more than it can."""
    found = predict(cluster_of(*[1e9] * 9, bandwidth=1e6), Exchange(), 9)
    assert found.limit.startswith("the network card of m 0")
    alone = one_machine_plan(cluster_of(1e9)).winner.simulation.step_s
    away = alone + 2 * PARAMETERS / 1e6
    slowdown = 8 / away * PARAMETERS / 1e6  # the others would have the card carry more than it can by this
    assert found.samples_per_s == pytest.approx(BATCH * (1 / alone + 8 / away) / slowdown)


def test_more_shards_share_the_load_of_replicas_in_lock_step() -> None:
    cluster = cluster_of(*[1e9] * 9, bandwidth=1e6)
    one, nine = (predict(cluster, Exchange(lock_step=True), 9, shards=shards) for shards in (1, 9))
    assert one.step_s - one.compute_s == pytest.approx(2 * 8 * PARAMETERS / 1e6)
    assert nine.step_s - nine.compute_s == pytest.approx(2 * 8 / 9 * PARAMETERS / 1e6)


def test_exchanging_is_said_to_limit_a_slow_network() -> None:
    assert predict(cluster_of(1e8, 1e8, 1e8, bandwidth=1e6), Exchange(lock_step=True), 2, shards=2).limit == EXCHANGING


@given(st.lists(st.sampled_from([1e6, 3e6]), min_size=1, max_size=6), st.booleans(), st.sampled_from([1e4, 1e6, 1e9]))
def test_no_run_is_faster_than_its_machines_and_its_network(
    speeds: list[float], lock_step: bool, bandwidth: float
) -> None:
    cluster, count = cluster_of(*speeds, bandwidth=bandwidth), len(speeds)
    found = predict(cluster, Exchange(lock_step=lock_step), count)
    alone = [one_machine_plan(cluster.select([m])).winner.simulation.step_s for m in range(count)]
    assert found.samples_per_s <= BATCH * sum(1 / s for s in alone) * (1 + 1e-9)
    assert 0 < found.compute_s <= found.step_s * (1 + 1e-9)


def test_the_machines_that_share_a_shard_need_memory_for_it() -> None:
    cluster = uniform_cluster(2)
    used = one_machine_plan(cluster).winner.simulation.memory_bytes[0]
    machines = tuple(replace(m, memory_bytes=used + PARAMETERS) for m in cluster.machines)
    tight = replace(cluster, machines=machines)
    assert "machine 0 has" in predict(tight, Exchange(), 2).shortage
    assert predict(tight, Exchange(), 2, shards=2).shortage == ""


def test_a_model_that_needs_several_machines_gets_them() -> None:
    """One machine cannot hold it: the two dimensions of DistBelief, both used."""
    cluster = cluster_of(*[1e6] * 4, bandwidth=1e9)
    used = one_machine_plan(cluster).winner.simulation.memory_bytes[0]
    small = replace(cluster, machines=tuple(replace(m, memory_bytes=int(used * 0.95)) for m in cluster.machines))
    found = plan(small, Exchange(1 / 10, 1 / 10))
    assert found.chosen.machines_each > 1
    assert found.chosen.shortage == ""
    assert found.one_process is None
    assert found.pays
    assert any(reason.startswith("1 machine each: no plan fits in memory") for reason in found.rejected)


def test_a_fast_machine_without_memory_hides_no_slower_one() -> None:
    cluster = cluster_of(1e7, 1e6, 1e6, bandwidth=10.0)
    used = one_machine_plan(cluster).winner.simulation.memory_bytes[0]
    fast, *slow = cluster.machines
    tight = replace(cluster, machines=(replace(fast, memory_bytes=used - 1), *slow))
    replicas = partial(find_plan, GRAPH)
    found = plan_run(tight, Exchange(lock_step=True), replicas, batch=BATCH, model_bytes=uncut_memory(GRAPH))
    alone = find_plan(GRAPH, cluster.select([1])).winner.simulation.step_s
    assert found.one_process == pytest.approx(BATCH / alone)
    assert (found.chosen.replicas, found.chosen.machines_each) == (1, 1)
    assert found.chosen.result.winner.cluster.machines[0].name == "m 1"


def test_a_replica_leaves_room_for_its_shards() -> None:
    """The fastest plan gives the fast machine most of the model, and shards would not fit beside it."""
    graph = chain(64, 64, 64, 64, 64, batch=8)
    parameters = 4 * sum(math.prod(info.shape) for info in graph.parameters)
    memory_bytes = int(3.2 * parameters)
    roomy = cluster_of(3e6, 1e6, bandwidth=1e7)
    cluster = replace(roomy, machines=tuple(replace(m, memory_bytes=memory_bytes) for m in roomy.machines))
    fastest = find_plan(graph, cluster).winner.simulation
    assert max(fastest.memory_bytes) + parameters > memory_bytes
    found = plan_run(cluster, Exchange(1 / 10, 1 / 10), lambda machines: find_plan(graph, machines), batch=8)
    assert found.chosen.machines_each == 2
    assert found.chosen.shortage == ""
    assert max(found.chosen.result.winner.simulation.memory_bytes) + parameters <= memory_bytes


@pytest.mark.run
def test_a_fast_network_gets_a_cut_a_slow_one_replicas() -> None:
    fast, slow = (
        plan(cluster_of(*[1e6] * 4, bandwidth=bandwidth), Exchange(1 / 100, 1 / 100)).chosen
        for bandwidth in (1e12, 2e4)
    )
    assert (fast.replicas, fast.machines_each) == (1, 4), "as fast as replicas, with nothing stale"
    assert (slow.replicas, slow.machines_each) == (4, 1)


def test_where_exchanging_costs_all_one_process_is_best() -> None:
    chosen = plan(cluster_of(*[1e7] * 4, bandwidth=10.0), Exchange(lock_step=True)).chosen
    assert chosen.machines == 1


def test_where_nothing_fits_the_machines_are_named() -> None:
    cluster = replace(uniform_cluster(2), machines=tuple(Machine(f"m {i}", memory_bytes=10) for i in range(2)))
    with pytest.raises(Infeasible, match="no plan fits in memory"):
        plan(cluster, Exchange())


def test_replicas_stay_on_their_hosts() -> None:
    """The machines of a host stand together, whatever the order in the file."""
    links = tuple(NetworkLink(a, b, 1e9, 0.0) for a, b in ((0, 2), (2, 0), (1, 3), (3, 1)))
    cluster = replace(cluster_of(*[1e6] * 4, bandwidth=1e4), links=links)
    found = next(s for s in plan(cluster, NOTHING).splits if (s.replicas, s.machines_each) == (2, 2))
    inside = find_plan(GRAPH, cluster.select([0, 2])).winner.simulation.step_s
    assert found.step_s == pytest.approx(inside)


def test_what_is_tried() -> None:
    assert list(list_widths(1)) == [1]
    assert list(list_widths(7)) == [1, 2, 3, 4, 6, 7]
    assert list(list_replicas(7)) == [1, 2, 4, 7]
    assert math.prod(list_replicas(1)) == 1


def test_replicas_of_backups_are_not_waited_for_and_do_not_count() -> None:
    cluster = cluster_of(1e6, 1e6, 1e5)
    step = one_machine_plan(cluster).winner.simulation.step_s
    found = predict(cluster, Exchange(0.0, 0.0, lock_step=True, backups=1), 3)
    assert found.samples_per_s == pytest.approx(2 * BATCH / step)
    assert all(split.replicas > 1 for split in plan(cluster, Exchange(lock_step=True, backups=1)).splits)


def test_bounded_replicas_take_as_many_steps_as_the_slowest() -> None:
    cluster = cluster_of(1e6, 5e5)
    step = one_machine_plan(cluster).winner.simulation.step_s
    assert predict(cluster, Exchange(0.0, 0.0, bounded=True), 2).samples_per_s == pytest.approx(2 * BATCH / (2 * step))


def test_one_replica_of_a_ring_has_nothing_to_exchange() -> None:
    cluster = cluster_of(1e6, 1e6)
    alone = predict(cluster, Exchange(lock_step=True, ring=True), 1, shards=2)
    assert alone.step_s == pytest.approx(one_machine_plan(cluster).winner.simulation.step_s)
    assert predict(cluster, Exchange(lock_step=True, ring=True), 2, shards=2).step_s > alone.step_s


@pytest.mark.run
def test_one_process_is_on_the_fastest_machine_wherever_it_is() -> None:
    """Four machines of one host are faster together than the quick one of another."""
    links = tuple(NetworkLink(a, b, 1e9, 0.0) for a in range(4) for b in range(4) if a != b)
    cluster = replace(cluster_of(1e6, 1e6, 1e6, 1e6, 3e6, bandwidth=1e7), links=links)
    found = plan(cluster, Exchange())
    quick = one_machine_plan(cluster.select([4])).winner.simulation.step_s
    assert found.one_process == pytest.approx(BATCH / quick)
    alone = next(split for split in found.splits if split.machines == 1)
    assert alone.compute_s == pytest.approx(quick)


def test_widths_that_an_option_does_not_suit_are_left_out() -> None:
    cluster = cluster_of(*[1e6] * 4)

    def plan_pinned(machines: Cluster) -> PlanningResult:
        return find_plan(GRAPH, machines, pins=["linear_1=m 1"])

    found = plan_run(cluster, Exchange(), plan_pinned, batch=BATCH)
    assert found.chosen.machines_each > 1
    assert found.rejected[0].startswith("1 machine each: pin 'linear_1=m 1' names no machine")
    with pytest.raises(UsageError, match="matches"):
        plan_run(cluster, Exchange(), lambda machines: find_plan(GRAPH, machines, pins=["nothing=m 1"]), batch=BATCH)


@pytest.mark.run
def test_what_is_chosen_pays() -> None:
    """Of splits that are about as fast as the best, none is taken that is hardly faster than one process."""
    for bandwidth in (1e5, 2e5, 4e5, 1e6, 3e6):
        found = plan(cluster_of(*[1e6] * 4, bandwidth=bandwidth), Exchange())
        assert found.pays == (found.chosen.samples_per_s >= found.one_process * 1.05 - 1e-9), bandwidth


def test_backups_do_not_hide_that_one_process_is_faster() -> None:
    """No split has one machine, and yet the model fits on one."""
    found = plan(cluster_of(*[1e7] * 3, bandwidth=10.0), Exchange(lock_step=True, backups=1))
    assert all(split.replicas > 1 for split in found.splits)
    assert found.one_process is not None
    assert found.chosen.samples_per_s < found.one_process
    assert not found.pays
