"""`ServingConfig`: what a training method asks of the shards."""

import msgspec

from ..optimizers.registry import AnyOptimizer


class ServingConfig(msgspec.Struct, frozen=True):
    """How shards apply pushes.

    optimizer: makes the updates. replicas: that train from the beginning. aggregate: the pushes of so many replicas on
    the same version make one update of their mean, and later ones are dropped; 0 if every push is an update.
    """

    optimizer: AnyOptimizer
    replicas: int = 1
    aggregate: int = 0
