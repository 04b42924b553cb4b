"""What a `LivenessMonitor` knows of a run: `Member`s and `Suspicion`s, and what it makes of them, a `Loss`."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...errors import CutsetError
from ..channel.message import LAUNCHER
from ..channel.zmq_channel import SIDE


@dataclass(frozen=True)
class Limits:
    """How long things may take, in seconds.

    start: until every role is ready. heartbeat: between two heartbeats, else the role is lost. progress: between two
    changes of a role's progress, else it is stuck. overdue: a silence after which a role may be the cause of others'
    errors. grace: the wait for a better cause of an error. exit: from the end of a role's work to that of its process,
    which is killed then.
    """

    start_s: float = 60.0
    heartbeat_s: float = 5.0
    progress_s: float = 120.0
    overdue_s: float = 1.5
    grace_s: float = 1.0
    exit_s: float = 15.0


@dataclass(frozen=True)
class Loss:
    """A group of roles that has to be ended and started again. progress: the last one that each role reported."""

    group: str
    error: CutsetError
    progress: dict[str, int | str | None]


@dataclass
class Member:
    """What is known of one role.

    state: "starting", "ready", "running", then "finished" (it reported so) and "gone" (its process ended, too), or
    "failed" (it reported an error) or "lost" (its process ended without a report), or "replaced" (its group was lost,
    or it was not needed any more).
    """

    name: str
    group: str = ""
    began: float = 0.0
    endpoint: str = ""
    state: str = "starting"
    returncode: int | None = None
    value: Any = None
    progress: int | str | None = None  # the last that it reported
    status: Mapping[str, Any] | None = None  # of its last heartbeat
    reports_progress: bool = False  # whether its last heartbeat had a progress
    progress_at: float = 0.0
    heard_at: float = 0.0  # when it was known to live last
    spoke_at: float = 0.0  # when its last heartbeat came, less what it had to wait for a CPU

    def last_progress(self) -> str:
        return f"its last progress was {self.progress!r}" if self.progress is not None else "it reported no progress"


@dataclass(frozen=True)
class Suspicion:
    """A failure that may be the consequence of another; it becomes a verdict or a loss at `due`.

    names: roles that may still explain it. rank: a better cause has a higher one. connection: whether it is a broken
    connection, which counts only while both its ends run.
    """

    names: tuple[str, ...]
    error: CutsetError
    due: float
    rank: int
    connection: bool = False


def check_names(names: Sequence[str]) -> None:
    """Raise ValueError unless every role has a name of its own, that may be part of a sender's and a file's name."""
    counts = Counter(names)
    bad = [name for name in names if name == LAUNCHER or SIDE in name or "/" in name or counts[name] > 1]
    if bad or not names:
        raise ValueError(
            f"roles need names of their own, without {SIDE!r} and '/', and not {LAUNCHER!r}: {bad or names}"
        )
