"""Conditions on drawn numbers: those that always come out alike are known, the others are left to torch."""

import pytest
import torch

from cutset.partition.trace.known_conditions import KnownConditions


@pytest.mark.parametrize(("bound", "known"), [(0.0, False), (-1, False), (1.0, True), (2, True)])
def test_bounds_beyond_what_is_drawn_are_known_without_a_value(bound: float, known: bool) -> None:
    with KnownConditions(), torch.device("meta"):
        assert bool(torch.rand([]) < bound) is known
        assert bool(torch.lt(torch.rand([]), bound)) is known


def test_bounds_within_are_not_known() -> None:
    with KnownConditions(), torch.device("meta"):
        drawn = torch.rand([])
        with pytest.raises(RuntimeError):
            bool(drawn < 0.5)
        with pytest.raises(RuntimeError):
            bool(torch.zeros([]) < 0.0)  # which nobody has drawn


def test_with_values_it_changes_nothing() -> None:
    with KnownConditions():
        assert [bool(torch.rand([]) < p) for p in (0.0, 1.0)] == [False, True]
        torch.manual_seed(0)
        found = [bool(torch.rand([]) < 0.5) for _ in range(20)]
    torch.manual_seed(0)
    assert found == [bool(torch.rand([]) < 0.5) for _ in range(20)]
