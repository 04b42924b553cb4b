"""`Trace`: what a worker did when, by the clock that all processes of a host share (CLOCK_MONOTONIC)."""

import time
from collections.abc import Callable

import msgspec

WARM_STEPS, TRACED_STEPS = 20, 5  # steps before the recorded ones, in a long run, and recorded steps
MAX_SPANS = 50_000  # of one worker; about 3 MB in a message


class Span(msgspec.Struct, frozen=True, array_like=True):
    """Something that took from `start_s` to `stop_s`, seconds of the host's steady clock.

    kind: "forward" or "backward" of a segment (part: its position in the program), "wait" for messages, "send" and
    "receive" of a message (part: its edge; peer: the other machine; these have one moment: when it was queued, and when
    it was taken), or "step", all of it. what: the kind of a message, "forward", "backward", "state" or
    "state_gradient".
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

    def __init__(self, steps: range, *, clock: Callable[[], float] = time.monotonic) -> None:
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
        end = self.steps.stop
        if len(self.spans) > max_spans:
            end = self.spans[max_spans].step
        return [span for span in self.spans if span.step < end]

    def __repr__(self) -> str:
        return f"Trace(steps {self.steps.start} to {self.steps.stop - 1}, {len(self.spans)} spans)"


def warm_steps(steps: int) -> range:
    """The steps to record in a run of `steps` steps: after warming up, and never the first."""
    first = min(WARM_STEPS, max(1, steps // 4))
    return range(first, min(first + TRACED_STEPS, steps))
