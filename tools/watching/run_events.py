"""The events of metrics.jsonl as those that watch read them: what is missing or of another kind is found at once.

What they mean says run_listener.py. Fields that are not here are passed over, as a later version may write some.
"""

from collections.abc import Mapping
from typing import Any, NotRequired, TypedDict

import msgspec


class RunEvent(TypedDict):
    """What each line has. time: seconds since 1970."""

    event: str
    time: float


class BeginEvent(RunEvent):
    """A run begins."""

    task: str
    method: str


class StepEvent(RunEvent):
    """A step was made; steps: of how many, None where the run has no end of its own."""

    run: str
    step: int
    steps: NotRequired[int | None]
    samples: int
    seconds: float
    loss: float | None
    samples_per_s: float | None


class EvaluationEvent(RunEvent):
    """Test samples were evaluated."""

    run: str
    samples: int
    seconds: float
    test_loss: float | None
    test_accuracy: float | None
    metrics: dict[str, float | None]


class StalenessStatus(TypedDict):
    """Of the pushes to a shard."""

    mean: float
    p50: int
    p90: int
    max: int


class WaitStatus(TypedDict):
    """Seconds that a worker has waited, by for what."""

    data: float
    leases: float
    peers: float
    shards: float


class RoleStatus(TypedDict, total=False):
    """What a process says of its work; links: bytes that it has sent, by peer."""

    at_s: float
    beat_s: float
    cpu_s: float
    rss: int
    step: int
    loss: float | None
    waited: WaitStatus
    unacknowledged: int
    updates: int
    late: int
    staleness: StalenessStatus | None
    unsaved_s: float | None
    links: dict[str, int]


class RolesEvent(RunEvent):
    """What all processes say."""

    roles: dict[str, RoleStatus]
    leases: NotRequired[int]


class CheckpointEvent(RunEvent):
    """A checkpoint is complete."""

    step: int


class LostEvent(RunEvent):
    """A replica or a shard was lost."""

    what: str
    why: str


class NoticeEvent(RunEvent):
    """A sentence for the user."""

    words: str


class EndEvent(RunEvent):
    """A run has ended; why: the error, if it was one."""

    why: str | None


EVENTS: dict[str, type[Any]] = {
    "begin": BeginEvent,
    "step": StepEvent,
    "evaluation": EvaluationEvent,
    "roles": RolesEvent,
    "checkpoint": CheckpointEvent,
    "lost": LostEvent,
    "notice": NoticeEvent,
    "end": EndEvent,
}


def read_event(event: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return an event as its kind, None where that is not known. ValueError where it lacks something of that."""
    kind = EVENTS.get(event["event"])
    return None if kind is None else msgspec.convert(event, kind)
