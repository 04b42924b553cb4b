"""`ServingConfig`: what a training method asks of the shards."""

import msgspec

from ..optimizers.registry import AnyOptimizer


class ServingConfig(msgspec.Struct, frozen=True):
    """How shards apply pushes.

    optimizer: makes the updates. replicas: that train from the beginning. aggregate: the pushes of so many replicas on
    the same version make one update of their mean, and later ones are dropped; 0 if every push is an update. updates:
    that the whole run makes, about; 0 where that does not matter.
    """

    optimizer: AnyOptimizer
    replicas: int = 1
    aggregate: int = 0
    updates: int = 0

    def progress(self, version: int) -> float:
        """Return the fraction of the run after so many updates."""
        return min(1.0, version / self.updates) if self.updates else 0.0
