"""Parameters of tests of which `make test` takes some, and `make slow` the others."""

from collections.abc import Iterable
from typing import Any

import pytest


def with_slow(quick: Iterable[Any], slow: Iterable[Any]) -> list[Any]:
    """Return the quick values as they are, and the slow ones (tuples: several arguments) marked so."""
    taken = [value if isinstance(value, tuple) else (value,) for value in slow]
    return [*quick, *(pytest.param(*values, marks=pytest.mark.slow) for values in taken)]
