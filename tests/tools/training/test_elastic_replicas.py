"""Which replicas join and leave, and how many there can be."""

import pytest

from cutset.errors import UsageError
from cutset.tools.training.elastic_replicas import MAX_JOINS, MAX_RESERVED_NAMES, ReplicaMembership


def test_the_highest_numbers_leave_first_and_new_replicas_get_new_numbers() -> None:
    membership = ReplicaMembership(2, at_once=64, names_per_replica=4)
    assert membership.resize(4) == ([2, 3], [])
    assert membership.resize(1) == ([], [1, 2, 3])
    assert membership.leaving == {1, 2, 3}
    assert membership.resize(2) == ([4], [])
    assert membership.present == [0, 4]
    membership.remove(2)
    assert membership.leaving == {1, 3}
    assert membership.resize(2) == ([], [])


def test_a_removed_replica_makes_room() -> None:
    membership = ReplicaMembership(2, at_once=3, names_per_replica=1)
    assert membership.max_replicas == 3
    assert membership.resize(1) == ([], [1])
    assert membership.max_replicas == 2
    membership.remove(1)
    assert membership.max_replicas == 3


@pytest.mark.parametrize("replicas", [0, -1, 5])
def test_a_number_out_of_range_is_refused(replicas: int) -> None:
    membership = ReplicaMembership(2, at_once=4, names_per_replica=1)
    with pytest.raises(
        UsageError, match=f"E274: {replicas} replicas were requested; there can be 1 to 4 now"
    ) as caught:
        membership.resize(replicas)
    assert caught.value.fix == f"--replicas {4 if replicas > 4 else 1}"
    assert membership.present == [0, 1]


def test_the_number_of_joins_is_limited() -> None:
    membership = ReplicaMembership(1, at_once=256, names_per_replica=1)
    assert membership.numbers == range(1 + MAX_JOINS)
    for _ in range(MAX_JOINS):
        membership.resize(2)
        for replica in membership.resize(1)[1]:
            membership.remove(replica)
    assert membership.max_replicas == 1
    assert ReplicaMembership(1, at_once=256, names_per_replica=MAX_RESERVED_NAMES // 2).numbers == range(3)
    assert ReplicaMembership(1, at_once=256, names_per_replica=MAX_RESERVED_NAMES + 1).max_replicas == 1
