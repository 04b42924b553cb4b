"""`Buckets`: a `collate_fn` that pads samples to one of a few lengths, and batches of samples of about one length."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import default_collate

from .padding import pad_tensor
from .task import TaskError

FIRST: Mapping[int | str, float] = MappingProxyType({0: 0.0})


class Buckets:
    """Pads the samples of a batch to the smallest of some lengths that holds all of them, and joins them.

    lengths: in elements of the first dimension. pad: by number or name, the parts of a sample that vary together, and
    what each is filled up with, such as -100 for labels that the loss ignores; by default the first part, with 0.
    sizes: how long the samples of the dataset are, by number; without, each is read once when training begins.
    measured: also give how long each was, int64 [batch], as an input after the first padded part, or as "lengths".
    """

    def __init__(
        self,
        lengths: Sequence[int],
        *,
        pad: Mapping[int | str, float] = FIRST,
        sizes: Sequence[int] | None = None,
        measured: bool = False,
    ) -> None:
        if not lengths or min(lengths) < 1 or not pad:
            fix = 'cutset.Buckets([20, 40, 80], pad={"input_ids": 0, "labels": -100})'
            raise TaskError(f"samples cannot be padded to {list(lengths)} in parts {list(pad)}", fix=fix)
        self.lengths, self._pad, self.sizes, self._measured = sorted(set(lengths)), dict(pad), sizes, measured

    def __call__(self, samples: Sequence[Any]) -> Any:
        """Return a batch of samples, each a tuple, a dict or one tensor."""
        return self.fit(samples, self.lengths[self.choose(max(map(self.measure, samples)))])

    def fit(self, samples: Sequence[Any], length: int) -> Any:
        """Return a batch of samples that are padded to one of the lengths or, where they are longer, cut off.

        TaskError where a sample is longer than all of them.
        """
        sizes, first = [self.measure(sample) for sample in samples], samples[0]
        self.choose(max(sizes))
        measured = torch.tensor([min(size, length) for size in sizes])
        if isinstance(first, Mapping):
            padded = [{n: self._fit(n, part, length) for n, part in sample.items()} for sample in samples]
            return {**default_collate(padded), **({"lengths": measured} if self._measured else {})}
        if not isinstance(first, Sequence):
            joined = torch.stack([self._fit(0, sample, length) for sample in samples])
            return (joined, measured) if self._measured else joined
        filled = [tuple(self._fit(n, part, length) for n, part in enumerate(sample)) for sample in samples]
        parts, place = list(default_collate(filled)), int(next(iter(self._pad))) + 1
        return (*parts[:place], *([measured] if self._measured else []), *parts[place:])

    def measure(self, sample: Any) -> int:
        """Return how long a sample is: the first of the parts that vary. TaskError where another differs from it."""
        named: Any = sample  # a dict by name, a tuple by number
        parts = [named[name] for name in self._pad] if isinstance(sample, Mapping | Sequence) else [sample]
        found = [len(part) for part in parts]
        if len(set(found)) > 1:
            facts = f"the parts {list(self._pad)} of a sample are {found} elements long"
            raise TaskError(facts, fix="give parts of one length, or pad those alone that vary together")
        return found[0]

    def choose(self, size: int) -> int:
        """Return the number of the smallest length that holds a sample of this size. TaskError where none does."""
        for number, length in enumerate(self.lengths):
            if size <= length:
                return number
        facts = f"a sample of {size} elements is longer than {self.lengths[-1]}, the longest that samples are padded to"
        raise TaskError(facts, fix="add a length that holds it, or cut longer samples off")

    def _fit(self, name: int | str, part: Any, length: int) -> Any:
        return pad_tensor(part[:length], (length,), self._pad[name]) if name in self._pad else part

    def __repr__(self) -> str:
        return f"Buckets({self.lengths}, pad={self._pad})"


def arrange_by_bucket(drawn: Tensor, buckets: Tensor, *, batch: int, head: int, generator: torch.Generator) -> Tensor:
    """Return the samples of an epoch in an order whose batches are of one bucket each, as far as that goes.

    drawn: a permutation, int64 [samples]. buckets: the bucket of each sample by number. head: how many samples complete
    a batch that the epoch before has begun. What is left of a bucket, fewer than a batch, joins the next longer one; a
    batch that reaches over the end of an epoch is of the longest. The order of batches is drawn from the generator.
    """
    ordered = drawn[torch.argsort(buckets[drawn], stable=True)]
    whole = max(0, len(drawn) - head) // batch  # batches within the epoch
    inner, border = ordered[: whole * batch], ordered[whole * batch :]
    mixed = inner.view(whole, batch)[torch.randperm(whole, generator=generator)].flatten()
    return torch.cat([border[:head], mixed, border[head:]])
