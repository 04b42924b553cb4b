"""Finds leaf modules for a model that cannot be traced as it is: as small as can be, from the line that fails outwards.

A branch on a value, or anything else that a trace cannot show, is then computed whole, by the user's own code. Where no
module suits, the loss, the model or the whole step is one operator: never cut, always right.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

from ...errors import BadInput
from ..operators.step_module import LOSS, MODEL, PARTS, STEP
from .tracing_error import Untraceable

MAX_ATTEMPTS = 24  # captures in search of leaf modules that help

T = TypeVar("T")


def capture_by_leaf_modules(
    attempt: Callable[[tuple[str, ...]], T], leaf_modules: Sequence[str]
) -> tuple[T, tuple[str, ...], Untraceable | None]:
    """Return what `attempt` returns with these leaf modules, or with the least more with which it can be traced.

    attempt: captures the model with leaf modules, and raises BadInput where it cannot. Returned with it are the leaf
    modules, and the error in whose stead there are more than were asked for, if there are. Raises that error where
    nothing helps.
    """
    try:
        return attempt(tuple(leaf_modules)), tuple(leaf_modules), None
    except Untraceable as error:
        first = error
    accepted, candidates = tuple(leaf_modules), _list_candidates(first)
    for _ in range(MAX_ATTEMPTS):
        if not candidates:
            break
        candidate = candidates.pop(0)
        is_part = candidate[0] in PARTS
        tried = (*(leaf_modules if is_part else accepted), *candidate)
        try:
            return attempt(tried), tried, first
        except Untraceable as again:
            if not is_part:
                accepted, candidates = tried, _list_candidates(again)
        except BadInput:  # this module does not suit; the one around it may
            continue
    raise first.without_solution() from first


def _list_candidates(error: Untraceable) -> list[tuple[str, ...]]:
    """Return leaf modules that may help, the smallest first. Where no module has failed, the loss may have.

    Where several modules fail, each for itself, all of them are the first to be tried.
    """
    all_that_fail = [(*error.globs[:1], *error.other_globs)] if error.globs and error.other_globs else []
    outwards = [*error.globs, *(() if error.globs else (LOSS,)), MODEL, STEP]
    return [*all_that_fail, *((one,) for one in outwards)]
