"""What if: changed clusters, and what the planner says of them."""

from dataclasses import replace

import pytest

from cutset.errors import Infeasible, UsageError
from cutset.partition.cluster.machines import Cluster, Machine, NetworkLink, SharedCores
from cutset.tools.whole_run.what_if import ChangeEffect, list_changes, read_bandwidth, speed_up_network, try_changes

CLUSTER = Cluster(
    (Machine("slow", 1e9, address="user@slow"), Machine("quick", 9e9, bandwidth_out=2e6, address="user@quick")),
    5e6,
    1e-3,
    (NetworkLink(0, 1, 3e6, 1e-4), NetworkLink(1, 0, 9e9, 1e-4)),
)


@pytest.mark.parametrize("text", ["10 Gbit/s", "10gbit", "10Gbit/s", "1.25 GB/s", "1250000000"])
def test_rates_that_are_read(text: str) -> None:
    assert read_bandwidth(text) == 1.25e9


@pytest.mark.parametrize("text", ["", "fast", "10 parsecs", "-1 Gbit/s", "0"])
def test_rates_that_are_not(text: str) -> None:
    with pytest.raises(UsageError, match="--faster-network") as caught:
        read_bandwidth(text)
    assert caught.value.code == "E247"


def test_a_faster_network_slows_nothing_down() -> None:
    faster = speed_up_network(CLUSTER, 1e8)
    assert faster.bandwidth == 1e8
    assert [machine.bandwidth_out for machine in faster.machines] == [None, 1e8]
    assert [link.bandwidth for link in faster.links] == [1e8, 9e9]
    assert faster.latency_s == CLUSTER.latency_s


def test_processes_of_one_machine_are_said_to_use_no_network() -> None:
    here = replace(CLUSTER, shared=(SharedCores((0, 1), 2, copies_per_s=1e9),))
    (change,) = list_changes(here, faster_network="1 Gbit/s", add_machine=False)
    assert change.words == "a network of 125 MB/s (which these processes of one machine do not use)"
    (change,) = list_changes(CLUSTER, faster_network="1 Gbit/s", add_machine=False)
    assert change.words == "a network of 125 MB/s"
    (change,) = list_changes(CLUSTER, faster_network="1 kbit/s", add_machine=False)
    assert change.words == "a network of 1 kbit/s (which is no faster than the present one)"


def test_the_machine_that_is_added_is_like_the_best() -> None:
    (change,) = list_changes(CLUSTER, faster_network=None, add_machine=True)
    *same, more = change.cluster.machines
    assert tuple(same) == CLUSTER.machines
    assert more == replace(CLUSTER.machines[1], name=more.name, address="")
    assert "quick" in change.words


def test_outcomes_are_beside_the_plan_as_it_is() -> None:
    changes = list(list_changes(CLUSTER, faster_network="1 Gbit/s", add_machine=True))

    def measure(cluster: Cluster) -> float:
        if len(cluster) > 2:
            raise Infeasible("E404", "too large", fix="none")
        return 30.0

    faster, more = try_changes(changes, measure, 20.0)
    assert faster == ChangeEffect("a network of 125 MB/s", 30.0, 1.5)
    assert more.failure == "too large"


def test_nothing_is_tried_that_was_not_asked_for() -> None:
    assert list(list_changes(CLUSTER, faster_network=None, add_machine=False)) == []
