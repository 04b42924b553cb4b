"""A replica's share of a user's DataLoader: every n-th batch, from where an earlier replica was."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, Sampler
from torch.utils.data.distributed import DistributedSampler

from ...errors import BadInput
from ..job.stream_position import LoopPosition
from ..samples.generators import iterate_seeded


class LoopCounts:
    """How many batches a replica has taken, and how often its schedulers were called within the loops over them.

    is_reading: whether a loop over batches is under way.
    """

    def __init__(self) -> None:
        self.batches, self.is_reading = 0, False
        self._schedulers = list[WatchedScheduler]()
        self._to_skip, self._called = 0, list[int]()

    @property
    def calls(self) -> list[int]:
        """How often each scheduler was called within the loops, in the order in which they are watched."""
        return [scheduler.calls for scheduler in self._schedulers]

    def begin_at(self, step: int, position: LoopPosition) -> None:
        """Pass over the batches before a step, and call the schedulers for them as often as they were called."""
        self.batches = self._to_skip = round(step * position.batches)
        self._called = [round(step * rate) for rate in position.scheduled]

    def describe(self, steps: int) -> LoopPosition:
        """Return how the loop goes, after so many steps: within the last one, before the schedulers are called."""
        return LoopPosition(self.batches / max(1, steps), [calls / max(1, steps - 1) for calls in self.calls])

    def skip(self) -> bool:
        """Return whether the next batch is passed over; call the schedulers as its loop did."""
        if not self._to_skip:
            return False
        self._to_skip -= 1
        for scheduler in self._schedulers:
            scheduler.catch_up()
        return True

    def watch(self, scheduler: Any) -> None:
        """Count the calls of a scheduler from now on, which is the object's own `step`."""
        number = len(self._schedulers)
        called = self._called[number] if number < len(self._called) else 0
        self._schedulers.append(WatchedScheduler(scheduler, self, called))


class WatchedScheduler:
    """A scheduler whose calls within the loops are counted, each by itself: one is called for each batch, one never.

    called: how often it was before this process began, while it took as many batches as `counts` has then.
    """

    def __init__(self, scheduler: Any, counts: LoopCounts, called: int) -> None:
        self.calls, self._per_batch, self._due = called, called / max(1, counts.batches), 0.0
        self._step: Callable[..., Any] = scheduler.step

        def step(*arguments: Any, **options: Any) -> Any:
            self.calls += counts.is_reading
            return self._step(*arguments, **options)

        scheduler.step = step

    def catch_up(self) -> None:
        """Call it as often as it was called for a batch that is passed over."""
        self._due += self._per_batch
        while self._due >= 1 - 1e-9:
            self._due -= 1
            self._step()


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
        for number, batch in enumerate(batches):
            if number % self._replicas == self._replica and not self._counts.skip():
                yield batch

    def __len__(self) -> int:
        return len(range(self._replica, len(self._batches), self._replicas))


class _Counted:
    """A loader whose batches are counted; all else is that of the loader."""

    def __init__(self, loader: "DataLoader[Any]", counts: LoopCounts) -> None:
        self._loader, self._counts = loader, counts

    def __iter__(self) -> Iterator[Any]:
        yield from _count(iter(self._loader), self._counts)

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
        own = (b for number, b in enumerate(batches) if number % self._replicas == self._replica)
        yield from _count((batch for batch in own if not self._counts.skip()), self._counts)

    def __len__(self) -> int:
        return len(range(self._replica, len(self._batches), self._replicas))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batches, name)


def _count(batches: Iterator[Any], counts: LoopCounts) -> Iterator[Any]:
    counts.is_reading = True
    try:
        for batch in batches:
            counts.batches += 1
            yield batch
    finally:
        counts.is_reading = False
