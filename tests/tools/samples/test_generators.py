"""What items draw at random depends on their seeds alone, whichever generators are seeded for them."""

import random
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cutset.tools.samples.generators import SeededReads, keep_generators, seed_generators

DRAWS: dict[str, Callable[[], float]] = {
    "nothing": lambda: 0.0,
    "python": random.random,
    "numpy": np.random.random,
    "torch": lambda: float(torch.rand(())),
    "python, later numpy": lambda: random.gauss(0, 1) + np.random.random(),
    "the seed": lambda: float(torch.initial_seed()),
}


@given(st.lists(st.lists(st.tuples(st.integers(0, 3), st.sampled_from(sorted(DRAWS))), max_size=6), max_size=6))
def test_batches_are_those_of_generators_that_are_seeded_for_each_item(batches: list[list[tuple[int, str]]]) -> None:
    reads = SeededReads()
    with keep_generators():
        for batch in batches:
            found = reads.read(lambda place, of=batch: DRAWS[of[place][1]](), [(7, seed) for seed, _ in batch])
            expected = []
            for seed, name in batch:
                seed_generators(7, seed)
                expected.append(DRAWS[name]())
            assert found == expected


def read_counted(reads: SeededReads, draw: Callable[[], float], fails: tuple[int, ...] = ()) -> list[int]:
    """Read three items; return their places in the order in which they were read."""
    order: list[int] = []

    def read(place: int) -> float:
        order.append(place)
        value = draw()
        if place in fails:
            raise OSError("sector 17")
        return value

    with keep_generators():
        try:
            reads.read(read, [(place,) for place in range(3)])
        except OSError:
            order.append(-1)
    return order


@pytest.mark.parametrize(
    ("name", "first"), [("nothing", 1), ("torch", 1), ("the seed", 1), ("python", 2), ("numpy", 2)]
)
def test_what_draws_is_read_again_once(name: str, first: int) -> None:
    reads = SeededReads()
    assert read_counted(reads, DRAWS[name]) == first * [0, 1, 2]
    assert read_counted(reads, DRAWS[name]) == [0, 1, 2]


def test_an_item_that_fails_is_read_again_where_one_has_drawn() -> None:
    """With what it was to draw it might not fail."""
    assert read_counted(SeededReads(), DRAWS["nothing"], fails=(1,)) == [0, 1, -1]
    assert read_counted(SeededReads(), DRAWS["numpy"], fails=(1,)) == [0, 1, 0, 1, -1]
