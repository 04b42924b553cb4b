"""Variable elimination against brute force, and against its own start where tables are limited."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutset.partition.layouts import variable_elimination as elimination
from cutset.partition.layouts.variable_elimination import Floats, Pairs, minimise

Problem = tuple[list[Floats], dict[tuple[int, int], Floats]]


@st.composite
def problems(draw: st.DrawFn, *, variables: int = 6, options: int = 4) -> Problem:
    """Few variables; tables of small integers, so that sums are exact; some pairs have the very same table."""
    counts = draw(st.lists(st.integers(1, options), min_size=0, max_size=variables))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    pairs = [pair for pair in itertools.combinations(range(len(counts)), 2) if draw(st.booleans())]
    tables: dict[tuple[int, int], Floats] = {}
    drawn = {(i, j): _table(rng, counts[i], counts[j], tables) for i, j in pairs}
    return [rng.integers(0, 20, n).astype(float) for n in counts], drawn


def _table(rng: np.random.Generator, rows: int, columns: int, known: dict[tuple[int, int], Floats]) -> Floats:
    if (rows, columns) not in known or rng.integers(2):
        known[rows, columns] = rng.integers(0, 20, (rows, columns)).astype(float)
    return known[rows, columns]


def total(single: list[Floats], pairs: Pairs, chosen: tuple[int, ...] | list[int]) -> float:
    alone = sum(float(costs[at]) for costs, at in zip(single, chosen, strict=True))
    return alone + sum(float(costs[chosen[i], chosen[j]]) for (i, j), costs in pairs.items())


@given(problems())
def test_the_choice_is_the_best_of_all(problem: Problem) -> None:
    single, pairs = problem
    every = itertools.product(*(range(len(costs)) for costs in single))
    assert total(single, pairs, minimise(single, pairs)) == min(total(single, pairs, chosen) for chosen in every)


def start(single: list[Floats], pairs: Pairs) -> list[int]:
    """Each variable at its own cheapest option: what the search begins with."""
    return [int(costs.argmin()) for costs in single]


@given(problems(variables=9), st.integers(1, 20))
def test_where_tables_are_limited_it_is_a_choice_that_no_single_change_improves(problem: Problem, entries: int) -> None:
    single, pairs = problem
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(elimination, "MAX_TABLE_ENTRIES", entries)
        chosen = minimise(single, pairs)
    least = total(single, pairs, chosen)
    assert least <= total(single, pairs, start(single, pairs))
    for i, costs in enumerate(single):
        others = [[*chosen[:i], option, *chosen[i + 1 :]] for option in range(len(costs))]
        assert least <= min(total(single, pairs, other) for other in others)


@given(st.integers(0, 2**32 - 1))
def test_where_one_variable_is_held_the_others_are_the_best_for_it(seed: int) -> None:
    """Three variables, all pairs with the very same table; a table of two variables is allowed, of three not."""
    rng = np.random.default_rng(seed)
    single, table = [rng.integers(0, 12, 4).astype(float) for _ in range(3)], rng.integers(0, 12, (4, 4)).astype(float)
    pairs = dict.fromkeys(itertools.combinations(range(3), 2), table)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(elimination, "MAX_TABLE_ENTRIES", 16)
        chosen = minimise(single, pairs)
    others = itertools.product([chosen[0]], range(4), range(4))
    assert total(single, pairs, chosen) == min(total(single, pairs, other) for other in others)


def test_a_long_chain_is_solved_exactly() -> None:
    """Dynamic programming over the chain, for comparison."""
    rng = np.random.default_rng(5)
    single = [rng.random(6) for _ in range(200)]
    pairs = {(i, i + 1): rng.random((6, 6)) for i in range(199)}
    best = single[0]
    for i in range(199):
        best = (best[:, None] + pairs[i, i + 1]).min(axis=0) + single[i + 1]
    assert total(single, pairs, minimise(single, pairs)) == pytest.approx(float(best.min()), rel=1e-12)


def test_options_that_are_ruled_out_are_not_taken() -> None:
    single = [np.array([0.0, 5.0]), np.array([0.0, 5.0])]
    forbidden = np.array([[np.inf, np.inf], [0.0, 1.0]])
    assert minimise(single, {(0, 1): forbidden}) == [1, 0]


def test_a_variable_joined_to_more_others_than_numpy_has_dimensions() -> None:
    """A star of forty leaves and a ring around it: every leaf differs from the hub, and from its neighbours or not."""
    same = np.array([[1.0, 0.0], [0.0, 1.0]])
    single = [np.array([0.0, 0.5]), *(np.zeros(2) for _ in range(40))]
    pairs = {(0, leaf): same for leaf in range(1, 41)} | {(leaf, leaf + 1): 1.0 - same for leaf in range(1, 40)}
    assert minimise(single, pairs) == [0, *([1] * 40)]


def test_no_variables_need_no_choice() -> None:
    assert minimise([], {}) == []
