"""`Interval`: what lies between two checkpoints of a run that trains - steps of each replica, or seconds.

`--checkpoint-every 50` and `--checkpoint-every 5min`, as text or as a number, are read here, and checked against the
method.
"""

import re
from dataclasses import dataclass

from ...errors import UsageError
from ...ps.methods.method import Method

UNITS = {"s": 1, "min": 60, "h": 3600}  # seconds
_SPELLED = re.compile(r"(\d{1,15})|(\d{1,12}(?:\.\d{1,9})?) ?(s|min|h)", re.ASCII)


@dataclass(frozen=True)
class Interval:
    """steps: of each replica; where checkpoints go by time they are made at multiples of so many. 0 for none but the
    last. seconds: between two, about; 0 where they go by steps."""

    steps: int = 0
    seconds: float = 0.0


def interval(given: int | str, method: Method) -> Interval:
    """What is asked for; UsageError where that is none, or is nothing that goes with the method."""
    found = _read(given)
    if not found.steps and not found.seconds:
        return found
    if not method.pushes:
        facts = f"method {method.name} pushes nothing, so shards do not know when a step is made"
        raise UsageError("E288", facts, fix="leave --checkpoint-every out, or --method sync")
    if found.seconds:
        return Interval(method.period, found.seconds)
    if found.steps % method.period:
        facts = f"--checkpoint-every {found.steps} ends between two pushes of {method}"
        more = method.period * -(-found.steps // method.period)
        raise UsageError("E281", facts, fix=f"a multiple of {method.period} steps: --checkpoint-every {more}")
    return found


def _read(given: int | str) -> Interval:
    spelled = None if isinstance(given, bool) else _SPELLED.fullmatch(str(given))
    if spelled is not None and spelled[1]:
        return Interval(steps=int(spelled[1]))
    seconds = float(spelled[2]) * UNITS[spelled[3]] if spelled is not None else 0.0
    if seconds <= 0:
        facts = f"--checkpoint-every {given}; it is a number of steps, or a time of more than 0 in {', '.join(UNITS)}"
        raise UsageError("E293", facts, fix="--checkpoint-every 100, or --checkpoint-every 5min; 0 for none")
    return Interval(seconds=seconds)
