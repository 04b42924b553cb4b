"""The interval of --checkpoint-every: a number of steps, or a time."""

import re
from dataclasses import dataclass

from ...errors import UsageError
from ...ps.methods.method import Method

_INTERVAL = re.compile(r"(\d{1,15})|(\d{1,12}(?:\.\d{1,9})?) ?(s|min|h)", re.ASCII)
UNITS = {"s": 1, "min": 60, "h": 3600}  # seconds


@dataclass(frozen=True)
class CheckpointInterval:
    """How often checkpoints are written.

    steps: steps of each replica between two checkpoints; if they are written by time, each falls on a multiple of this
    number. 0 for the last checkpoint only. seconds: approximate time between two; 0 if they are written by steps.
    """

    steps: int = 0
    seconds: float = 0.0


def _parse(text: int | str) -> CheckpointInterval:
    match = None if isinstance(text, bool) else _INTERVAL.fullmatch(str(text))
    if match is not None and match[1]:
        return CheckpointInterval(steps=int(match[1]))
    seconds = float(match[2]) * UNITS[match[3]] if match is not None else 0.0
    if seconds <= 0:
        facts = f"--checkpoint-every {text}; it must be a number of steps, or a time above 0 in {', '.join(UNITS)}"
        raise UsageError(
            "E293", facts, fix="--checkpoint-every 100, or --checkpoint-every 5min; 0 writes only the last"
        )
    return CheckpointInterval(seconds=seconds)


def parse_interval(text: int | str, method: Method) -> CheckpointInterval:
    """Return the interval of a number of steps, "100", or of a time, "5min".

    UsageError if the text is neither, or if the method does not allow that interval.
    """
    interval = _parse(text)
    if not interval.steps and not interval.seconds:
        return interval
    if not method.pushes_gradients:
        facts = f"method {method.name} pushes no gradients, so the shards cannot tell when a step has ended"
        raise UsageError("E288", facts, fix="leave --checkpoint-every out, or --method sync")
    if interval.seconds:
        return CheckpointInterval(method.push_period, interval.seconds)
    if interval.steps % method.push_period:
        facts = f"--checkpoint-every {interval.steps} falls between two pushes of {method}"
        more = method.push_period * -(-interval.steps // method.push_period)
        raise UsageError("E281", facts, fix=f"a multiple of {method.push_period} steps: --checkpoint-every {more}")
    return interval
