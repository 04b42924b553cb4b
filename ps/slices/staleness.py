"""`Staleness`: how many other pushes came between the values a gradient was computed on and its own push."""

from collections import Counter
from collections.abc import Iterable
from typing import Any


class Staleness:
    """A histogram of tau = version before the push - version the gradient was computed on."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()

    def add(self, tau: int, pushes: int = 1) -> None:
        """Count one push, or several."""
        if pushes:
            self._counts[tau] += pushes

    def include(self, other: "Staleness") -> None:
        """Count the pushes of another histogram too."""
        self._counts.update(other._counts)

    def statistics(self) -> dict[str, Any]:
        """Plain data: mean, max, and [tau, pushes] in order of tau."""
        return _summary(self._counts)

    def __repr__(self) -> str:
        return f"Staleness({dict(sorted(self._counts.items()))})"


def merged(parts: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """The statistics of several histograms together, from the statistics of each."""
    counts: Counter[int] = Counter()
    for part in parts:
        for tau, pushes in part["histogram"]:
            counts[tau] += pushes
    return _summary(counts)


def _summary(counts: Counter[int]) -> dict[str, Any]:
    pushes = counts.total()
    mean = sum(tau * count for tau, count in counts.items()) / pushes if pushes else 0.0
    return {"mean": mean, "max": max(counts, default=0), "histogram": [[tau, counts[tau]] for tau in sorted(counts)]}
