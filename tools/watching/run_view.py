"""`RunView`: what is known of a run by the events of its metrics.jsonl; of bounded size, however long it lasts."""

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from ..units import format_percent, format_seconds
from .run_events import read_event

Event = Mapping[str, Any]
MAX_POINTS = 2000  # of a curve, an even number; every second one is left out when there are more
MAX_HAPPENINGS = 100
WINDOW = 6  # statuses of a process, one a second, over which rates are taken
RECENT = 30  # steps that were heard of, over which the time to the end is estimated
SILENT_S = 2.5  # after so long without news of its work a process has no rates
WAITS = ("data", "leases", "peers", "shards")


@dataclass
class Thinned:
    """Points of a curve, of which every second is left out again and again as they become too many."""

    points: list[Any] = field(default_factory=list)
    every: int = 1
    _skipped: int = 0

    def add(self, point: Any) -> None:
        """Add a point, the newest."""
        self._skipped += 1
        if self._skipped < self.every:
            return
        self._skipped = 0
        self.points.append(point)
        if len(self.points) > MAX_POINTS:
            self.points, self.every = self.points[::2], 2 * self.every  # an odd number: the last one stays


@dataclass
class RunCurve:
    """How one of the runs of a folder has learned: the method's, or that of one process.

    step: the last event about a step; score: the last about an evaluation; both empty before. losses: (samples, loss).
    scores: events about evaluations. recent: (seconds of training, step), the last ones.
    """

    step: Event = field(default_factory=dict)
    score: Event = field(default_factory=dict)
    losses: Thinned = field(default_factory=Thinned)
    scores: Thinned = field(default_factory=Thinned)
    recent: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=RECENT))

    def add_step(self, event: Event) -> None:
        """Take an event about a step into account, which may be one before the last, where a run went back."""
        if self.step and event["step"] <= self.step["step"]:
            self.recent.clear()
            if event["samples"] < self.step["samples"]:
                self.losses.points = [one for one in self.losses.points if one[0] <= event["samples"]]
        self.step = event
        self.recent.append((event["seconds"], event["step"]))
        if event["loss"] is not None and math.isfinite(event["loss"]):
            self.losses.add((event["samples"], event["loss"]))

    def estimate_left_s(self) -> float | None:
        """Return for how many seconds steps are left, as fast as the last ones were; None where nobody can say."""
        if self.step.get("steps") is None or len(self.recent) < 2:
            return None
        (began_s, first), (now_s, last) = self.recent[0], self.recent[-1]
        return (self.step["steps"] - last) * (now_s - began_s) / (last - first) if now_s > began_s else None


class RoleView:
    """One process of a run: what it said last, and how its work went in the seconds before."""

    def __init__(self) -> None:
        self._said = deque[Event](maxlen=WINDOW)

    def add(self, status: Event) -> None:
        """Take into account what the process says."""
        self._said.append(status)

    @property
    def status(self) -> Event:
        """What it said last."""
        return self._said[-1]

    @property
    def silent_s(self) -> float:
        """For how long it has said nothing new of its work, though it lives: it waits within a step, or evaluates."""
        return float(self.status.get("beat_s", 0.0) - self.status.get("at_s", self.status.get("beat_s", 0.0)))

    def rate(self, name: str, clock: str = "at_s") -> float | None:
        """Return by how much a count grew in a second; None where that is not known."""
        seconds, before = self._seconds(clock), self._said[0]
        if not seconds or name not in self.status or name not in before:
            return None
        return max(0.0, float(self.status[name] - before[name]) / seconds)

    def split(self) -> dict[str, float] | None:
        """Return which parts of its time a worker waited, by for what, and "computes"; None where it says nothing."""
        now, before, seconds = self.status.get("waited"), self._said[0].get("waited"), self._seconds("at_s")
        if now is None or before is None or not seconds:
            return None
        parts = {name: max(0.0, (now[name] - before[name]) / seconds) for name in WAITS}
        scale = max(1.0, sum(parts.values()))
        parts = {name: part / scale for name, part in parts.items()}
        return {"computes": 1.0 - sum(parts.values()), **parts}

    def link_rates(self) -> dict[str, float]:
        """Return the bytes a second that it sends to each peer."""
        now, before, seconds = self.status.get("links") or {}, self._said[0].get("links") or {}, self._seconds("at_s")
        if not seconds:
            return {}
        known = [peer for peer in now if peer in before or "others" not in before]  # it may have been among the others
        return {peer: max(0, now[peer] - before.get(peer, 0)) / seconds for peer in known}

    def _seconds(self, clock: str) -> float:
        if clock not in self._said[0] or clock not in self.status or (clock == "at_s" and self.silent_s > SILENT_S):
            return 0.0
        return float(self.status[clock] - self._said[0][clock])


class RunView:
    """The state of a run folder's last run.

    Attributes:
        facts: of the event "begin"; empty before.
        began, updated, ended: seconds since 1970; None where that was not.
        why: it ended, if that was an error.
        curves: by run. roles: by name. leases: batches that are leased.
        happenings: (seconds since 1970, words), the last ones.
    """

    def __init__(self) -> None:
        self.facts: Event = {}
        self.began: float | None = None
        self.updated: float | None = None
        self.ended: float | None = None
        self.why: str | None = None
        self.curves: dict[str, RunCurve] = {}
        self.roles: dict[str, RoleView] = {}
        self.leases: int | None = None
        self.happenings = deque[tuple[float, str]](maxlen=MAX_HAPPENINGS)

    @property
    def current(self) -> RunCurve | None:
        """The run that was heard of last."""
        return next(reversed(self.curves.values()), None)

    def add(self, event: Event) -> None:
        """Take an event into account. ValueError where it lacks something that its kind has."""
        if (known := read_event(event)) is not None:
            self.updated = known["time"]
            self._add(known)

    def _add(self, event: Event) -> None:
        match event["event"]:
            case "begin":
                self._begin(event)
            case "step":
                self._curve(event["run"]).add_step(event)
            case "evaluation":
                curve = self._curve(event["run"])
                curve.scores.add(event)
                curve.score = event
            case "roles":
                self._add_roles(event)
            case "checkpoint":
                self._tell(event, f"checkpoint at step {event['step']} of each replica")
            case "lost":
                self._tell(event, f"lost: {event['what']}; {event['why']}")
            case "notice":
                self._tell(event, event["words"])
            case "end":
                self.ended, self.why, self.roles, self.leases = event["time"], event["why"], {}, None
                self._tell(event, f"ended: {self.why}" if self.why else "ended")

    def as_result(self) -> dict[str, Any]:
        """Return the curves as a result has them, for the same pictures."""
        rows = [
            {"name": name, "losses": curve.losses.points, "curve": [dict(one) for one in curve.scores.points]}
            for name, curve in self.curves.items()
        ]
        return {"rows": rows}

    def _begin(self, event: Event) -> None:
        self.facts, self.began, self.ended, self.why = event, event["time"], None, None
        self.roles, self.curves = {}, {}
        self._tell(event, f"began: {event['task']} by {event['method']}")

    def _curve(self, run: str) -> RunCurve:
        """Return the curve of a run, from now on the current one."""
        if not self.curves or next(reversed(self.curves)) != run:
            self.curves[run] = self.curves.pop(run) if run in self.curves else RunCurve()
        return self.curves[run]

    def _add_roles(self, event: Event) -> None:
        self.leases = event.get("leases")
        self.roles = {name: self.roles.get(name, RoleView()) for name in event["roles"]}
        for name, status in event["roles"].items():
            self.roles[name].add(status)

    def _tell(self, event: Event, words: str) -> None:
        self.happenings.append((event["time"], words))


def describe_scores(event: Event) -> str:
    """Return the scores of an evaluation in words."""
    known = {name: event[name] for name in ("test_accuracy", "test_loss") if event.get(name) is not None}
    words = [f"test accuracy {format_percent(known['test_accuracy'], digits=1)}"] if "test_accuracy" in known else []
    words += [f"test loss {known['test_loss']:.4g}"] if "test_loss" in known else []
    words += [f"{name} {value:.4g}" for name, value in event["metrics"].items() if value is not None]
    return ", ".join(words) or "evaluated"


def describe_state(view: RunView, *, is_running: bool, now: float) -> str:
    """Return in one sentence whether the run trains, has ended, or was killed."""
    if view.updated is None:
        return "The run has yet to begin." if is_running else "Nothing is known of this run."
    if view.ended is not None:
        took = f" after {format_seconds(view.ended - view.began)}" if view.began is not None else ""
        return f"Ended with an error{took}: {view.why}" if view.why else f"Ended{took}."
    if not is_running:
        at = datetime.fromtimestamp(view.updated).astimezone().strftime("%Y-%m-%d %H:%M:%S")
        return f"No process trains here any more; the last that was heard of it is of {at}."
    silent = now - view.updated
    return "Training." if silent < 5 else f"Training; nothing was heard for {format_seconds(silent)}."
