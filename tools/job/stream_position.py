"""`StreamPosition` and `LoopPosition`: where a run is in its data besides its steps, as its checkpoints say it."""

from typing import Any

import msgspec

LOOP = "loop"


class StreamPosition(msgspec.Struct, frozen=True):
    """Where a run is in its stream, as a checkpoint says it.

    parts, batch: as the run has them. remaining: by track, the batches (first, count) that are not complete; of tracks
    that are not named, all; None where batches come in one order, and the number of samples says it all. rests: by
    track, the places in its rest of the samples that are not trained on yet.
    """

    parts: int
    batch: int
    remaining: dict[str, list[tuple[int, int]]] | None = None
    rests: dict[str, list[int]] = {}


class LoopPosition(msgspec.Struct, frozen=True):
    """How a loop that the user keeps goes through its data.

    batches: of the data for each step of a replica. scheduled: how often each of its schedulers is called within the
    loop for each step, in the order in which they are prepared.
    """

    batches: float = 1.0
    scheduled: list[float] = []


FIRST_LOOP = LoopPosition()
Position = StreamPosition | LoopPosition


def describe_position(position: Position | None) -> dict[str, Any]:
    """Return what the manifest of a checkpoint says of a position, nothing where there is none."""
    if position is None:
        return {}
    return {"stream" if isinstance(position, StreamPosition) else LOOP: msgspec.to_builtins(position)}
