"""What a machine is, as its agent tells it: versions of Python, torch and cutset, cores, memory and time."""

import math
import os
import platform
import time
from importlib.metadata import version
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")


def read_versions() -> dict[str, str]:
    """Return the versions by name; those of Python without the last number."""
    python = ".".join(platform.python_version_tuple()[:2])
    return {"python": python, "torch": version("torch").partition("+")[0], "cutset": version("cutset")}


def read_memory() -> int:
    """Return the memory of this host in bytes, or what its container may use of it."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = _read_limit("memory.max").strip()
    return min(physical, int(limit)) if limit.isdigit() else physical


def read_cores() -> int:
    """Return how many cores this process may use, or its container, rounded up."""
    cores = len(os.sched_getaffinity(0))
    quota, _, period = _read_limit("cpu.max").strip().partition(" ")
    return min(cores, math.ceil(int(quota) / int(period))) if quota.isdigit() and period.isdigit() else cores


def _read_limit(name: str) -> str:
    path = CGROUP / name
    return path.read_text(encoding="ascii") if path.is_file() else ""


def read_clock() -> float:
    """Return the seconds since 1970 by the machine's clock, which may jump: to compare it with that of another one."""
    return time.time()
