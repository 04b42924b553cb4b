"""Conditions on drawn numbers: those that always come out alike are known, the others are left to torch."""

import random
from collections.abc import Callable

import numpy as np
import pytest
import torch

from cutset.errors import BadInput
from cutset.partition.trace.known_conditions import KnownConditions, draw_what_matters, leave_known_numbers_undrawn
from cutset.partition.trace.stand_ins import StandIns


@pytest.mark.parametrize(("bound", "known"), [(0.0, False), (-1, False), (1.0, True), (2, True)])
def test_bounds_beyond_what_is_drawn_are_known_without_a_value(bound: float, known: bool) -> None:
    with StandIns(KnownConditions().stand_ins), torch.device("meta"):
        assert bool(torch.rand([]) < bound) is known
        assert bool(torch.lt(torch.rand([]), bound)) is known


def test_bounds_within_are_not_known() -> None:
    with StandIns(KnownConditions().stand_ins), torch.device("meta"):
        drawn = torch.rand([])
        with pytest.raises(RuntimeError):
            bool(drawn < 0.5)
        with pytest.raises(RuntimeError):
            bool(torch.zeros([]) < 0.0)  # which nobody has drawn


def test_with_values_it_changes_nothing() -> None:
    with StandIns(KnownConditions().stand_ins):
        assert [bool(torch.rand([]) < p) for p in (0.0, 1.0)] == [False, True]
        torch.manual_seed(0)
        found = [bool(torch.rand([]) < 0.5) for _ in range(20)]
    torch.manual_seed(0)
    assert found == [bool(torch.rand([]) < 0.5) for _ in range(20)]


DRAWS: list[Callable[[], float]] = [
    lambda: random.random(),
    lambda: random.uniform(0, 1),
    lambda: np.random.rand(),
    lambda: np.random.random(),
    lambda: np.random.uniform(),
    lambda: np.random.uniform(0, 1),
]


def states() -> object:
    kind, key, *rest = np.random.get_state()
    return random.getstate(), kind, bytes(key), rest


@pytest.mark.parametrize("draw", DRAWS)
def test_a_number_that_decides_nothing_is_not_drawn(draw: Callable[[], float]) -> None:
    before = states()
    with leave_known_numbers_undrawn():
        assert not draw() < 0.0
        assert not draw() <= -0.5
        assert draw() >= 0
        assert draw() > -1
        assert draw() < 1.5
        assert draw() <= 1.0
        assert not draw() > 1.0
        assert not draw() < 0.0
        assert draw() < 2
    assert states() == before


@pytest.mark.parametrize("draw", DRAWS)
def test_a_number_that_matters_is_drawn_as_ever(draw: Callable[[], float]) -> None:
    uses: list[Callable[[float], object]] = [
        lambda u: u < 0.5,
        lambda u: u >= 0.25,
        lambda u: u == 0.0,
        lambda u: 3 * u + 1,
        lambda u: float(u),
        lambda u: f"{u:.3f}",
        lambda u: bool(u),
        lambda u: u.is_integer(),
        lambda u: [u < 0.3, u < 0.0, u * 2],
    ]
    for use in uses:
        found = list[object]()
        for put_off in (True, False):
            random.seed(5)
            np.random.seed(5)
            before = states()
            if put_off:
                with leave_known_numbers_undrawn():
                    found.append(use(draw()))
            else:
                found.append(use(draw()))
            assert states() != before
        assert found[0] == found[1]


def test_several_numbers_at_once_are_drawn() -> None:
    with leave_known_numbers_undrawn():
        assert np.random.rand(3).shape == np.random.uniform(0, 1, 3).shape == np.random.random(size=3).shape
        assert np.random.uniform(np.zeros(3), np.ones(3)).shape == (3,)


@pytest.mark.parametrize(
    "use",
    [
        lambda u: torch.ones(2) * u,
        lambda u: u - torch.ones(2),
        lambda u: torch.ones(2) / u,
        lambda u: 2**u,
        lambda u: divmod(3, u)[0],
        lambda u: np.ones(2) * u,
    ],
)
def test_a_number_calculates_with_tensors(use: Callable[[float], object]) -> None:
    random.seed(1)
    with leave_known_numbers_undrawn():
        found = use(random.uniform(0.5, 1.5))
    random.seed(1)
    assert np.array_equal(np.asarray(found), np.asarray(use(random.uniform(0.5, 1.5))))


def test_where_such_a_number_does_not_suit_it_is_drawn_as_ever() -> None:
    calls = []

    @draw_what_matters
    def trace(fails: bool) -> float:
        number = random.random()
        calls.append(type(number))
        if fails and type(number) is not float:
            raise BadInput("E320", "torch does not take it", fix="draw with torch.rand")
        return 0.0 if number < 0 else 1.0

    before = states()
    assert trace(False) == 1.0
    assert states() == before
    assert trace(True) == 1.0
    assert states() != before
    assert calls[2] is float
    assert len(calls) == 3


def test_an_error_without_such_numbers_is_raised_at_once() -> None:
    calls = []

    @draw_what_matters
    def trace() -> None:
        calls.append(0)
        raise BadInput("E320", "it branches on a value", fix="torch.where")

    with pytest.raises(BadInput):
        trace()
    assert calls == [0]


def test_where_no_number_mattered_the_first_error_counts() -> None:
    calls = []

    @draw_what_matters
    def trace() -> None:
        calls.append(random.random() < 0)
        raise BadInput("E320", f"attempt {len(calls)}", fix="none")

    with pytest.raises(BadInput, match="attempt 1"):
        trace()
    assert len(calls) == 2
