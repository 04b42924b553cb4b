"""`StreamPosition`: where a run is in its stream, as its checkpoints say it."""

from typing import Any

import msgspec


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


def describe_stream(position: StreamPosition | None) -> dict[str, Any]:
    """Return what the manifest of a checkpoint says of a position, nothing where there is none."""
    return {} if position is None else {"stream": msgspec.to_builtins(position)}
