"""Reads the batches of a worker step by step: of numbered samples, or of the parts of a stream, leased or in turn."""

import sys
from collections.abc import Iterator
from itertools import islice
from typing import Protocol

from ...models.task import Data
from ..job.process_specs import TrainingSpec
from ..samples.dataset_samples import Samples
from ..samples.part_loader import PartLoader
from ..samples.part_order import PartOrder
from ..samples.part_samples import PartEnd, PartSamples
from ..samples.sample_loader import SampleLoader, make_stream
from .batch_assignment import BatchAssignment, LeasedBatches


class BatchReader(Protocol):
    """Reads what a worker trains on."""

    def read(self, step: int) -> Data | None:
        """Return the batch of a step, None after the last one for now."""

    def close(self) -> None:
        """End the processes that read."""


def make_loader(training: TrainingSpec, samples: Samples | PartSamples) -> SampleLoader | PartLoader:
    """Return what reads batches by their numbers. It is made before the model, so that its processes are small."""
    if isinstance(samples, PartSamples):
        return PartLoader(samples, training.batch)
    stream = make_stream(samples, batch=training.batch, seed=training.seed, first=training.first_sample)
    return SampleLoader(samples, stream)


def make_reader(
    training: TrainingSpec, loader: SampleLoader | PartLoader, assignment: BatchAssignment, replica: int
) -> BatchReader:
    """Return what reads the batches that a replica is assigned."""
    if isinstance(loader, SampleLoader):
        return NumberedReader(loader, assignment)
    if isinstance(assignment, LeasedBatches):
        return LeasedPartReader(loader, assignment)
    return TurnReader(loader, training, assignment, replica)


class NumberedReader:
    """Reads samples by their numbers."""

    def __init__(self, loader: SampleLoader, assignment: BatchAssignment) -> None:
        self._loader, self._assignment = loader, assignment

    def read(self, step: int) -> Data | None:
        """Return the batch of a step; see `BatchReader`."""
        number = self._assignment.batch_at(step)
        if number is None:
            return None
        following = (self._assignment.peek(step + n) for n in range(1, self._loader.ahead + 1))
        return self._loader.read(number, [later for later in following if later is not None])

    def close(self) -> None:
        """End the processes that read."""
        self._loader.close()


class LeasedPartReader:
    """Reads the parts of a stream of which batches are leased, and tells where they end."""

    def __init__(self, loader: PartLoader, assignment: LeasedBatches) -> None:
        self._loader, self._assignment = loader, assignment

    def read(self, step: int) -> Data | None:
        """Return the batch of a step; see `BatchReader`."""
        while (number := self._assignment.batch_at(step)) is not None:
            rest = self._assignment.rest(step)
            if rest is not None:
                return rest
            following = {
                later: True
                for n in range(1, self._loader.ahead + 1)
                if (later := self._assignment.peek(step + n)) is not None and self._assignment.rest(step + n) is None
            }
            found = self._loader.read(number, following)
            if not isinstance(found, PartEnd):
                return found
            self._assignment.end_part(number, found)
        return None

    def close(self) -> None:
        """End the processes that read."""
        self._loader.close()


class TurnReader:
    """Reads the whole stream in its one order, and takes every n-th batch of it, for one of n replicas.

    All n see where the stream ends: a round that does not have a batch for each is left out.
    """

    def __init__(self, loader: PartLoader, training: TrainingSpec, assignment: BatchAssignment, replica: int) -> None:
        self._loader, self._training, self._assignment, self._replica = loader, training, assignment, replica
        self._batches: Iterator[Data | None] | None = None
        self._next = 0  # the first step that was not read
        self._last: Data | None = None

    def read(self, step: int) -> Data | None:
        """Return the batch of a step; see `BatchReader`. Steps may be left out, and the last one be read again."""
        if self._assignment.batch_at(step) is None:
            return None
        if self._batches is None:
            replicas, first = self._training.replicas, self._training.first_sample // self._training.batch
            order = PartOrder(self._loader, self._training.epochs)
            own = range(first + step * replicas + self._replica, sys.maxsize, replicas)
            self._batches = islice(order.batches(lambda n: n in own), first, None)
        while self._next <= step:
            batches = list(islice(self._batches, self._training.replicas))
            self._last = batches[self._replica] if len(batches) == self._training.replicas else None
            self._next += 1
        return self._last

    def close(self) -> None:
        """End the processes that read."""
        self._loader.close()
