"""`StreamPosition` and `LoopPosition`: where a run is in its data besides its steps, as its checkpoints say it."""

from typing import Any

import msgspec

LOOP, LOOPS = "loop", "loops"  # in what a worker reports, and in the manifest of a checkpoint


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


class LoopPass(msgspec.Struct, frozen=True, array_like=True):
    """Passes of a user's loop over its data, as a replica made them, that are alike and follow each other.

    times: how many. steps: taken in each; stepped: the batches that it had taken then; batches: all that it took.
    after: steps between it and the next. idle: passes without a step before each. has_left: whether the loop left it
    before its end.
    """

    times: int = 1
    steps: int = 0
    stepped: int = 0
    batches: int = 0
    after: int = 0
    idle: int = 0
    has_left: bool = False

    @property
    def all_steps(self) -> int:
        """Steps from the beginning of one to that of the next."""
        return self.steps + self.after


class LoopPosition(msgspec.Struct, frozen=True):
    """How the loop that the user keeps goes through its data in one replica.

    passes: from the first one; the last may not have come to its end. ahead: how many steps more they have than the
    run, which counts in whole steps of all replicas where it was resumed with other ones. batch: samples of a batch.
    scheduled: how often each scheduler is called within the loop for each step, in the order in which they are
    prepared.
    """

    passes: list[LoopPass] = []
    scheduled: list[float] = []
    batch: int = 1
    ahead: int = 0


Position = StreamPosition | list[LoopPosition]


def describe_position(position: Position | None) -> dict[str, Any]:
    """Return what the manifest of a checkpoint says of a position, nothing where there is none. Loops: by replica."""
    if position is None:
        return {}
    return {"stream" if isinstance(position, StreamPosition) else LOOPS: msgspec.to_builtins(position)}
