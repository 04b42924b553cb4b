"""Parameter averaging: every so many steps the mean of all replicas is where all go on.

McDonald, Hall, Mann, "Distributed Training Strategies for the Structured Perceptron", NAACL 2010 (iterative mixing).
With every=1 and plain SGD it is synchronous training.
"""

from ..optimizers.standard import SGD
from .local_sgd import LocalSGD
from ..optimizers.registry import AnyRule


class Averaging(LocalSGD, frozen=True, tag="averaging"):
    """Local steps by the rule in each replica, and every so often the mean of all replicas."""

    def outer(self) -> AnyRule:
        """base - mean(base - values) = mean(values)."""
        return SGD(1.0)
