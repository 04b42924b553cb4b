"""A run's recorded steps as Chrome trace events, for Perfetto and chrome://tracing.

Each machine is a process with a row of what it did and rows of the predicted step; each link between two machines is a
row with its messages, from queued to taken. Format: "Trace Event Format" (Google, 2016). Times are of one host's clock
(see recorded_steps.py).
"""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ...partition.placement.placement_file import Placement
from ...runtime.worker.program import Program
from ...runtime.worker.trace import Span
from .measured_step import COMPUTE, WAYS
from .recorded_steps import (
    RecordedSpans,
    Transfer,
    find_bounds,
    find_group,
    match_transfers,
    pair_waits,
    pick_typical_step,
)

Event = dict[str, Any]
_MAX_NAMES = 20  # operators or tensors that an event lists


@dataclass(frozen=True)
class _Interval:
    """An interval of a row, in seconds of the host's clock."""

    name: str
    kind: str
    start_s: float
    stop_s: float
    args: dict[str, Any]


class _TraceRows:
    """Collects events row by row. Row numbers start at 1, as 0 means idle to Perfetto, and none is used twice."""

    def __init__(self, origin_s: float) -> None:
        self.origin_s = origin_s
        self.about: list[Event] = []
        self.events: list[Event] = []
        self._rows = 0

    def to_microseconds(self, seconds: float) -> int:
        """Round to whole microseconds; with fractions, rounding could make spans overlap, and one would be dropped."""
        return round((seconds - self.origin_s) * 1e6)

    def name_process(self, pid: int, name: str) -> None:
        """Name a group of rows; groups are shown in the order of their numbers."""
        self._describe("process_name", pid, 0, {"name": name})
        self._describe("process_sort_index", pid, 0, {"sort_index": pid})

    def add_row(self, pid: int, name: str, intervals: Iterable[_Interval]) -> int:
        """Add a row and return its number. Its intervals must be disjoint or nested."""
        self._rows += 1
        self._describe("thread_name", pid, self._rows, {"name": name})
        self._describe("thread_sort_index", pid, self._rows, {"sort_index": self._rows})
        for s in intervals:
            start, stop = self.to_microseconds(s.start_s), self.to_microseconds(s.stop_s)
            event = {"name": s.name, "cat": s.kind, "ph": "X", "ts": start, "dur": stop - start}
            self.events.append(event | {"pid": pid, "tid": self._rows, "args": s.args})
        return self._rows

    def add_rows(self, pid: int, name: str, intervals: Sequence[_Interval]) -> None:
        """Add one row, or several if intervals overlap."""
        for i, lane in enumerate(assign_lanes(intervals)):
            self.add_row(pid, f"{name} ({i + 1})" if i else name, lane)

    def add_arrow(self, number: int, source: tuple[int, int, float], target: tuple[int, int, float]) -> None:
        """Add an arrow between the intervals that contain two moments: (process, row, seconds)."""
        for phase, (pid, row, seconds) in (("s", source), ("f", target)):
            event = {
                "name": "message",
                "cat": "flow",
                "ph": phase,
                "ts": self.to_microseconds(seconds),
                "pid": pid,
                "tid": row,
            }
            self.events.append(event | {"id": number} | ({"bp": "e"} if phase == "f" else {}))

    def _describe(self, name: str, pid: int, tid: int, args: dict[str, Any]) -> None:
        self.about.append({"name": name, "ph": "M", "ts": 0, "pid": pid, "tid": tid, "args": args})

    def sort_events(self) -> list[Event]:
        """Return all events by time; of several that start at once, the one that contains the others first."""
        order = {"X": 0, "s": 1, "f": 2}
        return self.about + sorted(self.events, key=lambda e: (e["ts"], order[e["ph"]], -e.get("dur", 0), e["tid"]))


def make_chrome_trace(placement: Placement, spans: RecordedSpans, programs: Sequence[Program]) -> dict[str, Any]:
    """Return the trace as JSON data; it has no events if no step was recorded whole.

    spans: of each machine of one replica; programs: of the same machines. Of the recorded steps it has the typical one
    and those that were recorded before and after it without a gap: others may be minutes away. The predicted step is
    drawn where the typical one starts.
    """
    step = pick_typical_step(spans)
    if step is None:
        return {"traceEvents": [], "displayTimeUnit": "ms"}
    steps = find_group(spans, step)
    spans = [[span for span in machine if span.step in steps] for machine in spans]
    out = _TraceRows(min(span.start_s for machine in spans for span in machine))
    start_s = find_bounds(spans, step)[0]
    names = [machine.name for machine in placement.machines]
    rows = {}
    for machine, name in enumerate(names):
        out.name_process(machine + 1, name)
        rows[machine] = out.add_row(machine + 1, "measured", _list_intervals(spans[machine], programs[machine], names))
        predicted = [
            _Interval(span.label, span.kind, start_s + span.start_s, start_s + span.stop_s, {})
            for span in placement.predicted.timeline
            if span.machine == machine
        ]
        out.add_rows(machine + 1, "predicted", [one for one in predicted if one.kind != "send"])
        out.add_rows(machine + 1, "predicted sends", [one for one in predicted if one.kind == "send"])
    links = len(names) + 1
    out.name_process(links, "links")
    by_link = defaultdict[tuple[int, int], list[_Interval]](list)
    messages = match_transfers(spans)
    for message in messages:
        by_link[message.source, message.target].append(_make_message(message, programs[message.target]))
    for (source, target), intervals in sorted(by_link.items()):
        out.add_rows(links, f"{names[source]} → {names[target]}", intervals)
    _add_arrows(out, spans, messages, rows)
    about = {"model": placement.model, "typical step": step, "predicted step, seconds": placement.predicted.step_s}
    return {"traceEvents": out.sort_events(), "displayTimeUnit": "ms", "otherData": about}


def assign_lanes(intervals: Sequence[_Interval]) -> list[list[_Interval]]:
    """Divide intervals into as few rows as possible, so that none overlaps another in its row."""
    lanes: list[list[_Interval]] = []
    for s in sorted(intervals, key=lambda s: (s.start_s, s.stop_s)):
        free = next((lane for lane in lanes if lane[-1].stop_s <= s.start_s), None)
        if free is None:
            lanes.append([s])
        else:
            free.append(s)
    return lanes


def _list_intervals(spans: Sequence[Span], program: Program, names: Sequence[str]) -> list[_Interval]:
    """Return what a machine did: steps, and in them segments and waits."""
    out = []
    for span, receive in pair_waits(spans):
        name = "wait" if receive is None else f"wait for {names[receive.peer]}"
        out.append(_Interval(name, "wait", span.start_s, span.stop_s, {"step": span.step}))
    for span in spans:
        if span.kind == "step":
            out.append(_Interval(f"step {span.step}", "step", span.start_s, span.stop_s, {"step": span.step}))
        elif span.kind in COMPUTE:
            segment = program.segments[span.part]
            operators = _shorten([step.op or "sum of partial results" for step in segment.steps])
            args = {"step": span.step, "micro-batch": span.micro, "segment": span.part, "operators": operators}
            out.append(_Interval(f"{span.kind} {segment.stage}", span.kind, span.start_s, span.stop_s, args))
    return out


def _make_message(message: Transfer, target: Program) -> _Interval:
    edge = target.arrivals.get(message.edge) if message.what == "forward" else None
    args: dict[str, Any] = {"step": message.step, "micro-batch": message.micro}
    args |= {"edge": message.edge, "bytes": message.bytes}
    if edge is not None:
        args["tensors"] = _shorten([target.pieces[piece].tensor for piece in edge.pieces])
    return _Interval(f"{message.what} {message.edge}", message.what, message.sent_s, message.taken_s, args)


def _shorten(names: Sequence[str]) -> list[str]:
    """Return the names without repetition, at most the first _MAX_NAMES."""
    unique = list(dict.fromkeys(names))
    more = len(unique) - _MAX_NAMES
    return [*unique[:_MAX_NAMES], f"and {more} more"] if more > 0 else unique


def _add_arrows(out: _TraceRows, spans: RecordedSpans, messages: Sequence[Transfer], rows: dict[int, int]) -> None:
    """Add an arrow from the segment that made each message to the first that could run with it, in the same step."""
    computed = [sorted((s for s in machine if s.kind in WAYS), key=lambda s: s.start_s) for machine in spans]
    starts = [[span.start_s for span in machine] for machine in computed]
    for number, message in enumerate(messages, start=1):
        before = bisect_right(starts[message.source], message.sent_s) - 1
        after = bisect_left(starts[message.target], message.taken_s)
        if before < 0 or after == len(starts[message.target]):
            continue
        producer, consumer = computed[message.source][before], computed[message.target][after]
        if producer.step == message.step == consumer.step:
            source = (message.source + 1, rows[message.source], producer.start_s)
            out.add_arrow(number, source, (message.target + 1, rows[message.target], consumer.start_s))
