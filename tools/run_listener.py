"""`RunListener`: hears of a run while it lasts, and may end it early; the reports that it is given."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MAX_LINKED = 16  # roles, that say to whom they send; what more of them send is "others" alone
ALONE = "one process"  # the name of the run that others are compared with


@dataclass(frozen=True)
class StepReport:
    """How far training is, some times a second.

    run: the method's name, or "one process" for the run that it is compared with. step, steps: of how many, as the
    method counts them. loss: of a batch, None where nobody says it. samples: that all replicas have trained on.
    seconds: of training.
    """

    run: str
    step: int
    steps: int
    loss: float | None
    samples: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class EvaluationReport:
    """The scores of an evaluation on test samples; test_loss and test_accuracy are None where the task has none."""

    run: str
    samples: int
    seconds: float
    test_loss: float | None
    test_accuracy: float | None
    metrics: dict[str, float]

    @classmethod
    def from_point(cls, run: str, point: Mapping[str, Any]) -> "EvaluationReport":
        """Return the report of a point of a learning curve."""
        return cls(run, *(point[name] for name in ("samples", "seconds", "test_loss", "test_accuracy", "metrics")))


@dataclass(frozen=True)
class CheckpointReport:
    """A checkpoint that is complete. folder: where it is; step: that each replica had come to."""

    folder: Path
    step: int


@dataclass(frozen=True)
class RolesReport:
    """How the work of each process goes, about once a second; more rarely where there are many.

    run: as in `StepReport`. roles: by name, what it said last. Every role says "cpu_s", of all its threads so far,
    "rss", its memory in bytes, and when by its own clock ("beat_s"); what follows is of "at_s" by that clock. A worker
    says "step", "loss" (None where another machine has it), "waited" (seconds so far for "data", "leases", "peers" and
    "shards"), "unacknowledged" pushes and "links" (bytes sent so far, by peer, or to "others"). A shard says "updates",
    "pushes", "late", "staleness" (of pushes so far: "mean", "p50", "p90", "max"), "unsaved_s" (for how long what it
    holds has not been on disk) and "links"; one of Sandblaster "batches" of operations and "links".
    leases: batches that replicas have got and that are not yet known to be computed, where batches are leased.
    """

    run: str
    roles: Mapping[str, Mapping[str, Any]]
    leases: int | None = None


@dataclass(frozen=True)
class LossReport:
    """What was lost, "replica 1" or "shard 0", with its processes, and why; the run goes on where it can."""

    what: str
    why: str


class RunListener:
    """Hears of a run while it lasts. Its methods are called by what supervises the run, and return at once.

    may_stop: whether it may ever request that training ends.
    """

    may_stop: bool = False

    @property
    def stop_requested(self) -> bool:
        """Whether training shall end: at once where batches are leased, else one step after the next evaluation."""
        return False

    def on_begin(self, folder: Path) -> None:
        """Hear where the run leaves what it has, before it trains."""

    def on_step(self, report: StepReport) -> None:
        """Hear how far training is."""

    def on_roles(self, report: RolesReport) -> None:
        """Hear how the work of each process goes."""

    def on_evaluate(self, report: EvaluationReport) -> None:
        """Hear of the scores of an evaluation."""

    def on_checkpoint(self, report: CheckpointReport) -> None:
        """Hear of a checkpoint."""

    def on_machine_lost(self, report: LossReport) -> None:
        """Hear of a replica or a shard that is lost."""

    def on_output(self, text: str) -> None:
        """Hear what the script of the first replica prints, where the user keeps the loop."""

    def on_notice(self, words: str) -> None:
        """Hear a sentence for the user."""
