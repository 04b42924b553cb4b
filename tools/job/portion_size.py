"""How many samples a portion of a batch method has, where nobody says it: the same for any number of replicas."""

from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from ...models.task import Task
from ...errors import UsageError
from ...ps.sandblaster.solver import Portions
from ...ps.methods.sandblaster import PORTIONS, Sandblaster
from ..task.load_task import read_split

if TYPE_CHECKING:
    from .prepare import Options, Prepared

FOLDER = "batch"  # of the run folder: the coordinator's log, and what shards have at its commits


def with_portions(options: "Options", task: Task) -> "Options":
    """The options of a run by a batch method, with the samples of a portion, and what it goes on from."""
    if not isinstance(options.method, Sandblaster):
        return options
    if options.resume is not None and not (options.resume / FOLDER).is_dir():
        facts = f"{options.resume} has no folder {FOLDER!r}, in which a run by sandblaster leaves what it has done"
        raise UsageError("E295", facts, fix=f"--init {options.resume}, to begin with its weights")
    if options.spec.batch is not None or options.placement is not None:
        return options
    size = portion(len(read_split(task, "train")), task.batch, options.wanted.micro_batches)
    return replace(options, spec=msgspec.structs.replace(options.spec, batch=size))


def portion(samples: int, least: int, multiple: int = 1) -> int:
    """So many, a multiple of this, that few samples are over: a cut model takes whole portions alone.

    At least so many, and so many that there are no more than `PORTIONS`.
    """
    least = min(samples, max(least, -(-samples // PORTIONS)))
    least = -(-least // multiple) * multiple
    return min(range(least, max(least, min(2 * least, samples)) + 1, multiple), key=lambda size: (samples % size, size))


def portions_of(job: "Prepared") -> Portions:
    """Those of a run: of all samples, where the model is cut of as many as make whole portions."""
    size, samples = job.course.batch, job.course.samples
    return Portions(samples // size * size if job.programs else samples, size)


def left_out(job: "Prepared") -> list[str]:
    """In words, the samples that a cut model does not see."""
    size, samples = job.course.batch, job.course.samples
    if not job.programs or not samples % size:
        return []
    return [f"The last {samples % size} of {samples} samples are left out: a cut model takes portions of {size}."]
