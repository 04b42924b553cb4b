"""`SplitSamples`: the samples that a simulation trains on, and those that it tests on."""

import torch

from ...models.task import Task
from ..samples.dataset_samples import Samples
from ..samples.read_samples import read_split

MAX_SEEN = 5_000


class SplitSamples:
    """The samples of a task that a simulation uses. seen: those of the training samples that tests look at."""

    def __init__(self, train: Samples, test: Samples, *, most: int = MAX_SEEN) -> None:
        self.train, self.test = train, test
        numbers = torch.randperm(len(train), generator=torch.Generator().manual_seed(0))[:most]
        self.seen = train.rows(numbers.sort().values)


def read_samples_of(task: Task) -> SplitSamples:
    """Read the samples of a task; BadInput where it has none, or its files are wrong."""
    return SplitSamples(read_split(task, "train"), read_split(task, "test"))
