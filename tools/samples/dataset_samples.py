"""`DatasetSamples`: the samples of a torch `Dataset`, of a `DataLoader`'s, or of any sequence of samples.

What a sample draws at random, to augment it, depends on the seed, the epoch and its number alone: so a batch is the
same whichever process reads it, and after a restart.
"""

import hashlib
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, RandomSampler, SequentialSampler, default_collate

from ...errors import BadInput
from ..blame import blame

if TYPE_CHECKING:
    from ...models.task import Data, Task

LOADERS = 2  # one computes while the other waits for a disk, or for a core
LABELS = ("labels", "label")  # of a batch that is a dict, as Hugging Face has them


class Samples(Protocol):
    """Numbered samples, in memory as `Data` or read one by one as `DatasetSamples`."""

    def __len__(self) -> int: ...

    def rows(self, index: Tensor, epochs: Tensor | None = None) -> "Data":
        """Return the samples at `index` (int64 [batch]), as they are in these epochs, by default in epoch 0."""


class DatasetSamples:
    """The samples of one split, from a dataset with `__len__` and `__getitem__`.

    collate: makes a batch of a list of samples. unpack: makes `Data` of that. seed: of the random numbers that samples
    draw. processes: that read beside a process that trains. one_shape: whether all batches must have the same sizes, as
    for a cut model, or only the same dtypes and numbers of dimensions. what: the samples are, in words. BadInput where
    a sample fails, or is unlike the others.
    """

    def __init__(
        self,
        task: "Task",
        split: str,
        dataset: Any,
        *,
        collate: Callable[[list[Any]], Any] = default_collate,
        seed: int = 0,
        processes: int = LOADERS,
        one_shape: bool = True,
    ) -> None:
        self._dataset, self._collate, self._seed = dataset, collate, seed
        self._unpack = task.unpack or unpack_batch
        self.what = f"the {split} data of task {task.name}"
        self._count = len(dataset)
        self._form: list[str] | None = None
        self._has_one_shape = one_shape
        self.processes = processes

    def __len__(self) -> int:
        return self._count

    def rows(self, index: Tensor, epochs: Tensor | None = None) -> "Data":
        """Return the samples at `index` (int64 [batch]); see `Samples`."""
        from ...models.task import Data

        with blame("E311", self.what):
            count = len(self._dataset)
        if count != self._count:
            facts = f"{self.what} had {self._count} samples when the run began, and has {count} now"
            raise BadInput("E311", facts, fix="let a dataset keep its length while it is trained on")
        numbers = index.tolist()
        drawn = [0] * len(numbers) if epochs is None else epochs.tolist()
        with _kept_generators():
            items = [self._read(number, epoch) for number, epoch in zip(numbers, drawn, strict=True)]
        with blame("E311", f"the batch of samples {_list_some(numbers)} of {self.what}"):
            batch = self._unpack(self._collate(items))
        if not isinstance(batch, Data):
            facts = f"unpack of {self.what} gives a {type(batch).__name__}, not a cutset.Data"
            raise BadInput("E311", facts, fix="return cutset.Data((inputs,), (targets,))")
        self._check(batch, numbers)
        return batch

    def _read(self, number: int, epoch: int) -> Any:
        digest = hashlib.blake2b(f"{self._seed} {epoch} {number}".encode(), digest_size=8).digest()
        seed = int.from_bytes(digest, "little") >> 1
        random.seed(seed)
        np.random.seed(seed & 0xFFFFFFFF)
        torch.default_generator.manual_seed(seed)
        with blame("E311", f"sample {number} of {self.what}"):
            return self._dataset[number]

    def _check(self, batch: "Data", numbers: Sequence[int]) -> None:
        """Raise BadInput where a batch has another form than the one before, or a value that is no number."""
        tensors = (*batch.inputs, *batch.targets)
        form = [describe_form(tensor, exactly=self._has_one_shape) for tensor in tensors]
        if len(batch) != len(numbers):
            facts = f"{len(numbers)} samples of {self.what} make a batch of {len(batch)}"
            raise BadInput("E311", facts, fix="let collate and unpack give a row for each sample")
        if self._form is not None and form != self._form:
            facts = f"{self.what} has samples of {' and '.join(form)} ({_list_some(numbers)}) beside {self._form}"
            raise BadInput("E311", facts, fix="give all samples one shape: collate_fn=cutset.PadTo(LENGTH)")
        self._form = form
        for tensor in tensors:
            if tensor.is_floating_point() and not tensor.sum().isfinite():
                finite = tensor.flatten(1).isfinite().all(1) if tensor.dim() > 1 else tensor.isfinite()
                bad = [number for number, is_finite in zip(numbers, finite.tolist(), strict=True) if not is_finite]
                if bad:
                    facts = f"sample {bad[0]} of {self.what} has a value that is not finite"
                    raise BadInput("E311", facts, fix="leave it out, or put a number there")

    def __repr__(self) -> str:
        return f"DatasetSamples({self.what}, {self._count} samples)"


def wrap_dataset(task: "Task", split: str, found: Any, *, seed: int, one_shape: bool = True) -> DatasetSamples | None:
    """Return the samples of what a task gives for its data; None where that is no dataset. BadInput for some loaders.

    Of a DataLoader its dataset, collate_fn and num_workers count. The order of samples is that of the run.
    """
    own = task.loaders
    if isinstance(found, DataLoader):
        _check_loader(task, split, found)
        processes = max(1, found.num_workers) if own is None else own
        dataset, collate = found.dataset, found.collate_fn
        return DatasetSamples(
            task, split, dataset, collate=collate, seed=seed, processes=processes, one_shape=one_shape
        )
    is_dataset = hasattr(found, "__getitem__") and hasattr(found, "__len__")
    if not is_dataset or isinstance(found, str | bytes | Mapping | tuple | Tensor | np.ndarray):
        return None  # a tuple is rather inputs and targets that should be in `Data`
    processes = LOADERS if own is None else own
    return DatasetSamples(task, split, found, seed=seed, processes=processes, one_shape=one_shape)


def describe_form(tensor: Tensor, *, exactly: bool) -> str:
    """Return dtype and sizes of a tensor whose first dimension is that of samples; or only how many sizes it has."""
    sizes = list(tensor.shape[1:]) if exactly else f"[{tensor.dim() - 1} dimensions]"
    return f"{str(tensor.dtype).removeprefix('torch.')}{sizes}"


def unpack_batch(batch: Any) -> "Data":
    """Return a collated batch as `Data`: of a sequence the last is the target, of a dict `labels`, and all are inputs.

    A batch that is one tensor has no target.
    """
    from ...models.task import Data, TaskError

    if isinstance(batch, Tensor):
        return Data((batch,), ())
    if isinstance(batch, Mapping):
        labels = [batch[name] for name in LABELS if name in batch]
        named = {name: value for name, value in batch.items() if isinstance(value, Tensor)}
        return Data(tuple(named.values()), tuple(labels[:1]), tuple(named))
    if isinstance(batch, Sequence) and len(batch) > 1 and all(isinstance(part, Tensor) for part in batch):
        return Data(tuple(batch[:-1]), (batch[-1],))
    facts = f"a batch is a {type(batch).__name__}, neither a dict nor a sequence of inputs and a target"
    raise TaskError(facts, fix="give the task unpack=..., which makes a cutset.Data of a batch")


def _check_loader(task: "Task", split: str, loader: "DataLoader[Any]") -> None:
    """Refuse what would train on other samples, or in other proportions, than the loader says."""
    facts, sampler, dataset = "", loader.sampler, cast(Any, loader.dataset)
    if isinstance(dataset, torch.utils.data.IterableDataset):
        facts = "reads an IterableDataset, which has no numbered samples"
    elif not isinstance(sampler, RandomSampler | SequentialSampler):
        facts = f"has a {type(sampler).__name__}; the order of samples is that of the run"
    elif isinstance(sampler, RandomSampler) and (sampler.replacement or len(sampler) != len(dataset)):
        facts = "draws samples with replacement, or not all of them"
    if facts:
        fix = "return the dataset itself, with the samples that shall be trained on"
        raise BadInput("E311", f"the DataLoader for the {split} data of task {task.name} {facts}", fix=fix)


@contextmanager
def _kept_generators() -> Iterator[None]:
    """Leave the generators of Python, numpy and torch as they were."""
    python, array = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(array)


def _list_some(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers[:4])) + (", ..." if len(numbers) > 4 else "")
