"""`FigureRequest`: what every figure in virtual time is asked for, and `CurveSetting`: how a method trains in one."""

from dataclasses import dataclass

import msgspec

from ...task.load_task import TaskSpec
from .assumptions import Assumptions

ONE, SOME, MANY = "one", "some", "many"  # how many replicas a setting has


class CurveSetting(msgspec.Struct, frozen=True):
    """A curve. rate: times the rate of the user for this kind of optimizer. count: ONE, SOME or MANY replicas.

    adaptive: whether the rate is that of Adagrad, not that of SGD. epochs: times those of the user. warm_start: pushes
    of the first replica before the others begin, a tenth of all at most.
    """

    name: str
    method: str
    optimizer: str
    rate: float = 1.0
    count: str = SOME
    adaptive: bool = False
    epochs: float = 1.0
    warm_start: int = 0


@dataclass(frozen=True)
class FigureRequest:
    """What is asked for. epochs: that a run makes at most. lr, adaptive_lr: of SGD and Adagrad in one process.

    target: a test accuracy, the time to which is told.
    """

    task: TaskSpec
    assumed: Assumptions
    epochs: float = 5.0
    lr: float = 0.1
    adaptive_lr: float = 0.02
    target: float = 0.95
    seed: int = 0

    def choose_rate(self, setting: CurveSetting) -> float:
        """Return the learning rate of a setting."""
        return (self.adaptive_lr if setting.adaptive else self.lr) * setting.rate
