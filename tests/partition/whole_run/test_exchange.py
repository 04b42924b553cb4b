"""What replicas exchange with shards: the bytes that slices have, and the time that cards take for them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutset.partition.cluster.machines import Cluster, Machine, NetworkLink, SharedCard
from cutset.partition.whole_run.exchange import (
    UPDATE_PASSES,
    count_push_bytes,
    occupy_network,
    time_fetch,
    time_push,
)
from cutset.ps.slices.slicing import slice_parameters

QUICK = 1e30  # bytes/s of memory: updates take no time


@given(st.lists(st.integers(0, 900), min_size=1, max_size=4).filter(any), st.integers(1, 5))
def test_the_bytes_are_those_of_slices(elements: list[int], shards: int) -> None:
    """As the shards of a run really divide the parameters, to the element where cuts need no alignment."""
    slices = slice_parameters(elements, shards, align=1)
    used = 1 + max(one.shard for one in slices)
    expected = np.zeros((len(elements), used))
    for one in slices:
        expected[one.machine, one.shard] += one.size
    total = len(elements) + used
    workers, shards_on = range(len(elements)), range(len(elements), total)
    found = count_push_bytes(elements, workers, shards_on, total)[: len(elements), len(elements) :]
    assert found == pytest.approx(expected, abs=1.0 + 1e-9)


def test_workers_and_shards_of_one_machine_exchange_nothing_over_the_network() -> None:
    sent = count_push_bytes([100, 100], [0, 1], [0, 1], 2)
    assert sent.tolist() == [[100, 0], [0, 100]]
    cluster = Cluster((Machine("a", memory_bandwidth=QUICK),) * 2, 10.0, 1.0)
    assert time_push(cluster, sent) == pytest.approx(0.0)
    assert time_fetch(cluster, sent) == 0.0


def test_a_push_takes_the_busiest_card_the_way_and_the_update() -> None:
    sent = count_push_bytes([100, 300], [0, 1], [2], 3)
    machines = (Machine("a"), Machine("b"), Machine("c", memory_bandwidth=400.0))
    cluster = Cluster(machines, 10.0, 1.0)
    assert occupy_network(cluster, sent) == {
        "the network card of a, sending": 10.0,
        "the network card of b, sending": 30.0,
        "the network card of c, receiving": 40.0,
    }
    assert time_push(cluster, sent) == 40 + 1 + UPDATE_PASSES
    assert time_fetch(cluster, sent) == 40 + 2, "the request has a way too"


def test_machines_of_a_host_push_by_its_card() -> None:
    sent = count_push_bytes([100, 300], [0, 1], [2], 3)
    cluster = Cluster((Machine("a"), Machine("b"), Machine("c")), 10.0, 1.0, cards=(SharedCard("left", (0, 1)),))
    assert occupy_network(cluster, sent) == {
        "the network card of host left, sending": 40.0,
        "the network card of c, receiving": 40.0,
    }


def test_links_carry_what_their_pair_sends() -> None:
    sent = count_push_bytes([100], [0], [1, 2], 3)
    cluster = Cluster((Machine("a", memory_bandwidth=QUICK),) * 3, 10.0, 0.0, (NetworkLink(0, 1, 2.0, 7.0),))
    assert time_push(cluster, sent) == pytest.approx(25 + 7)
    assert time_fetch(cluster, sent) == pytest.approx(10 + 7), "the request takes the link, the bytes the card"


def test_nothing_is_exchanged_where_there_is_nothing() -> None:
    cluster = Cluster((Machine("a"), Machine("b")), 10.0, 1.0)
    assert time_push(cluster, np.zeros((2, 2))) == 0.0
