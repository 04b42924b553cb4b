"""Who joins and who leaves, and how many there can be."""

import pytest

from cutset.errors import UsageError
from cutset.tools.training.crew import JOINS_MOST, NAMES_MOST, Crew


def test_the_last_ones_leave_and_those_that_join_have_new_numbers() -> None:
    crew = Crew(2, at_once=64, names=4)
    assert crew.become(4) == ([2, 3], [])
    assert crew.become(1) == ([], [1, 2, 3])
    assert crew.leaving == {1, 2, 3}
    assert crew.become(2) == ([4], [])
    assert crew.present == [0, 4]
    crew.gone(2)
    assert crew.leaving == {1, 3}
    assert crew.become(2) == ([], [])


def test_one_that_is_gone_makes_room() -> None:
    crew = Crew(2, at_once=3, names=1)
    assert crew.most == 3
    assert crew.become(1) == ([], [1])
    assert crew.most == 2
    crew.gone(1)
    assert crew.most == 3


@pytest.mark.parametrize("replicas", [0, -1, 5])
def test_a_number_out_of_range_is_refused(replicas: int) -> None:
    crew = Crew(2, at_once=4, names=1)
    with pytest.raises(
        UsageError, match=f"E274: {replicas} replicas were asked for; there can be 1 to 4 now"
    ) as caught:
        crew.become(replicas)
    assert caught.value.fix == f"--replicas {4 if replicas > 4 else 1}"
    assert crew.present == [0, 1]


def test_only_so_many_can_ever_join() -> None:
    crew = Crew(1, at_once=256, names=1)
    assert crew.numbers == range(1 + JOINS_MOST)
    for _ in range(JOINS_MOST):
        crew.become(2)
        for replica in crew.become(1)[1]:
            crew.gone(replica)
    assert crew.most == 1
    assert Crew(1, at_once=256, names=NAMES_MOST // 2).numbers == range(3)
    assert Crew(1, at_once=256, names=NAMES_MOST + 1).most == 1
