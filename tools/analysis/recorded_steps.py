"""What the workers of one replica recorded of some steps, read as a whole: steps, and messages from end to end.

Spans are by machine, in the order in which they were recorded. All times are of one host's steady clock: spans of
machines on several hosts cannot be laid side by side, since their clocks have nothing to do with each other.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median_low
from typing import Any

import msgspec

from ...runtime.worker.trace import Span
from .measured import COMPUTE

Recorded = Sequence[Sequence[Span]]

_Key = tuple[int, int, str, int, int, int]


@dataclass(frozen=True)
class Transfer:
    """A message from `sent_s`, when the sender queued it, to `taken_s`, when the receiver took it out of its inbox.

    A message that is there before it is needed lies in the inbox; only one that was waited for shows how fast a link
    is. what: "forward", "backward", "share" or "fold"; edge: its number in both programs.
    """

    source: int
    target: int
    what: str
    step: int
    micro: int
    edge: int
    bytes: int
    sent_s: float
    taken_s: float


def recorded(results: Sequence[Any]) -> Recorded:
    """The spans in what the workers of a replica returned, by machine; none where they were not to record."""
    return [msgspec.convert(result.get("spans", []), list[Span]) for result in results]


def whole_steps(spans: Recorded) -> list[int]:
    """The steps that every machine recorded from its beginning to its end."""
    found = [{span.step for span in mine if span.kind == "step"} for mine in spans]
    return sorted(set.intersection(*found)) if found else []


def bounds(spans: Recorded, step: int) -> tuple[float, float]:
    """When the first machine began a step and when the last one ended it."""
    parts = [span for mine in spans for span in mine if span.kind == "step" and span.step == step]
    return min(span.start_s for span in parts), max(span.stop_s for span in parts)


def typical_step(spans: Recorded) -> int | None:
    """The step of median duration among the whole ones; None where there is none."""
    seconds = {step: stop - start for step in whole_steps(spans) for start, stop in [bounds(spans, step)]}
    return min(seconds, key=lambda step: (abs(seconds[step] - median_low(seconds.values())), step), default=None)


def transfers(spans: Recorded) -> list[Transfer]:
    """Messages whose both ends were recorded, in the order of sending."""
    sent: dict[_Key, Span] = {}
    for source, mine in enumerate(spans):
        for span in mine:
            if span.kind == "send":
                sent[source, span.peer, span.what, span.step, span.micro, span.part] = span
    found = []
    for target, mine in enumerate(spans):
        for span in mine:
            queued = _queued(sent, target, span)
            if queued is not None:
                key = (span.peer, target, span.what, span.step, span.micro, span.part)
                found.append(Transfer(*key, queued.bytes, queued.start_s, max(span.stop_s, queued.start_s)))
    return sorted(found, key=lambda t: (t.sent_s, t.taken_s, t.source, t.target))


def waits(mine: Sequence[Span]) -> list[tuple[Span, Span | None]]:
    """Each wait of one machine, with the message that ended it: the next that it took."""
    found, open_wait = list[tuple[Span, Span | None]](), None
    for span in mine:
        if open_wait is not None and span.kind in ("wait", "receive"):
            found.append((open_wait, span if span.kind == "receive" else None))
            open_wait = None
        if span.kind == "wait":
            open_wait = span
    return found if open_wait is None else [*found, (open_wait, None)]


def other_work(mine: Sequence[Span]) -> list[tuple[float, float]]:
    """From when to when one machine, in its steps, neither computed a segment nor waited."""
    found = []
    for whole in (span for span in mine if span.kind == "step"):
        at = whole.start_s
        for span in sorted(_inside(mine, whole), key=lambda s: s.start_s):
            if span.start_s > at:
                found.append((at, span.start_s))
            at = max(at, span.stop_s)
        if whole.stop_s > at:
            found.append((at, whole.stop_s))
    return found


def _inside(mine: Sequence[Span], whole: Span) -> list[Span]:
    return [s for s in mine if s.step == whole.step and s.kind in (*COMPUTE, "wait")]


def _queued(sent: dict[_Key, Span], target: int, span: Span) -> Span | None:
    if span.kind != "receive":
        return None
    return sent.get((span.peer, target, span.what, span.step, span.micro, span.part))
