"""Run folders with metrics that were written as a run writes them, without a run."""

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from cutset.tools.run_folder import CONFIG
from cutset.tools.tracking.metrics_file import MetricsFile


def make_run_folder(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / CONFIG).write_text("{}")
    return folder


class Clock:
    """Seconds that pass as the test says."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def write_metrics(folder: Path, clock: Clock) -> MetricsFile:
    return MetricsFile(folder, clock=clock, now=clock)


def begin_run(folder: Path, clock: Clock, task: str = "digits") -> MetricsFile:
    """Return the metrics of a run that begins, and has no end but that of the test."""
    file = write_metrics(folder, clock)
    _recordings.append(file.recording(task=task, method="ssp", machines=1, replicas=1, shards=1))
    _recordings[-1].__enter__()
    return file


_recordings = list[AbstractContextManager[None]]()  # which would end when nobody holds them


def worker_status(at_s: float, step: int, **waited: float) -> dict[str, Any]:
    """What a worker says that has waited for so many seconds, and has sent 1000 bytes a step to shard-0."""
    return {
        "at_s": at_s,
        "beat_s": at_s,
        "cpu_s": at_s / 2,
        "rss": 1 << 20,
        "step": step,
        "loss": 1 / (1 + step),
        "waited": {"data": 0.0, "leases": 0.0, "peers": 0.0, "shards": 0.0, **waited},
        "unacknowledged": 1,
        "links": {"shard-0": 1000 * step},
    }
