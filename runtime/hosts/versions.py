"""What the two ends of a run must have alike: versions of Python, torch and cutset."""

import platform
from importlib.metadata import version


def read_versions() -> dict[str, str]:
    """Return the versions by name; those of Python without the last number."""
    python = ".".join(platform.python_version_tuple()[:2])
    return {"python": python, "torch": version("torch").partition("+")[0], "cutset": version("cutset")}
