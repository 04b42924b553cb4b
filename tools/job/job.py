"""What each worker of a prepared job is told as it starts."""

import msgspec

from ...ps.slices.slicing import of_machine
from .run_config import WorkerSetup
from .prepare import Prepared


def worker_setup(job: Prepared, replica: int, machine: int, times: int, first: int = 0) -> WorkerSetup:
    """Of one machine of a replica that was started again so many times; first: see `WorkerSetup`."""
    return WorkerSetup(
        course=job.course,
        replica=replica,
        machine=machine,
        machines=job.machines,
        program=msgspec.msgpack.encode(job.programs[machine]) if job.programs else b"",
        evaluation=msgspec.msgpack.encode(job.evaluations[machine]) if job.programs else b"",
        slices=of_machine(job.slices, machine),
        method=job.options.method,
        rule=job.options.rule,
        times=times,
        first=max(first, job.course.first),
        compression=job.options.compression,
        regions=job.regions[machine] if job.course.memories else [],
    )
