"""`PartOrder`: all batches of all parts in one order, the same for all who read it; and what is left of parts."""

from collections.abc import Callable, Iterator

import torch

from ...errors import BadInput
from ...models.task import Data
from .part_loader import PartLoader
from .part_samples import PartEnd, number_batch, too_many_error

WINDOW = 8  # parts that are open at a time


class RestPool:
    """The rests of parts, of which full batches are made in the order in which they came."""

    def __init__(self, batch: int, what: str) -> None:
        self._batch, self._what, self._samples = batch, what, list[Data]()

    @property
    def count(self) -> int:
        """The samples that make no full batch yet."""
        return sum(map(len, self._samples))

    def add(self, rest: Data | None) -> Iterator[Data]:
        """Add a rest; yield the batches that are full now. BadInput where samples have several shapes."""
        self._samples += [rest] if rest is not None else []
        while self.count >= self._batch:
            try:
                whole = _join(self._samples)
            except RuntimeError as error:
                facts = f"{self._what} has parts whose samples have different shapes: {error}"
                raise BadInput(
                    "E311", facts, fix="give all samples one shape, by padding them in collate_fn"
                ) from error
            index = torch.arange(len(whole))
            yield whole.rows(index[: self._batch])
            self._samples = [whole.rows(index[self._batch :])] if len(whole) > self._batch else []


class PartCounts:
    """How many samples each part had, which must be the same in every epoch."""

    def __init__(self, parts: int, total: int | None, what: str) -> None:
        """parts: of an epoch, which has so many samples if that is known. what: they are, in words."""
        self._parts, self._total, self._what = parts, total, what
        self._counts: dict[int, tuple[int, int]] = {}  # by part: an epoch, and its samples there
        self._totals: dict[int, int] = {}  # by epoch

    def add(self, track: int, count: int) -> None:
        """Note the end of a part in an epoch; BadInput where it had another length before, or all are too many."""
        epoch, part = divmod(track, self._parts)
        before, expected = self._counts.setdefault(part, (epoch, count))
        if count != expected:
            lengths = f"{expected} samples in epoch {before}, and has {count} in epoch {epoch}"
            facts = f"part {part} of {self._what} had {lengths}"
            raise BadInput("E311", facts, fix="let it yield the same number of samples in every epoch")
        self._totals[epoch] = self._totals.get(epoch, 0) + count
        self.check(self._totals[epoch])

    def check(self, count: int) -> None:
        """Raise BadInput where an epoch has come to more samples than there are."""
        if self._total is not None and count > self._total:
            raise too_many_error(self._what, self._total)


class PartOrder:
    """All batches of all epochs in one order, the same for all who read it: parts in turn, a batch of each.

    Up to WINDOW parts are open at a time; where one ends, the next takes its place, and when the rests of parts make a
    full batch, that is next.
    """

    def __init__(self, loader: PartLoader, epochs: int) -> None:
        self._loader, self._epochs = loader, epochs

    def batches(self, is_wanted: Callable[[int], bool] = lambda number: True) -> Iterator[Data | None]:
        """Yield every batch, None for those that are not wanted. is_wanted: called with the place in the order."""
        samples, batch, place = self._loader.samples, self._loader.batch, 0
        pool, counts = RestPool(batch, samples.what), PartCounts(samples.parts, samples.total, samples.what)
        for epoch in range(self._epochs):
            closed = iter(range(samples.parts))
            open_parts = [(part, 0) for _, part in zip(range(WINDOW), closed, strict=False)]
            read = 0
            while open_parts:
                (part, position), *others = open_parts
                track = epoch * samples.parts + part
                upcoming = self._guess(epoch, open_parts, place, is_wanted)
                found = self._loader.read(number_batch(track, position), upcoming, wanted=is_wanted(place))
                if not isinstance(found, PartEnd):
                    open_parts = [*others, (part, position + 1)]
                    read += batch
                    counts.check(read)
                    yield found
                    place += 1
                    continue
                following = next(closed, None)
                open_parts = others if following is None else [*others, (following, 0)]
                counts.add(track, found.count(batch))
                for full in pool.add(found.rest):
                    yield full
                    place += 1

    def _guess(
        self, epoch: int, open_parts: list[tuple[int, int]], place: int, is_wanted: Callable[[int], bool]
    ) -> dict[int, bool]:
        """Return the numbers of the batches that come next if no part ends, and whether they are wanted."""
        count, first = len(open_parts), epoch * self._loader.samples.parts
        guess = {}
        for later in range(1, self._loader.ahead + 1):
            part, position = open_parts[later % count]
            guess[number_batch(first + part, position + later // count)] = is_wanted(place + later)
        return guess


def _join(samples: list[Data]) -> Data:
    """Return several batches as one."""
    inputs = tuple(torch.cat(parts) for parts in zip(*(one.inputs for one in samples), strict=True))
    targets = tuple(torch.cat(parts) for parts in zip(*(one.targets for one in samples), strict=True))
    return Data(inputs, targets, samples[0].names)
