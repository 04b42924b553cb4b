"""Checks of the sizes that a task's factory is called with, since they may come from the command line."""

from typing import Any

from ..task import TaskError


def check_counts(**sizes: Any) -> None:
    """Raise TaskError unless every one of `sizes` is a whole number of at least 1."""
    for name, size in sizes.items():
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise TaskError(f"{name}={size!r} is not a whole number of at least 1", fix=f"as {name}=4")


def check_count_list(**lists: Any) -> None:
    """Raise TaskError unless every one of `lists` is a list or tuple of at least one whole number of at least 1."""
    for name, sizes in lists.items():
        if not isinstance(sizes, list | tuple) or not sizes:
            raise TaskError(f"{name}={sizes!r} is not a list of whole numbers", fix=f"as {name}=(2,2)")
        for size in sizes:
            check_counts(**{name: size})


def demand_fraction(**fractions: Any) -> None:
    """Raise TaskError unless every one of `fractions` is a number of at least 0 and below 1."""
    for name, fraction in fractions.items():
        if not isinstance(fraction, int | float) or not 0 <= fraction < 1:
            raise TaskError(f"{name}={fraction!r} is not a number of at least 0 and below 1", fix=f"as {name}=0.1")
