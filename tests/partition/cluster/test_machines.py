"""Machines, their cards, and the links that bypass them."""

import pytest

from cutset.errors import UsageError
from cutset.partition.cluster.machines import (
    MAX_MACHINES,
    Cluster,
    Machine,
    NetworkLink,
    Rate,
    SharedCores,
    uniform_cluster,
)

SLOW_UP = Machine("home", bandwidth_out=1e6, latency_s=20e-3)
MIXED = Cluster(
    (Machine("a"), Machine("b"), SLOW_UP),
    bandwidth=1e8,
    latency_s=1e-4,
    links=(NetworkLink(0, 1, 1e10, 1e-6), NetworkLink(2, 0, 5, 6)),
)


def test_the_slower_card_bounds_what_goes_between_two_machines():
    assert MIXED.bandwidth_between(1, 0) == 1e8
    assert MIXED.bandwidth_between(2, 1) == 1e6
    assert MIXED.bandwidth_between(1, 2) == 1e8


def test_a_message_takes_half_of_the_latency_of_each_card():
    assert MIXED.latency_between(1, 0) == pytest.approx(1e-4)
    assert MIXED.latency_between(1, 2) == MIXED.latency_between(2, 1) == pytest.approx((1e-4 + 20e-3) / 2)


def test_a_link_counts_one_way_only():
    assert (MIXED.bandwidth_between(0, 1), MIXED.latency_between(0, 1)) == (1e10, 1e-6)
    assert (MIXED.bandwidth_between(1, 0), MIXED.latency_between(1, 0)) == (1e8, 1e-4)
    assert MIXED.link(1, 0) is None


def test_the_first_machines_keep_the_links_among_them():
    two = MIXED.select(range(2))
    assert [m.name for m in two.machines] == ["a", "b"]
    assert two.links == (NetworkLink(0, 1, 1e10, 1e-6),)
    assert (two.bandwidth, two.latency_s) == (MIXED.bandwidth, MIXED.latency_s)


def test_a_single_machine_has_the_cores_and_the_memory_of_those_beside_it():
    shared = SharedCores((0, 1, 3), 3, 1.5, 1e9, whole_speedup=2.0)
    cluster = Cluster(tuple(Machine(name, memory_bytes=10 + i) for i, name in enumerate("abcd")), shared=(shared,))
    alone = cluster.alone(1)
    assert [(machine.name, machine.memory_bytes) for machine in alone.machines] == [("b", 10 + 11 + 13)]
    assert [cores.slowdown(1) for cores in alone.shared] == [0.5]
    assert [cores.slowdown(1) for cores in cluster.shared] == [1.0]
    assert cluster.alone(2) == cluster.select([2]), "it shares no cores"
    assert cluster.on_network(1e6, 1e-3).alone(1).shared == (), "there each machine stands for a host of its own"
    (fewer,) = cluster.select([0, 1]).shared
    assert fewer.whole_speedup is None, "others have the third core"
    assert cluster.select([3, 1, 0]).shared[0].whole_speedup == 2.0


def test_a_class_without_a_rate_runs_as_matrix_products_do():
    pooling = Rate(1e9, 2e9, 1e-5, 2e-5)
    machine = Machine("m", flops_per_s=7e9, rates={"pooling": pooling}, operator_s=3e-6, gradient_s=4e-6)
    assert machine.rate("pooling") == pooling
    assert machine.rate("attention") == Rate(7e9, 7e9, 3e-6, 4e-6)


def test_machines_can_be_compared_and_kept_in_sets():
    rates = {"pooling": Rate(1.0, 1.0, 1.0, 1.0)}
    assert Machine("m", rates=rates) == Machine("m", rates=dict(rates))
    assert Machine("m", rates=rates) != Machine("m")
    assert len({Machine("m", rates=rates), Machine("m", rates=dict(rates))}) == 1


@pytest.mark.parametrize("count", [0, -1, MAX_MACHINES + 1])
def test_a_cluster_of_no_or_too_many_machines_is_refused(count):
    with pytest.raises(UsageError) as caught:
        uniform_cluster(count)
    assert caught.value.code == "E201"
    assert str(count) in caught.value.facts
