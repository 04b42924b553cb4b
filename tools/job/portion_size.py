"""Portions of a batch method: how many samples one has where nothing says it, alike for any number of replicas."""

from pathlib import Path

from ...errors import UsageError
from ...ps.methods.sandblaster import MAX_PORTIONS
from ...ps.sandblaster.solver import Portions
from .job import Job

FOLDER = "batch"  # of the run folder: the coordinator's log, and what shards have at its commits


def check_resumable(resume: Path | str | None) -> None:
    """Raise UsageError where a run by a batch method cannot resume from a run folder, as no such run has left it."""
    if resume is not None and not (Path(resume) / FOLDER).is_dir():
        facts = f"{resume} has no folder {FOLDER!r}, in which a run by sandblaster leaves what it has done"
        raise UsageError("E295", facts, fix=f"--init {resume}, to begin with its weights")


def choose_portion_size(samples: int, minimum: int, multiple: int = 1) -> int:
    """Return a size of portions that leaves few samples over, as a cut model takes whole portions alone.

    It is a multiple of `multiple`, at least `minimum`, and so large that there are at most `MAX_PORTIONS` portions.
    """
    minimum = min(samples, max(minimum, -(-samples // MAX_PORTIONS)))
    minimum = -(-minimum // multiple) * multiple
    sizes = range(minimum, max(minimum, min(2 * minimum, samples)) + 1, multiple)
    return min(sizes, key=lambda size: (samples % size, size))


def portions_of_job(job: Job) -> Portions:
    """Return the portions of a run: of all samples, or, where the model is cut, of as many as make whole portions."""
    size, samples = job.training.batch, job.training.samples
    return Portions(samples // size * size if job.programs else samples, size)


def describe_left_out(job: Job) -> list[str]:
    """Return a remark on the samples that a cut model does not see, if there are any."""
    size, samples = job.training.batch, job.training.samples
    if not job.programs or not samples % size:
        return []
    return [f"The last {samples % size} of {samples} samples are left out: a cut model takes portions of {size}."]
