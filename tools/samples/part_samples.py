"""`PartSamples`: samples that are read in order, part by part: an `IterableDataset` of torch, or `cutset.Parts`.

A part is what a worker of a `DataLoader` would yield, one of so many; so a dataset divides itself, as it does there.
How many there are does not depend on replicas. What a sample draws at random depends on the seed, the epoch, its part
and its place there. A batch is of one part; what is left at the end of a part is its rest.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, default_collate
from torch.utils.data._utils import worker as torch_worker

from ...errors import BadInput
from ..blame import blame
from .batch_maker import BatchMaker
from .dataset_samples import LOADERS, DatasetSamples
from .generators import keep_generators, seed_generators

if TYPE_CHECKING:
    from ...models.buckets import Buckets
    from ...models.task import Data, Task
    from .dataset_samples import Samples

PARTS = 8  # of a dataset that divides itself, unless the task says how many
COMPARED = 4  # samples, by which parts are found to be the same
MAX_RECENT = 8  # batches that are kept, in case they are wanted once more
MAX_ENDED = 16  # parts whose ends are kept; more than are open at a time
MAX_IN_MEMORY = 1 << 20  # samples of a stream of test samples
_TRACK_BITS = 32


class PartEnd(NamedTuple):
    """The end of a part. batches: how many it has. rest: the samples after them, fewer than a batch; None for none."""

    batches: int
    rest: "Data | None"

    def count(self, batch: int) -> int:
        """Return how many samples the part has."""
        return self.batches * batch + (0 if self.rest is None else len(self.rest))


def number_batch(track: int, position: int) -> int:
    """Return the number of a batch. track: a part in one epoch, epoch * parts + part; position: of the batch there."""
    return track << _TRACK_BITS | position


def locate_batch(number: int) -> tuple[int, int]:
    """Return the track and the position of a batch."""
    return number >> _TRACK_BITS, number & ((1 << _TRACK_BITS) - 1)


class PartSamples:
    """The samples of one split, in parts.

    parts: how many; as the dataset, the task, the shards of a dataset of Hugging Face or PARTS says, and 1 where all
    parts turn out to be the same.
    total: samples of an epoch, None where nobody knows. For the other arguments see `DatasetSamples`.
    """

    def __init__(
        self,
        task: "Task",
        split: str,
        dataset: Any,
        *,
        collate: Callable[[list[Any]], Any] = default_collate,
        seed: int = 0,
        processes: int = 1,
        parts: int | None = None,
        one_shape: bool = True,
    ) -> None:
        self._dataset, self._seed = dataset, seed
        self._maker = BatchMaker(task, split, collate, one_shape=one_shape)
        self.collate, self.split = collate, split
        self.what, self.processes = self._maker.what, processes
        self._files = getattr(dataset, "files", None) if _is_parts(dataset) else None
        self.parts = parts or (len(self._files) if self._files is not None else _choose_parts(task, dataset))
        self.total = _find_total(task, dataset)
        self.is_divided = True  # by itself
        if parts is None and self._files is None and self.parts > 1 and self._are_same():
            self.parts, self.is_divided = 1, False

    @property
    def has_one_shape(self) -> bool:
        """Whether all batches must have the same sizes."""
        return self._maker.has_one_shape

    def samples(self, part: int, epoch: int = 0, *, seeded_as: int | None = None) -> Iterator[Any]:
        """Yield the samples of a part in an epoch. It must be advanced while `reading` its part."""
        drawn = part if seeded_as is None else seeded_as
        name = self.name_part(part)
        with blame("E311", f"the first sample of {name} of {self.what}"):
            seed_generators(self._seed, epoch, drawn)
            if hasattr(self._dataset, "set_epoch"):
                self._dataset.set_epoch(epoch)
            found = self._dataset if self._files is None else self._dataset.read(self._files[part])
            iterator = iter(found)
        for place in range(1 << _TRACK_BITS):
            seed_generators(self._seed, epoch, drawn, place)
            with blame("E311", f"sample {place} of {name} of {self.what}"):
                try:
                    sample = next(iterator)
                except StopIteration:
                    return
            yield sample

    @contextmanager
    def reading(self, part: int) -> Iterator[None]:
        """Let the dataset see itself in a worker of a `DataLoader`, which reads this part. Batches are made outside."""
        outside = torch_worker._worker_info
        with keep_generators():
            torch_worker._worker_info = torch_worker.WorkerInfo(
                id=part, num_workers=self.parts, seed=self._seed, dataset=self._dataset
            )
            try:
                yield
            finally:
                torch_worker._worker_info = outside

    @property
    def buckets(self) -> "Buckets | None":
        """What pads samples to one of a few lengths, if the task has that."""
        return self._maker.buckets

    @property
    def longest(self) -> int | None:
        """The length of the longest bucket; None where there are no buckets."""
        return self._maker.choose_length(None)

    def make(self, items: list[Any], part: int, first: int, *, length: int | None = None) -> "Data":
        """Return the batch of samples of a part, of which the first one has this place. length: of a bucket."""
        name = self.name_part(part)
        which = f"{first} to {first + len(items) - 1} of {name}"
        return self._maker.make(items, which, lambda place: f"sample {first + place} of {name}", length=length)

    def take_first(self, count: int, length: int | None = None) -> "Data":
        """Return the first samples, again and again where there are too few; BadInput where there are none.

        length: of a bucket that they are padded to, by default the longest; see `BatchMaker.choose_fitting`.
        """
        length = self._maker.choose_length(length)
        with closing(self._read_in_turn()) as items:
            chosen = list(self._maker.choose_fitting(items, count, length).values())
        if not chosen:
            raise BadInput("E311", f"{self.what} yields no sample", fix="let it yield at least one")
        return self.make([chosen[place % len(chosen)] for place in range(count)], 0, 0, length=length)

    def _read_in_turn(self) -> Generator[Any]:
        """Yield the samples of all parts, one part after the other. It must be closed."""
        for part in range(self.parts):
            with self.reading(part):
                yield from self.samples(part)

    def read_whole(self) -> list[Any]:
        """Return all samples, for a stream of test samples; BadInput where there are too many, or none."""
        with closing(self._read_in_turn()) as all_items:
            items = list(islice(all_items, MAX_IN_MEMORY + 1))
        if len(items) > MAX_IN_MEMORY:
            facts = f"{self.what} yields more than {MAX_IN_MEMORY} samples, or never ends; they are kept in memory"
            raise BadInput("E311", facts, fix="give fewer, or a dataset with __len__ and __getitem__")
        if not items:
            raise BadInput("E311", f"{self.what} yields no sample", fix="let it yield at least one")
        return items

    def name_part(self, part: int) -> str:
        """Return the words for a part."""
        return f"part {part} of {self.parts}" if self._files is None else f"part {part} ({self._files[part]!r})"

    def _are_same(self) -> bool:
        """Return whether the dataset yields the same in two parts: it does not look at `get_worker_info`."""
        first = list[list[Any]]()
        for part in (0, 1):
            with self.reading(part):
                first.append(list(islice(self.samples(part, seeded_as=0), COMPARED)))
        return bool(first[0]) and _are_equal(*first)

    def __repr__(self) -> str:
        return f"PartSamples({self.what}, {self.parts} parts)"


class PartReader:
    """Reads the batches of one track, mostly in their order."""

    def __init__(self, samples: PartSamples, track: int, batch: int) -> None:
        self.track = track
        self._samples, self._batch = samples, batch
        self._epoch, self._part = divmod(track, samples.parts)
        self._end: PartEnd | None = None
        self._begin()

    def read(self, position: int, *, wanted: bool = True) -> "Data | PartEnd | None":
        """Return a batch, None unless it is wanted, or the end of the part where it has no such batch."""
        if position < self._next and position not in [at for at, _ in self._recent]:
            self._begin()
        if self._next <= position and (self._end is None or position < self._end.batches):
            rest: list[Any] | None = None
            with self._samples.reading(self._part):
                while self._next <= position and rest is None:
                    rest = self._advance()
            if rest is not None:
                # not while `reading`: in a worker default_collate makes shared memory, and a reader may be killed
                self._end = PartEnd(self._next, self._make_rest(rest) if rest else None)
        if self._end is not None and position >= self._end.batches:
            return self._end
        if not wanted:
            return None
        items = next(items for at, items in self._recent if at == position)
        return self._make(items, position)

    def _make(self, items: list[Any], position: int) -> "Data":
        return self._samples.make(items, self._part, position * self._batch)

    def _make_rest(self, rest: list[Any]) -> "Data":
        """Return what is left, padded to the longest of buckets: the rests of several parts make a batch together."""
        return self._samples.make(rest, self._part, self._next * self._batch, length=self._samples.longest)

    def _begin(self) -> None:
        self._iterator = self._samples.samples(self._part, self._epoch)
        self._next, self._recent, self._end = 0, deque[tuple[int, list[Any]]](maxlen=MAX_RECENT), None

    def _advance(self) -> list[Any] | None:
        """Read a batch; return the samples that are left where the part has no more batches."""
        items = list(islice(self._iterator, self._batch))
        if len(items) < self._batch:
            return items
        self._recent.append((self._next, items))
        self._next += 1
        total = self._samples.total
        if total is not None and self._next * self._batch > total:
            raise too_many_error(self._samples.what, total)
        return None


def too_many_error(what: str, total: int) -> BadInput:
    """Return the error of an epoch that has more samples than it is said to have."""
    facts = f"{what} yields more samples than the {total} that it says it has, or never ends"
    return BadInput("E311", facts, fix="let len() or samples= say how many an epoch has")


class PartReaders:
    """Reads the batches of several parts, each in its order."""

    def __init__(self, samples: PartSamples, batch: int) -> None:
        self.what = samples.what
        self._samples, self._batch = samples, batch
        self._readers: dict[int, PartReader] = {}  # by part
        self._ended: dict[int, PartEnd] = {}  # by track, the last MAX_ENDED: batches beyond the end are requested, too

    def read(self, number: int, wanted: int = 1) -> "Data | PartEnd | None":
        """Return a batch by its number; see `PartReader`."""
        track, position = locate_batch(number)
        if track in self._ended and position >= self._ended[track].batches:
            return self._ended[track]
        part = track % self._samples.parts
        if part not in self._readers or self._readers[part].track != track:
            self._readers[part] = PartReader(self._samples, track, self._batch)
        found = self._readers[part].read(position, wanted=bool(wanted))
        if isinstance(found, PartEnd):
            self._readers.pop(part)  # with what it holds open
            self._ended[track] = found
            if len(self._ended) > MAX_ENDED:
                self._ended.pop(next(iter(self._ended)))
        return found


def take_first(samples: "Samples | PartSamples", count: int, length: int | None = None) -> "Data":
    """Return the first samples, again and again where there are too few, fitted to the longest bucket or `length`."""
    if isinstance(samples, PartSamples | DatasetSamples):
        return samples.take_first(count, length)
    return samples.rows(torch.arange(count) % len(samples))


def buckets_of(samples: "Samples | PartSamples") -> "Buckets | None":
    """Return what pads samples to one of a few lengths, None where they have one size, or nobody knows theirs."""
    return samples.buckets if isinstance(samples, PartSamples | DatasetSamples) else None


def wrap_stream(
    task: "Task", split: str, found: Any, *, seed: int, parts: int | None = None, one_shape: bool = True
) -> PartSamples | None:
    """Return the samples of what a task gives that can only be read in order; None where that is something else.

    Of a DataLoader its dataset, collate_fn and num_workers count. BadInput for what can be read once only.
    """
    own, settings = task.loaders, dict[str, Any](seed=seed, parts=parts, one_shape=one_shape)
    if isinstance(found, DataLoader):
        if not isinstance(found.dataset, IterableDataset):
            return None
        if found.batch_size is None:
            facts = f"the DataLoader for the {split} data of task {task.name} has batch_size=None"
            raise BadInput("E311", facts, fix="let the dataset yield samples; batches are those of the run")
        processes = (found.num_workers or LOADERS) if own is None else own
        collate: Callable[[list[Any]], Any] = found.collate_fn
        return PartSamples(task, split, found.dataset, collate=collate, processes=processes, **settings)
    if isinstance(found, IterableDataset) or (hasattr(found, "__iter__") and hasattr(found, "set_epoch")):
        return PartSamples(task, split, found, processes=LOADERS if own is None else own, **settings)
    if isinstance(found, Iterator):
        facts = f"the {split} data of task {task.name} is a {type(found).__name__}, which can be read only once"
        raise BadInput("E311", facts, fix="give a torch IterableDataset, or cutset.Parts(files, read)")
    return None


def _is_parts(dataset: Any) -> bool:
    from ...models.parts import Parts

    return isinstance(dataset, Parts)


def _choose_parts(task: "Task", dataset: Any) -> int:
    """Return how many parts a dataset has that divides itself, no more than the shards that it says it has."""
    shards = getattr(dataset, "num_shards", None)
    if not isinstance(shards, int) or shards < 1:
        return task.parts or PARTS
    return min(task.parts or shards, shards)


def _find_total(task: "Task", dataset: Any) -> int | None:
    """Return the number of samples of an epoch, by the dataset or the task; None where neither knows."""
    if _is_parts(dataset):
        return dataset.samples or task.samples
    if not hasattr(dataset, "__len__"):
        return task.samples
    try:
        return len(dataset)
    except (TypeError, NotImplementedError):
        return task.samples


def _are_equal(a: Any, b: Any) -> bool:
    """Return whether two samples, or lists of them, are the same."""
    if isinstance(a, Tensor | np.ndarray):
        return isinstance(b, type(a)) and a.shape == b.shape and bool((torch.as_tensor(a) == torch.as_tensor(b)).all())
    if isinstance(a, Mapping):
        return isinstance(b, Mapping) and a.keys() == b.keys() and all(_are_equal(a[name], b[name]) for name in a)
    if isinstance(a, Sequence) and not isinstance(a, str | bytes):
        return isinstance(b, Sequence) and len(a) == len(b) and all(map(_are_equal, a, b))
    return bool(a == b)
