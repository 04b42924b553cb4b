"""Machines with fast links among them are near, and their order does not depend on that in the file."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutset.partition.cluster.hierarchy import choose_machines, find_hosts, order_machines
from cutset.partition.cluster.machines import Cluster, Machine, NetworkLink, SharedCard, uniform_cluster


def on_hosts(host_of: list[int], fast: float = 10.0, speeds: list[float] | None = None) -> Cluster:
    """Machines "m 0", "m 1" ... on hosts, with fast links inside, and a byte a second between hosts."""
    pairs = [p for p in itertools.permutations(range(len(host_of)), 2) if host_of[p[0]] == host_of[p[1]]]
    machines = tuple(Machine(f"m {i}", (speeds or [1.0] * len(host_of))[i]) for i in range(len(host_of)))
    return Cluster(machines, 1.0, 0.0, tuple(NetworkLink(*pair, fast, 0.0) for pair in pairs))


def names_in_order(cluster: Cluster) -> list[str]:
    return [cluster.machines[n].name for n in order_machines(cluster)]


def test_fast_links_make_hosts() -> None:
    assert find_hosts(on_hosts([0, 1, 0, 1, 2])) == ((0, 2), (1, 3), (4,))
    assert find_hosts(uniform_cluster(3)) == ((0, 1, 2),)
    assert find_hosts(on_hosts([0, 0, 1, 1], fast=1.2)) == ((0, 1, 2, 3),), "hardly faster"


def test_a_card_that_machines_share_makes_hosts() -> None:
    """Links inside that are hardly faster than a card, which two machines have together."""
    cards = (SharedCard("left", (0, 2)), SharedCard("right", (1, 3)))
    assert find_hosts(replace(on_hosts([0, 1, 0, 1], fast=1.2), cards=cards)) == ((0, 2), (1, 3))


def test_slow_links_between_make_hosts_too() -> None:
    pairs = [p for p in itertools.permutations(range(4), 2) if p[0] % 2 != p[1] % 2]
    cluster = Cluster(uniform_cluster(4).machines, 10.0, 0.0, tuple(NetworkLink(*p, 1.0, 0.0) for p in pairs))
    assert find_hosts(cluster) == ((0, 2), (1, 3))


def test_cards_of_unlike_speed_make_no_hosts() -> None:
    machines = (Machine("a"), Machine("b"), Machine("c", bandwidth_in=1.0))
    assert find_hosts(Cluster(machines, 10.0, 0.0)) == ((0, 1, 2),)


def test_one_way_of_a_pair_does_not_make_it_near() -> None:
    assert find_hosts(Cluster(uniform_cluster(3).machines, 1.0, 0.0, (NetworkLink(0, 1, 9.0, 0.0),))) == ((0, 1, 2),)


def test_numbers_in_names_are_numbers() -> None:
    machines = tuple(Machine(f"machine {i}") for i in (10, 9, 2, 0))
    assert names_in_order(Cluster(machines)) == ["machine 0", "machine 2", "machine 9", "machine 10"]


def test_machines_of_a_host_stand_together_and_the_fastest_first() -> None:
    cluster = on_hosts([0, 1, 0, 1], speeds=[1.0, 3.0, 2.0, 9.0])
    assert names_in_order(cluster) == ["m 3", "m 1", "m 2", "m 0"]


def test_hosts_of_a_rack_stand_together() -> None:
    """Three levels: machines of a host, hosts of a rack."""
    rack, host = [0, 1, 0, 1, 0, 1, 0, 1], [0, 1, 2, 3, 0, 1, 2, 3]
    links = tuple(
        NetworkLink(a, b, 100.0 if host[a] == host[b] else 10.0, 0.0)
        for a, b in itertools.permutations(range(8), 2)
        if rack[a] == rack[b]
    )
    order = order_machines(Cluster(on_hosts(host).machines, 1.0, 0.0, links))
    assert [rack[n] for n in order] == [0] * 4 + [1] * 4
    assert [host[n] for n in order] == [0, 0, 2, 2, 1, 1, 3, 3]


@given(
    st.lists(st.integers(0, 2), min_size=2, max_size=7).flatmap(
        lambda hosts: st.tuples(
            st.just(hosts),
            st.lists(st.sampled_from([1.0, 2.0]), min_size=len(hosts), max_size=len(hosts)),
            st.permutations(range(len(hosts))),
        )
    )
)
def test_the_order_in_the_file_does_not_matter(example: tuple[list[int], list[float], list[int]]) -> None:
    hosts, speeds, permutation = example
    cluster = on_hosts(hosts, speeds=speeds)
    assert names_in_order(cluster.select(permutation)) == names_in_order(cluster)


@pytest.mark.parametrize("change", [{"memory_bytes": 1}, {"bandwidth_in": 0.5}, {"memory_bandwidth": 1.0}])
def test_of_machines_alike_the_lesser_is_last(change: dict[str, float]) -> None:
    first, *rest = uniform_cluster(3).machines
    machines = (replace(first, bandwidth_in=2.0, bandwidth_out=2.0), *rest)
    machines = tuple(replace(m, bandwidth_in=2.0, bandwidth_out=2.0) for m in machines)
    lesser = replace(machines[0], **change)  # type: ignore[arg-type]
    assert names_in_order(Cluster((lesser, *machines[1:]))) == ["machine 1", "machine 2", "machine 0"]


def test_a_slow_card_does_not_take_a_machine_off_its_host() -> None:
    cluster = on_hosts([0, 0, 1, 2], fast=10.0)
    machines = tuple(replace(m, bandwidth_in=0.1) if i == 3 else m for i, m in enumerate(cluster.machines))
    assert find_hosts(replace(cluster, machines=machines)) == ((0, 1), (2,), (3,))


def test_a_card_of_its_own_is_compared_with_the_clusters() -> None:
    cluster = Cluster((Machine("a", bandwidth_in=0.5), Machine("b")), 1.0, 0.0)
    assert names_in_order(cluster) == ["b", "a"], "the first has the slower card"


@pytest.mark.parametrize("name", ["1\N{SUPERSCRIPT TWO}", "9" * 5000, "", "\N{ARABIC-INDIC DIGIT THREE}"])
def test_any_name_has_a_place(name: str) -> None:
    cluster = Cluster((Machine("m 1"), Machine(name), Machine("2")))
    assert sorted(order_machines(cluster)) == [0, 1, 2]


def test_the_fastest_are_chosen_and_of_machines_alike_near_ones() -> None:
    cluster = on_hosts([0, 1, 0, 1, 2], speeds=[1.0, 1.0, 1.0, 1.0, 3.0])
    assert choose_machines(cluster, 1) == [4]
    assert choose_machines(cluster, 3) == [0, 2, 4]
    assert choose_machines(cluster, 2, keep=[3]) == [3, 4]
