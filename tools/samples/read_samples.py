"""From a task to the samples of its splits, and to its example batch.

Whatever the user's code does wrong becomes a BadInput that names the line.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...errors import BadInput
from ..blame import blame, with_article

if TYPE_CHECKING:
    from ...models.task import Data, Task
    from .dataset_samples import Samples
    from .part_samples import PartSamples


def read_split(task: "Task", split: str, *, seed: int = 0, one_shape: bool = True) -> "Samples":
    """Return the samples of a split by number; BadInput where the task has none or its files are wrong.

    A stream is read into memory. seed: of the random numbers that the samples of a dataset draw. one_shape: whether all
    batches must have the same sizes, as a cut model needs it.
    """
    return number_samples(task, read_samples(task, split, seed=seed, one_shape=one_shape))


def number_samples(task: "Task", samples: "Samples | PartSamples") -> "Samples":
    """Return samples by number; a stream is read into memory, and its samples are the same in all epochs."""
    from .dataset_samples import DatasetSamples
    from .part_samples import PartSamples

    if not isinstance(samples, PartSamples):
        return samples
    items, one_shape = samples.read_whole(), samples.has_one_shape
    return DatasetSamples(task, samples.split, items, collate=samples.collate, processes=0, one_shape=one_shape)


def read_samples(
    task: "Task", split: str, *, seed: int = 0, parts: int | None = None, one_shape: bool = True
) -> "Samples | PartSamples":
    """Return the samples of a split, a stream in so many `parts` if that is settled; BadInput as `read_split`."""
    from ...models.task import Data
    from .dataset_samples import wrap_dataset
    from .part_samples import wrap_stream

    if task.data is None:
        raise BadInput("E310", f"task {task.name} has no data to train on", fix="return a cutset.Task with data=...")
    with blame("E311", f"data({split!r}) of task {task.name}"):
        found = task.data(split)
        stream = wrap_stream(task, split, found, seed=seed, parts=parts, one_shape=one_shape)
        if stream is not None:
            return stream
        samples = found if isinstance(found, Data) else wrap_dataset(task, split, found, seed=seed, one_shape=one_shape)
    if samples is None:
        raise BadInput(
            "E311",
            f"data({split!r}) of task {task.name} gives {with_article(found)}, not a cutset.Data or a dataset",
            fix="return cutset.Data((inputs,), (targets,)), or a Dataset of torch",
        )
    if not len(samples):
        raise BadInput("E311", f"data({split!r}) of task {task.name} has no samples", fix="give at least one")
    return samples


@dataclass(frozen=True)
class Example:
    """A batch that a task is captured by. samples: of training that it is made of; None where the task gives it."""

    batch: "Data"
    samples: "Samples | PartSamples | None" = None


def read_example(task: "Task", batch: int) -> Example:
    """Return the task's example, or else the first training samples, again and again where there are too few.

    BadInput where the task's code fails.
    """
    if task.example is not None:
        return Example(_call_example(task, task.example, batch))
    if task.data is None:
        raise BadInput("E312", f"task {task.name} has neither an example nor data", fix="give it one of both")
    from .part_samples import take_first

    samples = read_samples(task, "train")
    return Example(take_first(samples, batch), samples)


def example_batch(task: "Task", batch: int) -> "Data":
    """Return the batch of `read_example`."""
    return read_example(task, batch).batch


def _call_example(task: "Task", example: Callable[[int], "Data"], batch: int) -> "Data":
    from ...models.task import Data

    with blame("E312", f"example({batch}) of task {task.name}"):
        found = example(batch)
    if not isinstance(found, Data):
        raise BadInput(
            "E312",
            f"example({batch}) of task {task.name} gives {with_article(found)}, not a cutset.Data",
            fix="return cutset.Data((inputs,), (targets,))",
        )
    if len(found) != batch:
        facts = f"example({batch}) of task {task.name} gives {len(found)} samples"
        raise BadInput("E312", facts, fix="let example(batch) give so many samples as it is asked for")
    return found
