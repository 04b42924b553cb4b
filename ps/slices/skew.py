"""`Skew`: how far apart the slices of a fetch are - what a worker computes on was never there at one moment."""

from collections.abc import Collection
from typing import Any


class Skew:
    """Of each fetch the largest version of a slice less the smallest, over all shards."""

    def __init__(self) -> None:
        self._fetches = self._sum = self._most = 0

    def add(self, versions: Collection[int]) -> None:
        """Count one fetch, by the version of every slice."""
        spread = max(versions, default=0) - min(versions, default=0)
        self._fetches += 1
        self._sum += spread
        self._most = max(self._most, spread)

    def statistics(self) -> dict[str, Any]:
        """Plain data: fetches, mean, max."""
        return {"fetches": self._fetches, "mean": self._sum / max(1, self._fetches), "max": self._most}

    def __repr__(self) -> str:
        return f"Skew({self.statistics()})"
