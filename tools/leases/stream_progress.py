"""`StreamProgress`: what the launcher knows of the parts of a stream: their ends, and what is left of them.

What is left of a part, fewer samples than a batch, comes to the launcher from whoever finds the end, and goes out again
in full batches; so nothing is read twice for that, and in the end less than a batch of the whole run is left.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from msgspec.structs import replace

from ...models.task import Data
from ...runtime.channel.message import Message
from ..job.stream_position import StreamPosition
from ..samples.part_order import PartCounts, RestPool
from ..samples.part_samples import PartEnd, locate_batch, number_batch
from .part_leases import RESTS, PartLeases


class StreamProgress:
    """Follows the parts of a run whose batches have so many samples. rests: see `StreamPosition`."""

    def __init__(
        self, leases: PartLeases, counts: PartCounts, batch: int, what: str, *, rests: Mapping[str, Sequence[int]]
    ) -> None:
        self._leases, self._counts, self._batch = leases, counts, batch
        self._pool, self._before = RestPool(batch, what), dict(rests)
        self._samples: list[tuple[int, int]] = []  # in the pool: of which track, and their places in its rest
        self._rests: dict[int, tuple[Data, list[tuple[int, int]]]] = {}  # by number of a batch, with the same

    def end_part(self, message: Message) -> None:
        """Take the end of a part into account, unless another machine has told of it. BadInput as `PartCounts`."""
        track, batches = int(message.body["track"]), int(message.body["batches"])
        rest = unpack_data(message)
        if not self._leases.end(track, batches):
            return
        self._counts.add(track, PartEnd(batches, rest).count(self._batch))
        places = self._before.get(str(track), range(0 if rest is None else len(rest)))
        if rest is not None:
            rest = rest.rows(torch.tensor(places)) if places else None
        self._samples += [(track, place) for place in places]
        spans = self._leases.list_remaining().get(RESTS, [])
        incomplete = {number_batch(RESTS, first + n) for first, count in spans for n in range(count)}
        self._rests = {number: one for number, one in self._rests.items() if number in incomplete}
        for full in self._pool.add(rest):
            self._rests[self._leases.add_rest()] = full, self._samples[: self._batch]
            del self._samples[: self._batch]

    def position(self) -> StreamPosition:
        """Return where the run is. What somebody is at counts as not trained on."""
        remaining = self._leases.list_remaining()
        waiting = [one for first, count in remaining.pop(RESTS, []) for one in range(first, first + count)]
        left = [sample for place in waiting for sample in self._rests[number_batch(RESTS, place)][1]] + self._samples
        rests: dict[str, list[int]] = {}
        for track, place in left:
            rests.setdefault(str(track), []).append(place)
        for track in map(int, rests):
            remaining[track].append(self._leases.open_end(track))
        return StreamPosition(
            self._leases.parts, self._batch, {str(track): spans for track, spans in remaining.items()}, rests
        )

    def attach_rest(self, lease: Message) -> Message:
        """Return the reply to a request with the samples, where they are what is left of parts."""
        number = lease.body["first"]
        if not lease.body["count"] or locate_batch(number)[0] != RESTS:
            return lease
        return pack_data(lease, self._rests[number][0])


def pack_data(message: Message, data: Data | None) -> Message:
    """Return a message with samples."""
    if data is None:
        return message
    fields: dict[str, Any] = {"inputs": len(data.inputs), "names": list(data.names)}
    return replace(message, body={**message.body, **fields}, tensors=(*data.inputs, *data.targets))


def unpack_data(message: Message) -> Data | None:
    """Return the samples of a message, None if it has none."""
    if not message.tensors:
        return None
    inputs = int(message.body["inputs"])
    return Data(message.tensors[:inputs], message.tensors[inputs:], tuple(message.body["names"]))
