"""DiLoCo: replicas train on their own for long, and what they did on the mean is a gradient for Nesterov's momentum.

Douillard et al., "DiLoCo: Distributed Low-Communication Training of Language Models", 2023, algorithm 1.
"""

from ..optimizers.standard import SGD
from .local_sgd import LocalSGD
from ..optimizers.registry import AnyRule


class DiLoCo(LocalSGD, frozen=True, tag="diloco"):
    """Local steps by the rule (AdamW in the paper), and every so often an outer step of Nesterov's along their mean.

    every: H of the paper, which had 500. outer_lr, momentum: of the outer step; without momentum it is plain SGD.
    """

    outer_lr: float = 0.7
    momentum: float = 0.9

    def __post_init__(self) -> None:
        super().__post_init__()
        self.demand_number("outer_lr", "above 0 and finite", lambda x: 0 < x < float("inf"), proper=0.7)
        self.demand_number("momentum", "at least 0 and below 1", lambda x: 0 <= x < 1, proper=0.9)

    def outer(self) -> AnyRule:
        """The paper's OuterOpt."""
        return SGD(self.outer_lr, momentum=self.momentum, nesterov=self.momentum > 0)
