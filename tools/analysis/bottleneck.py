"""Why a run was as fast as it was: what the machines spent the time of the typical recorded step on.

A machine waits for a message in two parts: until the peer has queued it (the peer is late), and from then on (the link
is slow). The two can only be told apart within one host's clock.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

import msgspec

from ...runtime.worker.trace import Span
from ..units import format_against_prediction, format_bytes, format_percent, format_seconds
from .measured_step import COMPUTE
from .recorded_steps import (
    RecordedSpans,
    Transfer,
    find_bounds,
    find_other_work,
    match_transfers,
    pair_waits,
    pick_typical_step,
)

SLOWER = 1.25  # times the predicted seconds: less is no reason
MIN_FRACTION = 0.05  # of a step: what takes less is not mentioned


class MachineTime(msgspec.Struct, frozen=True):
    """What one machine spent a step on, in fractions of the step; what is missing to 1 is before and after its part.

    Attributes:
        computed: forward and backward.
        late: waiting until another machine had sent what was needed.
        on_links: waiting until what was sent had arrived.
        other: packing and unpacking messages, drawing random numbers and so on.
        waited_for: the machine that it waited for longest, -1 for none.
    """

    name: str
    computed: float
    late: float
    on_links: float
    other: float
    waited_for: int

    @property
    def waited(self) -> float:
        """The fraction of the step that the machine waited."""
        return self.late + self.on_links


class SlowestLink(msgspec.Struct, frozen=True):
    """The link that machines waited for longest. waited_s: in a step; bytes: that it carried in the step."""

    source: int
    target: int
    waited_s: float
    bytes: int


class Explanation(msgspec.Struct, frozen=True):
    """The time of the typical step.

    Attributes:
        step_s: as measured.
        between_s: median time from a machine's step to its next step, None if no two steps follow each other.
        busy_s: for how long each machine was predicted to compute, none where nobody says.
    """

    step_s: float
    predicted_s: float
    between_s: float | None
    machines: list[MachineTime]
    slowest: SlowestLink | None
    busy_s: list[float] = []


@dataclass
class _WaitTimes:
    """Seconds that one machine waited, by the machine waited for; -1 if no message ended the wait."""

    late: dict[int, float] = field(default_factory=lambda: defaultdict(float))
    on_links: dict[int, float] = field(default_factory=lambda: defaultdict(float))

    def find_longest(self) -> int:
        """Return the machine waited for longest, -1 for none."""
        totals = {peer: self.late[peer] + self.on_links[peer] for peer in sorted({*self.late, *self.on_links} - {-1})}
        return max(totals, key=lambda peer: totals[peer], default=-1)


def explain_steps(
    spans: RecordedSpans,
    names: Sequence[str],
    *,
    predicted_s: float,
    busy_s: Sequence[float] = (),
    evaluate_every: int = 0,
) -> Explanation | None:
    """Explain the typical recorded step; return None if no step was recorded whole.

    Args:
        names: of the machines. busy_s: for how long each of them was predicted to compute in a step.
        evaluate_every: steps between two evaluations; the time after such a step is no part of training.
    """
    step = pick_typical_step(spans)
    if step is None:
        return None
    start, stop = find_bounds(spans, step)
    step_s, of_step = stop - start, [[span for span in machine if span.step == step] for machine in spans]
    messages = match_transfers(of_step)
    waits = [_divide_waits(machine, own, messages) for machine, own in enumerate(of_step)]
    times = [_measure_machine(*machine, step_s) for machine in zip(names, of_step, waits, strict=True)]
    between = _list_gaps(spans, evaluate_every)
    gap_s, slowest = median(between) if between else None, _find_slowest_link(waits, messages)
    return Explanation(step_s, predicted_s, gap_s, times, slowest, list(busy_s))


def _divide_waits(machine: int, spans: Sequence[Span], messages: Sequence[Transfer]) -> _WaitTimes:
    """Divide each wait of a machine at the moment when the message that ended it was queued."""
    sent_s = {(m.source, m.what, m.step, m.micro, m.edge): m.sent_s for m in messages if m.target == machine}
    times = _WaitTimes()
    for wait, received in pair_waits(spans):
        if received is None:
            times.late[-1] += wait.stop_s - wait.start_s
            continue
        key = (received.peer, received.what, received.step, received.micro, received.part)
        queued_s = min(max(sent_s.get(key, wait.stop_s), wait.start_s), wait.stop_s)
        times.late[received.peer] += queued_s - wait.start_s
        times.on_links[received.peer] += wait.stop_s - queued_s
    return times


def _measure_machine(name: str, spans: Sequence[Span], waits: _WaitTimes, step_s: float) -> MachineTime:
    whole = step_s or 1e-9
    computed = sum(span.stop_s - span.start_s for span in spans if span.kind in COMPUTE)
    late, on_links = sum(waits.late.values()), sum(waits.on_links.values())
    other = sum(stop - start for start, stop in find_other_work(spans))
    return MachineTime(name, computed / whole, late / whole, on_links / whole, other / whole, waits.find_longest())


def _list_gaps(spans: RecordedSpans, evaluate_every: int) -> list[float]:
    """Return the seconds from the end of each machine's step to the start of its next step, without evaluations."""
    gaps = []
    for machine in spans:
        steps = {span.step: span for span in machine if span.kind == "step"}
        for step, span in steps.items():
            evaluated = evaluate_every > 0 and (step + 1) % evaluate_every == 0
            if step + 1 in steps and not evaluated:
                gaps.append(steps[step + 1].start_s - span.stop_s)
    return gaps


def _find_slowest_link(waits: Sequence[_WaitTimes], messages: Sequence[Transfer]) -> SlowestLink | None:
    seconds = {(peer, machine): s for machine, times in enumerate(waits) for peer, s in times.on_links.items()}
    if not seconds:
        return None
    source, target = link = max(sorted(seconds), key=lambda pair: seconds[pair])
    sent = sum(m.bytes for m in messages if (m.source, m.target) == link)
    return SlowestLink(source, target, seconds[link], sent)


def describe_explanation(explanation: Explanation) -> list[str]:
    """Return sentences: the step and its computing against the prediction, who waited longest, the slowest link."""
    steps = [_describe_step(explanation), *_describe_computing(explanation)]
    return [*steps, *_describe_machines(explanation), *_describe_link(explanation)]


def _describe_step(explanation: Explanation) -> str:
    sentence = f"A step took {format_seconds(explanation.step_s)}"
    if explanation.predicted_s > 0:
        sentence += f", {format_against_prediction(explanation.step_s, explanation.predicted_s)}"
    if explanation.between_s is not None:
        sentence += f"; another {format_seconds(explanation.between_s)} per step went to parameters and data"
    return sentence + "."


def _describe_computing(explanation: Explanation) -> list[str]:
    """Return a sentence where computing took clearly longer than predicted, on the machine where it did most."""
    pairs = zip(explanation.machines, explanation.busy_s, strict=False)
    slower = [(machine.computed * explanation.step_s, busy_s, machine.name) for machine, busy_s in pairs if busy_s > 0]
    computed_s, busy_s, name = max(slower, key=lambda one: one[0] / one[1], default=(0.0, 1.0, ""))
    if computed_s < SLOWER * busy_s:
        return []
    took = f"{format_seconds(computed_s)} of a step, where {format_seconds(busy_s)} were predicted"
    return [f"Computing alone took {name} {took}."]


def _describe_machines(explanation: Explanation) -> list[str]:
    machines = explanation.machines
    if len(machines) < 2:
        return [f"Of each step, {m.name} spent {format_percent(m.computed)} computing." for m in machines]
    sentence = f"Of each step, machines spent {_format_range([m.computed for m in machines])} computing"
    if max(m.other for m in machines) >= MIN_FRACTION:
        sentence += f" and {_format_range([m.other for m in machines])} on other work such as messaging"
    slowest = max(machines, key=lambda m: m.waited)
    if slowest.waited_for < 0 or slowest.waited < MIN_FRACTION:
        return [sentence + "."]
    peer = machines[slowest.waited_for].name
    cause = f"for {peer} to send" if slowest.late >= slowest.on_links else f"for data from {peer} to arrive"
    return [f"{sentence}; {slowest.name} was idle {format_percent(slowest.waited)}, mostly waiting {cause}."]


def _format_range(fractions: Sequence[float]) -> str:
    """Return fractions from the smallest to the largest: "20 % to 31 %"."""
    smallest, largest = format_percent(min(fractions)), format_percent(max(fractions))
    return smallest if smallest == largest else f"{smallest} to {largest}"


def _describe_link(explanation: Explanation) -> list[str]:
    slowest = explanation.slowest
    if slowest is None or slowest.waited_s < MIN_FRACTION * explanation.step_s:
        return []
    source, target = explanation.machines[slowest.source].name, explanation.machines[slowest.target].name
    waited, sent = format_seconds(slowest.waited_s), format_bytes(slowest.bytes)
    return [f"The slowest link is {source} → {target}: {waited} of waiting for its {sent}, gradients included."]
