"""`SimulationSpec`: what a simulation is asked for, and `SimulatedRun`: what came of it. Both are plain data."""

import math
from collections.abc import Sequence
from typing import Any

import msgspec

from ...errors import UsageError
from ...ps.methods.registry import AnyMethod, parse_method
from ...ps.optimizers.registry import AnyOptimizer, parse_optimizer
from .machines import SimulatedMachines

UNSIMULATED = ("allreduce", "sandblaster")


class Point(msgspec.Struct, frozen=True):
    """A point of a learning curve: what the parameters on the shards were worth. samples: that all have computed."""

    seconds: float
    samples: int
    test_accuracy: float | None
    train_accuracy: float | None
    test_loss: float | None
    train_loss: float | None


class SimulationSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """A training run in virtual time.

    method, optimizer: as on the command line. samples: that all replicas compute together. seconds: of virtual time, at
    most. target: the test accuracy at which it ends. points: of the learning curve. losses: when replicas are lost for
    good, and which. turns: whether all replicas compute the same number of batches, as they always do in lock step.
    """

    method: str
    optimizer: str
    lr: float
    batch: int
    samples: int
    replicas: int = 1
    shards: int = 1
    seed: int = 0
    machines: SimulatedMachines = SimulatedMachines()
    seconds: float = math.inf
    target: float | None = None
    points: int = 24
    losses: tuple[tuple[float, int], ...] = ()
    turns: bool = False

    @property
    def batches(self) -> int:
        """Batches of all replicas together."""
        return self.samples // self.batch

    @property
    def steps(self) -> int:
        """Steps of each replica, if all make the same number."""
        return max(1, self.batches // self.replicas)

    def check(self) -> None:
        """Raise UsageError where such a run cannot be."""
        steps = self.steps if self.takes_turns else self.batches
        self.read_method().check(self.read_optimizer(), self.replicas, steps)

    def read_method(self) -> AnyMethod:
        """Return the method. Raises UsageError for one that cannot be simulated so."""
        method = parse_method(self.method)
        if method.name in UNSIMULATED:
            raise UsageError("E286", f"method {method.name} is not simulated by its replicas", fix="--method sync")
        return method

    @property
    def takes_turns(self) -> bool:
        """Whether replica r of n computes batches r, n + r, 2n + r, ...; otherwise each computes the next."""
        return self.turns or not self.read_method().leases_batches

    def read_optimizer(self) -> AnyOptimizer:
        """Return the optimizer."""
        return parse_optimizer(self.optimizer, self.lr)


class SimulatedRun(msgspec.Struct, frozen=True):
    """What came of a simulation.

    failure: why it ended early, "" if it did not. steps: of each replica. staleness: as `merge_histograms` has it.
    waiting: the fraction of their time that replicas waited for shards. shards_busy: of the busiest shard. step_s: of a
    run by processes, by replica, what its steps took.
    """

    points: list[Point]
    seconds: float
    failure: str
    steps: list[int]
    updates: int
    staleness: dict[str, Any]
    bytes_sent: int
    waiting: float
    shards_busy: float
    step_s: list[list[float]] = []

    def seconds_to(self, accuracy: float) -> float | None:
        """Return when the test accuracy first reached this; see `find_crossing`."""
        return find_crossing(self.points, accuracy)


def find_crossing(points: Sequence[Point], accuracy: float) -> float | None:
    """Return when the test accuracy first reached this, between two points by a straight line; None if never."""
    before: Point | None = None
    for point in points:
        reached = point.test_accuracy
        if reached is not None and reached >= accuracy:
            if before is None or before.test_accuracy is None:
                return point.seconds
            part = (accuracy - before.test_accuracy) / (reached - before.test_accuracy)
            return before.seconds + part * (point.seconds - before.seconds)
        before = point
    return None
