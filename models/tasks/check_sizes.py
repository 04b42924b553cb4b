"""Checks of the sizes that a task's factory is called with, since they may come from the command line."""

from typing import Any

from ..task import TaskError


def check_counts(**sizes: Any) -> None:
    """TaskError unless every one of `sizes` is a whole number of at least 1."""
    for name, size in sizes.items():
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise TaskError(f"{name}={size!r} is not a whole number of at least 1", fix=f"as {name}=4")


def check_count_list(**lists: Any) -> None:
    """TaskError unless every one of `lists` is a list or tuple of such numbers, with one at least."""
    for name, sizes in lists.items():
        if not isinstance(sizes, list | tuple) or not sizes:
            raise TaskError(f"{name}={sizes!r} is not a list of whole numbers", fix=f"as {name}=(2,2)")
        for size in sizes:
            check_counts(**{name: size})


def demand_fraction(**shares: Any) -> None:
    """TaskError unless every one of `shares` is a number from 0 to below 1."""
    for name, share in shares.items():
        if not isinstance(share, int | float) or not 0 <= share < 1:
            raise TaskError(f"{name}={share!r} is not a number from 0 to below 1", fix=f"as {name}=0.1")
