"""A replica's share of a user's DataLoader: every n-th batch, from where an earlier replica was."""

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, Sampler
from torch.utils.data.distributed import DistributedSampler

from ...errors import BadInput
from ..samples.generators import iterate_seeded
from .loop_counts import LoopCounts
from .loop_passes import PassWindow


def share_loader(loader: Any, replica: int, replicas: int, *, seed: int, counts: LoopCounts) -> Any:
    """Return an iterable over every n-th batch of a DataLoader, or of any other iterable over batches.

    Of a DataLoader each replica reads its share alone. What decides on the order, a sampler or an iterable of the
    user's, draws the same in all replicas, by the seed and the epoch, unless it has a generator of its own. BadInput
    E362 where it divides the data among processes itself.
    """
    if not isinstance(loader, DataLoader):
        return _SharedBatches(loader, replica, replicas, seed, counts)
    if isinstance(loader.sampler, DistributedSampler):
        facts = "the DataLoader has a DistributedSampler, which divides the samples; run.prepare divides the batches"
        raise BadInput("E362", facts, fix="leave the sampler out: DataLoader(..., shuffle=True)")
    if isinstance(loader.dataset, IterableDataset) or loader.batch_sampler is None:
        return _SharedBatches(loader, replica, replicas, seed, counts)
    same = ("num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn", "generator", "prefetch_factor")
    share: DataLoader[Any] = DataLoader(
        loader.dataset,
        batch_sampler=_ShareOfSampler(loader, replica, replicas, seed, counts),
        multiprocessing_context=loader.multiprocessing_context,
        persistent_workers=loader.persistent_workers,
        **{name: getattr(loader, name) for name in same},
    )
    return _Counted(share, counts)


class _ShareOfSampler(Sampler[list[int]]):
    """Every n-th batch of a loader's sampler."""

    def __init__(self, loader: "DataLoader[Any]", replica: int, replicas: int, seed: int, counts: LoopCounts) -> None:
        self._batches: Any = loader.batch_sampler
        self._replica, self._replicas, self._seed, self._counts = replica, replicas, seed, counts
        self._sampler = loader.sampler
        self._is_seeded = getattr(loader.sampler, "generator", self) is None  # it has one, and none was given
        self._epoch = 0

    def __iter__(self) -> Iterator[list[int]]:
        if self._is_seeded:
            drawn = torch.Generator().manual_seed(self._seed + self._epoch)
            self._sampler.generator = drawn  # type: ignore[attr-defined]
        batches, self._epoch = iterate_seeded(self._batches, self._seed, self._epoch), self._epoch + 1
        yield from _share(batches, self._replica, self._replicas, self._counts.window)

    def __len__(self) -> int:
        return len(range(self._replica, len(self._batches), self._replicas))


class _Counted:
    """A loader whose batches are counted; all else is that of the loader."""

    def __init__(self, loader: "DataLoader[Any]", counts: LoopCounts) -> None:
        self._loader, self._counts = loader, counts

    def __iter__(self) -> Iterator[Any]:
        yield from self._counts.iterate(lambda: iter(self._loader))

    def __len__(self) -> int:
        return len(self._loader)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


class _SharedBatches:
    """Every n-th batch of an iterable, of which all are read."""

    def __init__(self, batches: Any, replica: int, replicas: int, seed: int, counts: LoopCounts) -> None:
        self._batches, self._replica, self._replicas, self._counts = batches, replica, replicas, counts
        self._seed, self._epoch = seed, 0

    def __iter__(self) -> Iterator[Any]:
        batches, self._epoch = iterate_seeded(self._batches, self._seed, self._epoch), self._epoch + 1
        share = partial(_share, batches, self._replica, self._replicas)
        yield from self._counts.iterate(lambda: share(self._counts.window))

    def __len__(self) -> int:
        return len(range(self._replica, len(self._batches), self._replicas))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batches, name)


def _share(batches: Iterable[Any], replica: int, replicas: int, window: PassWindow) -> Iterator[Any]:
    """Yield what a window gives of a replica's batches; read no more of them than the loop did that left the pass."""
    own = 0
    for number, batch in enumerate(batches):
        if number % replicas != replica:
            continue
        if window.gives(own):
            yield batch
        own += 1
        if own == window.last:
            return
