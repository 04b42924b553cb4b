"""What the two ends of a run must have alike: versions of Python, torch and cutset, and about the time."""

import platform
import time
from importlib.metadata import version


def read_versions() -> dict[str, str]:
    """Return the versions by name; those of Python without the last number."""
    python = ".".join(platform.python_version_tuple()[:2])
    return {"python": python, "torch": version("torch").partition("+")[0], "cutset": version("cutset")}


def read_clock() -> float:
    """Return the seconds since 1970 by the machine's clock, which may jump: to compare it with that of another one."""
    return time.time()
