"""`BatchMaker`: makes `Data` of a list of samples, and says what is wrong with them in the user's words."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor
from torch.utils._pytree import tree_leaves
from torch.utils.data import default_collate

from ...errors import BadInput
from ..blame import blame

if TYPE_CHECKING:
    from ...models.buckets import Buckets
    from ...models.task import Data, Task

MIN_ALIKE = 2  # samples, for another one to be odd
EXAMINED = 16  # times as many samples as are wanted, to find some that are short
LABELS = ("labels", "label")  # of a batch that is a dict, as Hugging Face has them


class BatchMaker:
    """Makes the batches of one split.

    collate: makes a batch of a list of samples. one_shape: whether all batches must have the same sizes, as for a cut
    model unless there are buckets, or only the same dtypes and numbers of dimensions. what: the samples are, in words.
    """

    def __init__(
        self, task: "Task", split: str, collate: Callable[[list[Any]], Any], *, one_shape: bool = True
    ) -> None:
        self.collate, self._unpack = collate, task.unpack or unpack_batch
        self.what = f"the {split} data of task {task.name}"
        self._form: list[str] | None = None
        self.has_one_shape = one_shape and self.buckets is None

    @property
    def buckets(self) -> "Buckets | None":
        """What pads samples to one of a few lengths, if the task has that."""
        from ...models.buckets import Buckets

        return self.collate if isinstance(self.collate, Buckets) else None

    def choose_length(self, length: int | None) -> int | None:
        """Return a length, by default that of the longest bucket; None where there are no buckets."""
        return length if length is not None or self.buckets is None else self.buckets.lengths[-1]

    def choose_fitting(self, samples: Iterable[Any], count: int, length: int | None) -> dict[int, Any]:
        """Return up to `count` of the first samples by number: those that are no longer than a length.

        Where none of many is so short, they are longer ones, which `make` cuts off.
        """
        if self.buckets is None or length is None or length == self.buckets.lengths[-1]:
            return dict(enumerate(islice(samples, count)))
        fitting, longer = dict[int, Any](), dict[int, Any]()
        for number, sample in enumerate(islice(samples, EXAMINED * count)):
            with blame("E311", f"sample {number} of {self.what}"):
                (fitting if self.buckets.measure(sample) <= length else longer)[number] = sample
            if len(fitting) == count:
                break
        return fitting or dict(islice(longer.items(), count))

    def make(self, items: list[Any], which: str, name: Callable[[int], str], *, length: int | None = None) -> "Data":
        """Return the batch of some samples; BadInput where it fails, or is unlike the one before.

        which: the samples are, in words; name: returns the words for one of them, by its place. length: of a bucket
        that samples are fitted to, by default the smallest that holds them.
        """
        from ...models.task import Data

        buckets = self.buckets
        try:
            with blame("E311", f"the batch of samples {which} of {self.what}"):
                collated = self.collate(items) if buckets is None or length is None else buckets.fit(items, length)
                batch = self._unpack(collated)
        except BadInput as error:
            odd = self._find_odd_one(items, name)
            if odd is None:
                raise
            raise odd from error
        if not isinstance(batch, Data):
            facts = f"unpack of {self.what} gives a {type(batch).__name__}, not a cutset.Data"
            raise BadInput("E311", facts, fix="return cutset.Data((inputs,), (targets,))")
        self._check(batch, items, which, name)
        return batch

    def _find_odd_one(self, items: list[Any], name: Callable[[int], str]) -> BadInput | None:
        """Return an error that names the one sample that is not like the others, where one must be and is not."""
        forms = [_describe_sample(item) for item in items]
        counts = Counter(forms).most_common()
        if self.collate is not default_collate or len(items) < MIN_ALIKE + 1 or [n for _, n in counts[1:]] != [1]:
            return None
        (usual, _), (other, _) = counts
        facts = f"{name(forms.index(other))} of {self.what} is {other}, {name(forms.index(usual))} is {usual}"
        fix = "give all samples one shape and one dtype, or pad them: collate_fn=cutset.PadTo(LENGTH)"
        return BadInput("E311", facts, fix=fix)

    def _check(self, batch: "Data", items: list[Any], which: str, name: Callable[[int], str]) -> None:
        """Raise BadInput where a batch has another form than the one before, or a value that is no number."""
        tensors = (*batch.inputs, *batch.targets)
        form = [describe_form(tensor, exactly=self.has_one_shape) for tensor in tensors]
        if len(batch) != len(items):
            facts = f"{len(items)} samples of {self.what} make a batch of {len(batch)}"
            raise BadInput("E311", facts, fix="let collate and unpack give a row for each sample")
        if self._form is not None and form != self._form:
            facts = f"{self.what} has samples of {' and '.join(form)} ({which}) beside {' and '.join(self._form)}"
            fix = "give all samples one shape and one dtype: collate_fn=cutset.PadTo(LENGTH) pads them"
            raise self._find_odd_one(items, name) or BadInput("E311", facts, fix=fix)
        self._form = form
        for tensor in tensors:
            if tensor.is_floating_point() and not tensor.sum().isfinite():
                finite = tensor.flatten(1).isfinite().all(1) if tensor.dim() > 1 else tensor.isfinite()
                bad = [place for place, is_finite in enumerate(finite.tolist()) if not is_finite]
                if bad:
                    facts = f"{name(bad[0])} of {self.what} has a value that is not finite"
                    raise BadInput("E311", facts, fix="leave it out, or put a number there")


def _describe_sample(sample: Any) -> str:
    """Return dtypes and shapes of what is in a sample, and the types of what is no array."""
    described = Counter[str]()
    for leaf in tree_leaves(sample):
        has_form = isinstance(leaf, Tensor | np.ndarray | np.generic)
        described[
            f"{str(leaf.dtype).removeprefix('torch.')}{list(leaf.shape)}" if has_form else type(leaf).__name__
        ] += 1
    return " and ".join(form if count == 1 else f"{count} x {form}" for form, count in described.items()) or "empty"


def describe_form(tensor: Tensor, *, exactly: bool) -> str:
    """Return dtype and sizes of a tensor whose first dimension is that of samples; or only how many sizes it has."""
    sizes = list(tensor.shape[1:]) if exactly else f"[{tensor.dim() - 1} dimensions]"
    return f"{str(tensor.dtype).removeprefix('torch.')}{sizes}"


def describe_samples(tensors: Sequence[Tensor]) -> str:
    """Return dtypes and sizes of the samples of several tensors, as part of a sentence."""
    return " and ".join(describe_form(tensor, exactly=True) for tensor in tensors) or "none"


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
    if isinstance(batch, Sequence) and not isinstance(batch, str):
        kinds = ", ".join(type(part).__name__ for part in batch)
        facts = f"a batch is a sequence of {kinds}; it must be of tensors, inputs and a target"
    raise TaskError(facts, fix="give the task unpack=..., which makes a cutset.Data of a batch")
