"""`Trace`: what a worker did when, by the clock that all processes of a host share (CLOCK_MONOTONIC)."""

import time
from collections.abc import Callable, Collection

import msgspec

WARM_STEPS = 20  # before the first recorded one, in a long run
GROUPS, GROUP = 6, 3  # of recorded steps, and steps of each: what lies between two steps is seen, too
FARTHEST = 100_000  # steps from the begin of a run, of which nobody may know when it ends
MAX_SPANS = 50_000  # of one worker; about 3 MB in a message


class Span(msgspec.Struct, frozen=True, array_like=True):
    """Something that took from `start_s` to `stop_s`, seconds of the host's steady clock.

    kind: "forward" or "backward" of a segment (part: its position in the program), "weights", the gradients of
    parameters that its backward left for later, "wait" for messages, "send" and "receive" of a message (part: its edge;
    peer: the other machine; these have one moment: when it was queued, and when it was taken), or "step", all of it.
    what: the kind of a message, "forward", "backward", "state" or "state_gradient".
    """

    kind: str
    step: int
    start_s: float
    stop_s: float
    micro: int = 0
    part: int = 0
    peer: int = -1
    bytes: int = 0
    what: str = ""


class Trace:
    """Collects the spans of the wanted `steps` and drops others. clock: seconds of a steady clock."""

    def __init__(self, steps: Collection[int], *, clock: Callable[[], float] = time.monotonic) -> None:
        self.steps = steps
        self.clock = clock
        self.spans: list[Span] = []

    def add(self, span: Span) -> None:
        """Keep a span if it belongs to a wanted step."""
        if span.step in self.steps:
            self.spans.append(span)

    def record(self, kind: str, step: int, start_s: float, micro: int = 0, part: int = 0) -> None:
        """Keep what began at `start_s` and ends now, if it belongs to a wanted step."""
        if step in self.steps:
            self.spans.append(Span(kind, step, start_s, self.clock(), micro, part))

    def complete_steps(self, max_spans: int = MAX_SPANS) -> list[Span]:
        """The spans of the first steps, as many as have `max_spans` together: a trace must fit in a message."""
        if len(self.spans) <= max_spans:
            return list(self.spans)
        end = self.spans[max_spans].step
        return [span for span in self.spans if span.step < end]

    def __repr__(self) -> str:
        return f"Trace({len(self.steps)} steps, {len(self.spans)} spans)"


def pick_steps(first: int, end: int) -> list[int]:
    """Return the steps to record of a run that begins with step `first` and is over before step `end`.

    They come after warming up, and never first. A machine is faster at one time than at another, so that they are
    groups all over a long run, or the first FARTHEST steps of it, each as many times as far from the begin as the one
    before: wherever a run is stopped, some have been recorded.
    """
    end = min(end, first + FARTHEST)
    warm = min(WARM_STEPS, max(1, (end - first) // 4))
    if end - first - warm <= GROUPS * GROUP:
        return list(range(first + warm, end))
    longest = end - first - GROUP
    starts = [first + round(warm * (longest / warm) ** (i / (GROUPS - 1))) for i in range(GROUPS)]
    return sorted({start + i for start in starts for i in range(GROUP)})
