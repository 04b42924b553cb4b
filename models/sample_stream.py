"""`SampleStream`: which samples each global batch holds, which every process computes alike from the seed."""

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor

from .buckets import arrange_by_bucket
from .task import TaskError

EPOCHS_KEPT = 4


class SampleStream:
    """Epoch after epoch of `count` samples, each a fresh permutation drawn from `seed`, cut into batches of `batch`.

    Every batch is full: it may reach over the end of an epoch. Access is random: a replica that takes every fourth
    batch asks for those alone. buckets: of which bucket each sample is, where batches shall be of one each. first: how
    many samples come before batch 0, as batches had another size, or came in other numbers, before.
    """

    def __init__(
        self, count: int, *, batch: int, seed: int, buckets: Sequence[int] | None = None, first: int = 0
    ) -> None:
        if count < 1 or batch < 1:
            raise TaskError(
                f"a stream needs samples and a batch of at least 1, got {count} samples, batch {batch}",
                fix="check the training data and the batch size",
            )
        self.count = count
        self.batch = batch
        self.seed = seed
        self._first = first
        self._buckets = None if buckets is None else torch.tensor(buckets)
        self._permutations: dict[int, Tensor] = {}

    def __repr__(self) -> str:
        return f"SampleStream({self.count}, batch={self.batch}, seed={self.seed})"

    def steps(self, epochs: int) -> int:
        """Return the number of whole batches in `epochs` epochs; samples after the last whole batch are left out."""
        return epochs * self.count // self.batch

    def indices(self, step: int) -> Tensor:
        """Return the numbers of the samples of global batch `step` (from 0): int64 [batch]."""
        if step < 0:
            raise IndexError(f"batches are numbered from 0, got {step}")
        start = self._first + step * self.batch
        end = start + self.batch
        parts = []
        while start < end:
            epoch, first = divmod(start, self.count)
            last = min(self.count, first + end - start)
            parts.append(self._permutation(epoch)[first:last])
            start += last - first
        return torch.cat(parts)

    def epochs(self, step: int) -> Tensor:
        """Return the epochs of the samples of global batch `step`: int64 [batch]."""
        return torch.arange(self.batch).add_(self._first + step * self.batch) // self.count

    def _permutation(self, epoch: int) -> Tensor:
        if epoch not in self._permutations:
            while len(self._permutations) >= EPOCHS_KEPT:
                self._permutations.pop(next(iter(self._permutations)))
            generator = _generator(self.seed, epoch)
            drawn = torch.randperm(self.count, generator=generator)
            if self._buckets is not None:
                head = (self._first - epoch * self.count) % self.batch
                drawn = arrange_by_bucket(drawn, self._buckets, batch=self.batch, head=head, generator=generator)
            self._permutations[epoch] = drawn
        return self._permutations[epoch]


def _generator(seed: int, epoch: int) -> torch.Generator:
    """Return a generator for one epoch. The seed is hashed, so that seed 1 does not repeat seed 0 an epoch later."""
    digest = hashlib.sha256(f"{seed} {epoch}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
