"""Messages on cards and links: one after the other, in the order in which they come."""

import pytest

from cutset.partition.cluster.machines import Cluster, Machine, NetworkLink, SharedCard, SharedCores
from cutset.partition.dataflow.network_times import NetworkTimes

MACHINES = (Machine("a"), Machine("b"), Machine("slow", bandwidth_in=1.0))


def deliver(times: NetworkTimes, source: int, target: int, size: int, ready_s: float) -> tuple[float, float]:
    """When a message leaves and lands that no other comes between."""
    begin_s, first_s = times.send(source, target, size, ready_s)
    return begin_s, times.receive(source, target, size, first_s)


def test_a_card_sends_one_message_after_the_other() -> None:
    times = NetworkTimes(Cluster(MACHINES, 10.0, 3.0))
    assert deliver(times, 0, 1, 100, 1.0) == (1.0, 1 + 10 + 3)
    assert deliver(times, 0, 1, 50, 2.0) == (11.0, 11 + 5 + 3)
    assert deliver(times, 1, 0, 50, 2.0) == (2.0, 10.0), "the other way is free"


def test_a_slow_card_receives_slowly() -> None:
    times = NetworkTimes(Cluster(MACHINES, 10.0, 3.0))
    assert deliver(times, 0, 2, 100, 0.0) == (0.0, 103.0)
    assert deliver(times, 1, 2, 20, 0.0) == (0.0, 123.0)
    assert deliver(times, 2, 1, 20, 0.0) == (0.0, 5.0), "and sends as quickly as any"


def test_a_large_message_does_not_wait_for_a_small_one_that_comes_later() -> None:
    """The first byte counts, not which message was given to the network first."""
    times = NetworkTimes(Cluster(MACHINES, 10.0, 0.0))
    assert deliver(times, 0, 2, 0, 0.0) == (0.0, 0.0)
    times.send(0, 1, 1000, 0.0)  # the card of machine 0 is busy until 100
    _, late = times.send(0, 2, 10, 0.0)
    _, early = times.send(1, 2, 500, 0.0)
    assert (late, early) == (100.0, 0.0)
    assert times.receive(1, 2, 500, early) == 500.0
    assert times.receive(0, 2, 10, late) == 510.0


def test_links_pass_by_the_cards() -> None:
    link = NetworkLink(0, 1, 100.0, 0.5)
    times = NetworkTimes(Cluster(MACHINES, 10.0, 3.0, (link,)))
    times.send(0, 2, 1000, 0.0)
    assert deliver(times, 0, 1, 100, 0.0) == (0.0, pytest.approx(1.5))
    assert deliver(times, 0, 1, 100, 0.0) == (1.0, pytest.approx(2.5))


def test_machines_of_a_host_take_turns_at_its_card() -> None:
    """But for what a link among them carries."""
    card, links = SharedCard("host", (0, 1)), (NetworkLink(0, 1, 100.0, 0.0), NetworkLink(1, 0, 100.0, 0.0))
    times = NetworkTimes(Cluster((*MACHINES[:2], Machine("c"), Machine("d")), 10.0, 0.0, links, cards=(card,)))
    assert deliver(times, 0, 2, 100, 0.0) == (0.0, 10.0)
    assert deliver(times, 1, 3, 100, 0.0) == (10.0, 20.0)
    assert deliver(times, 0, 1, 100, 0.0) == (0.0, 1.0)
    assert deliver(times, 2, 0, 100, 0.0) == (0.0, 10.0), "it receives meanwhile"
    assert deliver(times, 3, 1, 100, 0.0) == (0.0, 20.0)


def test_copies_between_processes_of_a_host_do_not_wait_for_its_card() -> None:
    card, cores = SharedCard("host", (0, 1)), SharedCores((0, 1), 2, copies_per_s=5.0)
    times = NetworkTimes(Cluster(MACHINES, 10.0, 0.0, shared=(cores,), cards=(card,)))
    assert deliver(times, 1, 2, 100, 0.0) == (0.0, 100.0)
    assert deliver(times, 0, 1, 100, 0.0) == (0.0, 0.0)
    assert deliver(times, 1, 0, 100, 0.0) == (0.0, 0.0)


def test_what_the_sender_copies_is_there_when_it_leaves() -> None:
    times = NetworkTimes(Cluster(MACHINES, 10.0, 3.0, shared=(SharedCores((0, 1), 2, copies_per_s=5.0),)))
    assert deliver(times, 0, 1, 100, 1.0) == (1.0, 4.0)
    assert deliver(times, 0, 1, 100, 1.0) == (1.0, 4.0)
    assert deliver(times, 0, 2, 100, 1.0) == (1.0, 104.0)
