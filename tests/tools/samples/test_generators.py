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


@given(
    st.lists(st.lists(st.tuples(st.integers(0, 3), st.sampled_from(sorted(DRAWS))), min_size=1, max_size=6), max_size=6)
)
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


def read_counted(
    reads: SeededReads, *draws: str, fails: tuple[int, ...] = (), remembered: dict[int, float] | None = None
) -> list[int]:
    """Read items that draw so; return their places in the order in which they were read, and -1 for a failure."""
    order: list[int] = []

    def read(place: int) -> float:
        order.append(place)
        value = DRAWS[draws[place]]()
        if place in fails:
            raise OSError("sector 17")
        return value if remembered is None else remembered.setdefault(place, value)

    with keep_generators():
        try:
            reads.read(read, [(place,) for place in range(len(draws))])
        except OSError:
            order.append(-1)
    return order


@pytest.mark.parametrize("name", sorted(DRAWS))
def test_the_first_batch_shows_what_items_draw_from(name: str) -> None:
    """So what they remember is of their own seeds."""
    reads, remembered = SeededReads(), dict[int, float]()
    assert read_counted(reads, "nothing", name, remembered=remembered) == [0, 1]
    assert read_counted(reads, name, "nothing") == [0, 1]
    with keep_generators():
        seed_generators(1)
        assert remembered[1] == DRAWS[name]()


@pytest.mark.parametrize("name", ["python", "numpy", "python, later numpy"])
def test_a_batch_that_draws_first_is_read_again(name: str) -> None:
    reads = SeededReads()
    read_counted(reads, "nothing")
    assert read_counted(reads, "nothing", name) == [0, 1, 0, 1]
    assert read_counted(reads, "nothing", name) == [0, 1]


def test_an_item_that_fails_is_read_again_where_one_has_drawn() -> None:
    """With what it was to draw it might not fail."""
    reads = SeededReads()
    read_counted(reads, "nothing")
    assert read_counted(reads, "nothing", "nothing", fails=(1,)) == [0, 1, -1]
    assert read_counted(reads, "numpy", "nothing", fails=(1,)) == [0, 1, 0, 1, -1]
