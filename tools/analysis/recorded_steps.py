"""Steps that the workers of one replica recorded: whole steps, and messages from end to end.

Spans are by machine, in the order in which they were recorded. All times are of one host's monotonic clock: spans of
machines on several hosts cannot be compared, since their clocks are unrelated.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median_low
from typing import Any

import msgspec

from ...partition.placement.placement_file import TimelineSpan
from ...runtime.worker.program import Program
from ...runtime.worker.trace import Span
from .measured_step import COMPUTE, OTHER, WAIT, MeasuredStep

RecordedSpans = Sequence[Sequence[Span]]

MAX_INTERVALS = 5_000  # the sends of a longer timeline are left out

_MessageKey = tuple[int, int, str, int, int, int]  # source, target, what, step, micro-batch, edge


@dataclass(frozen=True)
class Transfer:
    """A message from `sent_s`, when the sender queued it, to `taken_s`, when the receiver took it out of its inbox.

    A message that arrives before it is needed lies in the inbox; only one that was waited for shows how fast a link is.
    what: "forward", "backward", "share" or "fold"; edge: its number in both programs.
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


def read_spans(results: Sequence[Any]) -> RecordedSpans:
    """Return the spans in the results of a replica's workers, by machine; none where they recorded nothing."""
    return [msgspec.convert(result.get("spans", []), list[Span]) for result in results]


def find_whole_steps(spans: RecordedSpans) -> list[int]:
    """Return the steps that every machine recorded from start to end."""
    steps = [{span.step for span in machine if span.kind == "step"} for machine in spans]
    return sorted(set.intersection(*steps)) if steps else []


def find_bounds(spans: RecordedSpans, step: int) -> tuple[float, float]:
    """Return when the first machine started a step and when the last one ended it."""
    parts = [span for machine in spans for span in machine if span.kind == "step" and span.step == step]
    return min(span.start_s for span in parts), max(span.stop_s for span in parts)


def pick_typical_step(spans: RecordedSpans) -> int | None:
    """Return the step of median duration among the whole steps; None without any."""
    seconds = {step: stop - start for step in find_whole_steps(spans) for start, stop in [find_bounds(spans, step)]}
    return min(seconds, key=lambda step: (abs(seconds[step] - median_low(seconds.values())), step), default=None)


def find_group(spans: RecordedSpans, step: int) -> range:
    """Return the whole steps around one of them, of which each follows the one before."""
    whole = set(find_whole_steps(spans))
    first, end = step, step + 1
    while first - 1 in whole:
        first -= 1
    while end in whole:
        end += 1
    return range(first, end)


def match_transfers(spans: RecordedSpans) -> list[Transfer]:
    """Return the messages of which both ends were recorded, in the order of sending."""
    sent: dict[_MessageKey, Span] = {
        (source, span.peer, span.what, span.step, span.micro, span.part): span
        for source, machine in enumerate(spans)
        for span in machine
        if span.kind == "send"
    }
    transfers = []
    for target, machine in enumerate(spans):
        for span in machine:
            key = (span.peer, target, span.what, span.step, span.micro, span.part)
            if span.kind == "receive" and key in sent:
                start_s = sent[key].start_s
                transfers.append(Transfer(*key, sent[key].bytes, start_s, max(span.stop_s, start_s)))
    return sorted(transfers, key=lambda t: (t.sent_s, t.taken_s, t.source, t.target))


def pair_waits(spans: Sequence[Span]) -> list[tuple[Span, Span | None]]:
    """Return each wait of one machine with the message that ended it, which is the next that the machine took."""
    pairs, wait = list[tuple[Span, Span | None]](), None
    for span in spans:
        if wait is not None and span.kind in ("wait", "receive"):
            pairs.append((wait, span if span.kind == "receive" else None))
            wait = None
        if span.kind == "wait":
            wait = span
    return pairs if wait is None else [*pairs, (wait, None)]


def find_other_work(spans: Sequence[Span]) -> list[tuple[float, float]]:
    """Return the intervals of one machine's steps in which it neither computed a segment nor waited."""
    intervals = []
    for step in (span for span in spans if span.kind == "step"):
        inside = [span for span in spans if span.step == step.step and span.kind in (*COMPUTE, "wait")]
        at_s = step.start_s
        for span in sorted(inside, key=lambda s: s.start_s):
            if span.start_s > at_s:
                intervals.append((at_s, span.start_s))
            at_s = max(at_s, span.stop_s)
        if step.stop_s > at_s:
            intervals.append((at_s, step.stop_s))
    return intervals


def measure_typical_step(spans: RecordedSpans, programs: Sequence[Program]) -> MeasuredStep | None:
    """Return the typical recorded step; None if no step was recorded whole."""
    step = pick_typical_step(spans)
    if step is None:
        return None
    origin, stop = find_bounds(spans, step)
    several = any(span.micro > 0 for machine in spans for span in machine)
    timeline = list[TimelineSpan]()

    def add(machine: int, kind: str, label: str, start_s: float, stop_s: float) -> None:
        timeline.append(TimelineSpan(machine, kind, label, start_s - origin, stop_s - origin))

    for number, machine in enumerate(spans):
        of_step = [span for span in machine if span.step == step]
        for span in of_step:
            if span.kind in COMPUTE:
                add(number, span.kind, _label_segment(span, programs[number], several), span.start_s, span.stop_s)
        for wait, received in pair_waits(of_step):
            add(number, WAIT, "" if received is None else f"for {received.peer}", wait.start_s, wait.stop_s)
        for start_s, stop_s in find_other_work(of_step):
            add(number, OTHER, "work", start_s, stop_s)
    sends = [transfer for transfer in match_transfers(spans) if transfer.step == step]
    if len(timeline) + len(sends) <= MAX_INTERVALS:
        for transfer in sends:
            label = f"to {transfer.target}, {transfer.bytes} bytes"
            add(transfer.source, "send", label, transfer.sent_s, transfer.taken_s)
    timeline.sort(key=lambda i: (i.start_s, i.stop_s, i.machine, i.kind, i.label))
    return MeasuredStep(step, len(find_whole_steps(spans)), stop - origin, timeline)


def _label_segment(span: Span, program: Program, several: bool) -> str:
    """Return the name of a segment's span as in a prediction: "backward 2 of micro-batch 1"."""
    stage = program.segments[span.part].stage
    return f"{span.kind} {stage} of micro-batch {span.micro}" if several else f"{span.kind} {stage}"
