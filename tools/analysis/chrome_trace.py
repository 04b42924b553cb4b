"""A run's recorded steps as Chrome trace events, which Perfetto and chrome://tracing open.

Each machine is a process with a row of what it did, and rows of what was predicted of a step beside it; each link
between two machines is a row with its messages, from queued to taken. Format: "Trace Event Format" (Google, 2016).
Times are of one host's clock (see recorded.py).
"""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ...partition.placement.placement_file import Placement
from ...runtime.worker.program import Program
from ...runtime.worker.trace import Span
from .measured import COMPUTE
from .recorded_steps import Recorded, Transfer, bounds, transfers, typical_step, waits

Event = dict[str, Any]
_NAMES_MAX = 20  # operators or tensors that an event lists


@dataclass(frozen=True)
class _Slice:
    """An interval of a row, in seconds of the host's clock."""

    name: str
    kind: str
    start_s: float
    stop_s: float
    args: dict[str, Any]


class _Rows:
    """Collects events row by row. Numbers of rows begin at 1 and none is used twice, as 0 means idle to Perfetto."""

    def __init__(self, origin_s: float) -> None:
        self.origin_s = origin_s
        self.about: list[Event] = []
        self.events: list[Event] = []
        self._rows = 0

    def moment(self, seconds: float) -> int:
        """Whole microseconds: of rounded fractions, one span might end after the next one begins, and be dropped."""
        return round((seconds - self.origin_s) * 1e6)

    def process(self, pid: int, name: str) -> None:
        """Name a group of rows; groups are shown in the order of their numbers."""
        self._say("process_name", pid, 0, {"name": name})
        self._say("process_sort_index", pid, 0, {"sort_index": pid})

    def row(self, pid: int, name: str, slices: Iterable[_Slice]) -> int:
        """Add a row, and return its number. Slices must be apart or nested."""
        self._rows += 1
        self._say("thread_name", pid, self._rows, {"name": name})
        self._say("thread_sort_index", pid, self._rows, {"sort_index": self._rows})
        for s in slices:
            start, stop = self.moment(s.start_s), self.moment(s.stop_s)
            event = {"name": s.name, "cat": s.kind, "ph": "X", "ts": start, "dur": stop - start}
            self.events.append(event | {"pid": pid, "tid": self._rows, "args": s.args})
        return self._rows

    def rows(self, pid: int, name: str, slices: Sequence[_Slice]) -> None:
        """Add one row, or several where slices overlap."""
        for i, lane in enumerate(lanes(slices)):
            self.row(pid, f"{name} ({i + 1})" if i else name, lane)

    def arrow(self, number: int, source: tuple[int, int, float], target: tuple[int, int, float]) -> None:
        """An arrow between slices that hold these moments: (process, row, seconds)."""
        for phase, (pid, row, seconds) in (("s", source), ("f", target)):
            event = {"name": "message", "cat": "flow", "ph": phase, "ts": self.moment(seconds), "pid": pid, "tid": row}
            self.events.append(event | {"id": number} | ({"bp": "e"} if phase == "f" else {}))

    def _say(self, name: str, pid: int, tid: int, args: dict[str, Any]) -> None:
        self.about.append({"name": name, "ph": "M", "ts": 0, "pid": pid, "tid": tid, "args": args})

    def sorted(self) -> list[Event]:
        """All events, by time; where several begin at once, the one that holds the others first."""
        order = {"X": 0, "s": 1, "f": 2}
        return self.about + sorted(self.events, key=lambda e: (e["ts"], order[e["ph"]], -e.get("dur", 0), e["tid"]))


def chrome_trace(placement: Placement, spans: Recorded, programs: Sequence[Program]) -> dict[str, Any]:
    """The trace as JSON data. spans: of each machine of one replica; programs: of the same machines.

    The predicted step stands where the typical recorded one begins; without any, there are no events.
    """
    step = typical_step(spans)
    if step is None:
        return {"traceEvents": [], "displayTimeUnit": "ms"}
    out = _Rows(min(span.start_s for mine in spans for span in mine))
    begins = bounds(spans, step)[0]
    names = [machine.name for machine in placement.machines]
    rows = {}
    for machine, name in enumerate(names):
        out.process(machine + 1, name)
        rows[machine] = out.row(machine + 1, "measured", _measured(spans[machine], programs[machine], names))
        predicted = [span for span in placement.predicted.timeline if span.machine == machine]
        for row, sends in (("predicted", False), ("predicted sends", True)):
            of = [s for s in predicted if (s.kind == "send") is sends]
            out.rows(machine + 1, row, [_Slice(s.label, s.kind, begins + s.start_s, begins + s.stop_s, {}) for s in of])
    links = len(names) + 1
    out.process(links, "links")
    by_link = defaultdict[tuple[int, int], list[_Slice]](list)
    messages = transfers(spans)
    for message in messages:
        by_link[message.source, message.target].append(_message(message, programs[message.target]))
    for (source, target), slices in sorted(by_link.items()):
        out.rows(links, f"{names[source]} → {names[target]}", slices)
    _arrows(out, spans, messages, rows)
    about = {"model": placement.model, "typical step": step, "predicted step, seconds": placement.predicted.step_s}
    return {"traceEvents": out.sorted(), "displayTimeUnit": "ms", "otherData": about}


def lanes(slices: Sequence[_Slice]) -> list[list[_Slice]]:
    """Slices in as few rows as they need so that none overlaps another in its row."""
    found: list[list[_Slice]] = []
    for s in sorted(slices, key=lambda s: (s.start_s, s.stop_s)):
        free = next((lane for lane in found if lane[-1].stop_s <= s.start_s), None)
        if free is None:
            found.append([s])
        else:
            free.append(s)
    return found


def _measured(mine: Sequence[Span], program: Program, names: Sequence[str]) -> list[_Slice]:
    """What a machine did: steps, and in them segments and waits."""
    out = []
    for span, taken in waits(mine):
        name = "wait" if taken is None else f"wait for {names[taken.peer]}"
        out.append(_Slice(name, "wait", span.start_s, span.stop_s, {"step": span.step}))
    for span in mine:
        if span.kind == "step":
            out.append(_Slice(f"step {span.step}", "step", span.start_s, span.stop_s, {"step": span.step}))
        elif span.kind in COMPUTE:
            segment = program.segments[span.part]
            operators = _listed([step.op or "sum of partial results" for step in segment.steps])
            args = {"step": span.step, "micro-batch": span.micro, "segment": span.part, "operators": operators}
            out.append(_Slice(f"{span.kind} {segment.stage}", span.kind, span.start_s, span.stop_s, args))
    return out


def _message(message: Transfer, target: Program) -> _Slice:
    link = target.arrivals.get(message.edge) if message.what == "forward" else None
    args: dict[str, Any] = {"step": message.step, "micro-batch": message.micro}
    args |= {"edge": message.edge, "bytes": message.bytes}
    if link is not None:
        args["tensors"] = _listed([target.pieces[piece].tensor for piece in link.pieces])
    return _Slice(f"{message.what} {message.edge}", message.what, message.sent_s, message.taken_s, args)


def _listed(names: Sequence[str]) -> list[str]:
    """The names without repetition, the first of many."""
    unique = list(dict.fromkeys(names))
    more = len(unique) - _NAMES_MAX
    return [*unique[:_NAMES_MAX], f"and {more} more"] if more > 0 else unique


def _arrows(out: _Rows, spans: Recorded, messages: Sequence[Transfer], rows: dict[int, int]) -> None:
    """From the segment that made a message to the first one that could run with it, in the same step."""
    computed = [sorted((s for s in mine if s.kind in COMPUTE), key=lambda s: s.start_s) for mine in spans]
    starts = [[span.start_s for span in mine] for mine in computed]
    for number, message in enumerate(messages, start=1):
        before = bisect_right(starts[message.source], message.sent_s) - 1
        after = bisect_left(starts[message.target], message.taken_s)
        if before < 0 or after == len(starts[message.target]):
            continue
        made, used = computed[message.source][before], computed[message.target][after]
        if made.step == message.step == used.step:
            source = (message.source + 1, rows[message.source], made.start_s)
            out.arrow(number, source, (message.target + 1, rows[message.target], used.start_s))
