"""Schedules as data: in what order a machine computes its part of the micro-batches of a step. They print and parse.

"2F0 1B3 2W3" is: forward of segment 2 of micro-batch 0, then backward of segment 1 of micro-batch 3, then the gradients
of parameters that backward of its segment 2 left for later; segments are counted within the machine's own program.
Without a schedule a worker runs in dataflow order: what is ready, backward first.

GPipe: Huang et al., NeurIPS 2019, section 2.3. 1F1B: Narayanan et al., PipeDream, SOSP 2019, section 3.2.
"""

import re
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from ...errors import UsageError
from ...partition.dataflow.deferred_gradients import order_backward

DATAFLOW, GPIPE, ONE_F_ONE_B = "dataflow", "gpipe", "1f1b"
NAMES = (DATAFLOW, GPIPE, ONE_F_ONE_B)
FORWARD, BACKWARD, WEIGHTS = "F", "B", "W"
_ACTION = re.compile(r"(\d+)([FBW])(\d+)")
Deferred = Mapping[int, int]  # segments that leave gradients for later, each with the one after whose backward
NOTHING: Deferred = MappingProxyType({})


class Action(NamedTuple):
    """Forward or backward of one segment of one micro-batch, or the gradients of parameters that it left for later."""

    segment: int
    kind: str
    micro: int

    def __str__(self) -> str:
        return f"{self.segment}{self.kind}{self.micro}"


def format_schedule(actions: Iterable[Action]) -> str:
    """Write a schedule as text, which `parse_schedule` reads."""
    return " ".join(map(str, actions))


def parse_schedule(text: str) -> list[Action]:
    """Read a schedule; UsageError names a word that is no action."""
    actions = []
    for word in text.split():
        match = _ACTION.fullmatch(word)
        if match is None:
            raise UsageError(
                "E270",
                f"{word!r} is no action of a schedule",
                fix="write 2F0 for a forward, 1B3 for a backward, 1W3 for what it left",
            )
        actions.append(Action(int(match[1]), match[2], int(match[3])))
    return actions


def schedule(
    name: str, *, segments: int, micros: int, depth: int, deferred: Deferred = NOTHING
) -> deque[Action] | None:
    """The named schedule of a machine; None for dataflow, which is decided as messages arrive.

    segments: of the machine; micros: micro-batches of a step; depth: see `Program.depth`. deferred: see `Deferred`.
    """
    if name == DATAFLOW:
        return None
    if name == GPIPE:
        return deque(gpipe(segments, micros, deferred))
    if name == ONE_F_ONE_B:
        return deque(one_forward_one_backward(segments, micros, depth, deferred))
    raise UsageError("E271", f"no schedule {name!r}; there are {', '.join(NAMES)}", fix=f"--schedule {DATAFLOW}")


def gpipe(segments: int, micros: int, deferred: Deferred = NOTHING) -> list[Action]:
    """All micro-batches forward, then all backward (GPipe): simple, but the activations of all are held at once."""
    ahead = [action for micro in range(micros) for action in _forward(segments, micro)]
    return ahead + [action for micro in range(micros) for action in _backward(segments, micro, deferred)]


def one_forward_one_backward(segments: int, micros: int, depth: int, deferred: Deferred = NOTHING) -> list[Action]:
    """As many micro-batches forward as there are pipeline stages from here on, then one backward, one forward (1F1B).

    A machine never holds the activations of more than `depth` micro-batches.
    """
    ahead = min(depth, micros)
    actions = [action for micro in range(ahead) for action in _forward(segments, micro)]
    for micro in range(micros):
        actions += _backward(segments, micro, deferred)
        if micro + ahead < micros:
            actions += _forward(segments, micro + ahead)
    return actions


def count_in_flight(actions: Iterable[Action]) -> int:
    """The largest number of micro-batches that are begun and not finished at one time."""
    order = list(actions)
    left = Counter(action.micro for action in order)
    begun, peak = set[int](), 0
    for action in order:
        begun.add(action.micro)
        peak = max(peak, len(begun))
        left[action.micro] -= 1
        if not left[action.micro]:
            begun.discard(action.micro)
    return peak


def _forward(segments: int, micro: int) -> list[Action]:
    return [Action(segment, FORWARD, micro) for segment in range(segments)]


def _backward(segments: int, micro: int, deferred: Deferred) -> list[Action]:
    order = order_backward(range(segments), deferred)
    return [Action(segment, WEIGHTS if left else BACKWARD, micro) for segment, left in order]
