"""`StalenessHistogram` and `VersionSkew`: how old the values were that gradients were computed on, and how mixed.

The staleness tau of a push is the number of updates by others between the values that its gradient was computed on and
the push itself. The skew of a fetch is the difference between the newest and the oldest version of its slices.
"""

from collections import Counter
from collections.abc import Collection, Iterable
from typing import Any


class StalenessHistogram:
    """Counts pushes by tau = version before the push - version that the gradient was computed on."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()

    def add(self, tau: int, pushes: int = 1) -> None:
        """Count one push, or several, of this staleness."""
        if pushes:
            self._counts[tau] += pushes

    def include(self, other: "StalenessHistogram") -> None:
        """Count the pushes of another histogram too."""
        self._counts.update(other._counts)

    def statistics(self) -> dict[str, Any]:
        """Return plain data: mean, max, and the histogram as [tau, pushes] in order of tau."""
        return _summarize(self._counts)

    def __repr__(self) -> str:
        return f"StalenessHistogram({dict(sorted(self._counts.items()))})"


def merge_histograms(parts: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Return the statistics of several histograms together, from the statistics of each."""
    counts: Counter[int] = Counter()
    for part in parts:
        for tau, pushes in part["histogram"]:
            counts[tau] += pushes
    return _summarize(counts)


def find_quantiles(histograms: Iterable[StalenessHistogram]) -> dict[str, float] | None:
    """Return "mean", "p50", "p90" and "max" of the staleness of all pushes; None where there are none."""
    counts = Counter[int]()
    for histogram in histograms:
        counts.update(histogram._counts)
    if not (pushes := counts.total()):
        return None
    reached, quantiles = 0, dict[str, float]()
    for tau in sorted(counts):
        reached += counts[tau]
        for name, part in (("p50", 0.5), ("p90", 0.9), ("max", 1.0)):
            if name not in quantiles and reached >= part * pushes:
                quantiles[name] = tau
    return {"mean": sum(tau * count for tau, count in counts.items()) / pushes, **quantiles}


def _summarize(counts: Counter[int]) -> dict[str, Any]:
    pushes = counts.total()
    mean = sum(tau * count for tau, count in counts.items()) / pushes if pushes else 0.0
    return {"mean": mean, "max": max(counts, default=0), "histogram": [[tau, counts[tau]] for tau in sorted(counts)]}


class VersionSkew:
    """Counts, over fetches, the newest version of a slice minus the oldest, over all shards."""

    def __init__(self) -> None:
        self._fetches = self._sum = self._max = 0

    def add(self, versions: Collection[int]) -> None:
        """Count one fetch, given the version of every slice."""
        spread = max(versions, default=0) - min(versions, default=0)
        self._fetches += 1
        self._sum += spread
        self._max = max(self._max, spread)

    def statistics(self) -> dict[str, Any]:
        """Return plain data: fetches, mean, max."""
        return {"fetches": self._fetches, "mean": self._sum / max(1, self._fetches), "max": self._max}

    def __repr__(self) -> str:
        return f"VersionSkew({self.statistics()})"
