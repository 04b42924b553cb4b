"""`DatasetSamples`: the samples of a torch `Dataset`, of a `DataLoader`'s, or of any sequence of samples.

What a sample draws at random, to augment it, depends on the seed, the epoch and its number alone, and what collate
draws on those of the batch's first sample: so a batch is the same whichever process reads it, and after a restart.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np
from torch import Tensor
from torch.utils.data import DataLoader, RandomSampler, SequentialSampler, default_collate

from ...errors import BadInput
from ..blame import blame
from .batch_maker import BatchMaker
from .generators import SeededReads, keep_generators, seed_generators

if TYPE_CHECKING:
    from ...models.buckets import Buckets
    from ...models.task import Data, Task

LOADERS = 2  # one computes while the other waits for a disk, or for a core
MAX_LOADERS = 8  # where training waits for samples though cores are free for those that read them


class Samples(Protocol):
    """Numbered samples, in memory as `Data` or read one by one as `DatasetSamples`."""

    def __len__(self) -> int: ...

    def rows(self, index: Tensor, epochs: Tensor | None = None) -> "Data":
        """Return the samples at `index` (int64 [batch]), as they are in these epochs, by default in epoch 0."""


class DatasetSamples:
    """The samples of one split, from a dataset with `__len__` and `__getitem__`.

    collate: makes a batch of a list of samples. unpack: makes `Data` of that. seed: of the random numbers that samples
    draw. processes: that read beside a process that trains, by default as many as pay off. one_shape: whether all
    batches must have the same sizes, as for a cut model, or only the same dtypes and numbers of dimensions. what: the
    samples are, in words. BadInput where a sample fails, or is unlike the others.
    """

    def __init__(
        self,
        task: "Task",
        split: str,
        dataset: Any,
        *,
        collate: Callable[[list[Any]], Any] = default_collate,
        seed: int = 0,
        processes: int | None = None,
        one_shape: bool = True,
    ) -> None:
        self._dataset, self._seed, self._maker = dataset, seed, BatchMaker(task, split, collate, one_shape=one_shape)
        self.what, self._reads = self._maker.what, SeededReads()
        self._count = len(dataset)
        self.processes = LOADERS if processes is None else processes
        self.max_processes = MAX_LOADERS if processes is None else processes

    def __len__(self) -> int:
        return self._count

    def rows(self, index: Tensor, epochs: Tensor | None = None) -> "Data":
        """Return the samples at `index` (int64 [batch]); see `Samples`."""
        numbers = index.tolist()
        with keep_generators():
            return self.read(0, numbers, [0] * len(numbers) if epochs is None else epochs.tolist())

    def take_first(self, count: int, length: int | None = None) -> "Data":
        """Return the first samples, again and again where there are too few.

        length: of a bucket that they are padded to, by default the longest; see `BatchMaker.choose_fitting`.
        """
        length = self._maker.choose_length(length)
        with keep_generators():
            items = (self._read_one(number) for number in range(self._count))
            fitting = list(self._maker.choose_fitting(items, count, length).items())
        numbers, chosen = zip(*(fitting[place % len(fitting)] for place in range(count)), strict=True)
        return self._join(list(numbers), list(chosen), length)

    def _join(self, numbers: list[int], items: list[Any], length: int | None = None) -> "Data":
        return self._maker.make(items, _list_some(numbers), lambda place: f"sample {numbers[place]}", length=length)

    def read(self, number: int, index: list[int], epochs: list[int]) -> "Data":
        """Return the samples at `index` as they are in these epochs. number: of the batch, which does not matter.

        The generators are not as they were then.
        """
        with blame("E311", self.what):
            count = len(self._dataset)
        if count != self._count:
            facts = f"{self.what} had {self._count} samples when the run began, and has {count} now"
            raise BadInput("E311", facts, fix="let a dataset keep its length while it is trained on")
        seeds = [(self._seed, epoch, number) for number, epoch in zip(index, epochs, strict=True)]
        items = self._reads.read(lambda place: self._get(index[place]), seeds)
        seed_generators(*seeds[0], len(seeds))  # for what collate draws
        return self._join(index, items)

    @property
    def buckets(self) -> "Buckets | None":
        """What pads samples to one of a few lengths, if the task has that."""
        return self._maker.buckets

    def find_buckets(self) -> list[int] | None:
        """Return the bucket of each sample by number, None where the task has none. It may read all samples."""
        from ...models.task import TaskError

        if (buckets := self.buckets) is None:
            return None
        if buckets.sizes is not None and len(buckets.sizes) != self._count:
            facts = f"{self.what} has {self._count} samples, and its buckets have sizes of {len(buckets.sizes)}"
            raise BadInput("E311", facts, fix="give cutset.Buckets the size of each sample, or leave sizes out")
        found = []
        with keep_generators():
            for number in range(self._count):
                sample = None if buckets.sizes is not None else self._read_one(number)
                try:
                    size = buckets.measure(sample) if buckets.sizes is None else buckets.sizes[number]
                    found.append(buckets.choose(size))
                except TaskError as error:
                    raise BadInput("E311", f"sample {number} of {self.what}: {error.facts}", fix=error.fix) from error
        return found

    def _read_one(self, number: int) -> Any:
        """Return a sample as it is in epoch 0."""
        return self._reads.read(lambda place: self._get(number), [(self._seed, 0, number)])[0]

    def _get(self, number: int) -> Any:
        try:
            return self._dataset[number]
        except (Exception, SystemExit):
            with blame("E311", f"sample {number} of {self.what}"):
                raise

    def __repr__(self) -> str:
        return f"DatasetSamples({self.what}, {self._count} samples)"


def wrap_dataset(task: "Task", split: str, found: Any, *, seed: int, one_shape: bool = True) -> DatasetSamples | None:
    """Return the samples of what a task gives for its data; None where that is no dataset. BadInput for some loaders.

    Of a DataLoader its dataset, collate_fn and num_workers count. The order of samples is that of the run.
    """
    own = task.loaders
    if isinstance(found, DataLoader):
        _check_loader(task, split, found)
        processes = (found.num_workers or None) if own is None else own
        dataset, collate = found.dataset, found.collate_fn
        return DatasetSamples(
            task, split, dataset, collate=collate, seed=seed, processes=processes, one_shape=one_shape
        )
    is_dataset = hasattr(found, "__getitem__") and hasattr(found, "__len__")
    if not is_dataset or isinstance(found, str | bytes | Mapping | tuple | Tensor | np.ndarray):
        return None  # a tuple is rather inputs and targets that should be in `Data`
    return DatasetSamples(task, split, found, seed=seed, processes=own, one_shape=one_shape)


def _check_loader(task: "Task", split: str, loader: "DataLoader[Any]") -> None:
    """Refuse what would train on other samples, or in other proportions, than the loader says."""
    facts, sampler, dataset = "", loader.sampler, cast(Any, loader.dataset)
    if not isinstance(sampler, RandomSampler | SequentialSampler):
        facts = f"has a {type(sampler).__name__}; the order of samples is that of the run"
    elif isinstance(sampler, RandomSampler) and (sampler.replacement or len(sampler) != len(dataset)):
        facts = "draws samples with replacement, or not all of them"
    if facts:
        fix = "return the dataset itself, with the samples that shall be trained on"
        raise BadInput("E311", f"the DataLoader for the {split} data of task {task.name} {facts}", fix=fix)


def _list_some(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers[:4])) + (", ..." if len(numbers) > 4 else "")
