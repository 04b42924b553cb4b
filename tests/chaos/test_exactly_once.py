"""Sums are exact for other seeds too, as tests/test_exactly_once.py has it."""

from pathlib import Path

import pytest
from exactly_once import check


@pytest.mark.parametrize("seed", range(1, 10))
def test_sums_are_exact(tmp_path: Path, seed: int) -> None:
    check(tmp_path, seed)
