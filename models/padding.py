"""`PadTo`: a `collate_fn` for samples of various lengths, which a cut model wants to have one."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import default_collate

from .task import TaskError


class PadTo:
    """Fills samples up to one length, along the first dimension of one part of each, and joins them to a batch.

    length: of all of them, in elements of that dimension. part: the number or name of the part of a sample that varies.
    value: what they are filled up with. lengths: also give how long each was, int64 [batch], as an input after that
    part, or under the name "lengths". A length may also be several, the sizes of the first dimensions.
    """

    def __init__(self, *length: int, part: int | str = 0, value: float = 0.0, lengths: bool = False) -> None:
        if not length or min(length) < 1:
            raise TaskError(f"samples cannot be padded to {length}", fix="cutset.PadTo(80), for 80 elements")
        self._sizes, self._part, self._value, self._lengths = length, part, value, lengths

    def __call__(self, samples: Sequence[Any]) -> Any:
        """Return a batch of samples, each a tuple, a dict or one tensor."""
        first = samples[0]
        if isinstance(first, Mapping):
            padded = [{**sample, self._part: self._fill(sample[self._part])} for sample in samples]
            found = [sample[self._part] for sample in samples]
            more = {"lengths": self._measure(found)} if self._lengths else {}
            return {**default_collate(padded), **more}
        if not isinstance(first, Sequence):
            batch = torch.stack([self._fill(sample) for sample in samples])
            return (batch, self._measure(samples)) if self._lengths else batch
        place = int(self._part)
        found = [sample[place] for sample in samples]
        filled = [(*sample[:place], self._fill(sample[place]), *sample[place + 1 :]) for sample in samples]
        parts = list(default_collate(filled))
        return (*parts[: place + 1], *([self._measure(found)] if self._lengths else []), *parts[place + 1 :])

    def _fill(self, sample: Any) -> Tensor:
        return pad_tensor(sample, self._sizes, self._value)

    @staticmethod
    def _measure(samples: Sequence[Any]) -> Tensor:
        return torch.tensor([len(sample) for sample in samples])

    def __repr__(self) -> str:
        return f"PadTo({', '.join(map(str, self._sizes))}, part={self._part!r})"


def pad_tensor(sample: Any, sizes: tuple[int, ...], value: float) -> Tensor:
    """Return what a sample holds, its first dimensions filled up to these sizes. TaskError where it is longer."""
    tensor = torch.as_tensor(sample)
    count = len(sizes)
    if tensor.dim() < count or any(size > most for size, most in zip(tensor.shape, sizes, strict=False)):
        facts = f"a sample of shape {list(tensor.shape)} is longer than {list(sizes)}, to which it is padded"
        raise TaskError(facts, fix="pad to the longest, or cut longer ones off")
    padded = tensor.new_full((*sizes, *tensor.shape[count:]), value)
    padded[tuple(slice(size) for size in tensor.shape[:count])] = tensor
    return padded
