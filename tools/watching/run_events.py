"""The events of metrics.jsonl as those that watch read them: what is missing or of another kind is found at once.

What they mean says run_listener.py. Fields that are not here are passed over, as a later version may write some.
"""

from collections.abc import Mapping
from typing import Any, NotRequired, TypedDict

import msgspec


class Event(TypedDict):
    """What each line has. time: seconds since 1970."""

    event: str
    time: float


class Begin(Event):
    """A run begins."""

    task: str
    method: str


class Step(Event):
    """A step was made; steps: of how many, None where the run has no end of its own."""

    run: str
    step: int
    steps: NotRequired[int | None]
    samples: int
    seconds: float
    loss: float | None
    samples_per_s: float | None


class Evaluation(Event):
    """Test samples were evaluated."""

    run: str
    samples: int
    seconds: float
    test_loss: float | None
    test_accuracy: float | None
    metrics: dict[str, float | None]


class Staleness(TypedDict):
    """Of the pushes to a shard."""

    mean: float
    p50: int
    p90: int
    max: int


class Waited(TypedDict):
    """Seconds that a worker has waited, by for what."""

    data: float
    leases: float
    peers: float
    shards: float


class Status(TypedDict, total=False):
    """What a process says of its work; links: bytes that it has sent, by peer."""

    at_s: float
    beat_s: float
    cpu_s: float
    rss: int
    step: int
    loss: float | None
    waited: Waited
    unacknowledged: int
    updates: int
    late: int
    staleness: Staleness | None
    unsaved_s: float | None
    links: dict[str, int]


class Roles(Event):
    """What all processes say."""

    roles: dict[str, Status]
    leases: NotRequired[int]


class Checkpoint(Event):
    """A checkpoint is complete."""

    step: int


class Lost(Event):
    """A replica or a shard was lost."""

    what: str
    why: str


class Notice(Event):
    """A sentence for the user."""

    words: str


class End(Event):
    """A run has ended; why: the error, if it was one."""

    why: str | None


EVENTS: dict[str, type[Any]] = {
    "begin": Begin,
    "step": Step,
    "evaluation": Evaluation,
    "roles": Roles,
    "checkpoint": Checkpoint,
    "lost": Lost,
    "notice": Notice,
    "end": End,
}


def read_event(event: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return an event as its kind, None where that is not known. ValueError where it lacks something of that."""
    kind = EVENTS.get(event["event"])
    return None if kind is None else msgspec.convert(event, kind)
