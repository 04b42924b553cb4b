"""Numbers of things in words."""

import pytest

from cutset.tools.units import describe_processes, format_number


@pytest.mark.parametrize(("count", "words"), [(0, "0 cores"), (1, "1 core"), (2, "2 cores")])
def test_one_thing_has_no_plural(count: int, words: str) -> None:
    assert format_number(count, "core") == words


def test_the_processes_of_a_run() -> None:
    assert describe_processes(1, 2, 1) == "1 machine x 2 replicas, 1 shard"
