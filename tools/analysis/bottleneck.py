"""Why a run was as fast as it was: what the machines' time went into, by the typical of the recorded steps.

A machine waits for a message in two parts: until the peer has queued it (the peer is late), and from then on (the link
is). Which is which is only known within one host's clock.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

import msgspec

from ...runtime.worker.trace import Span
from .measured import COMPUTE
from .recorded_steps import Recorded, Transfer, bounds, other_work, transfers, typical_step, waits
from ..units import against_text, bytes_text, percent_text, seconds_text

_WORTH_SAYING = 0.05  # of a step: what took less is not mentioned


class MachineTime(msgspec.Struct, frozen=True):
    """Where the time of a step went on one machine, in shares of it.

    late: waiting until another machine had sent what was needed; on_links: waiting until it was there. other: packing
    and unpacking messages, drawing random numbers and so on. What is left of 1 is that it began later or ended earlier
    than others. longest_for: the machine that it waited for most, -1 for none.
    """

    name: str
    computed: float
    late: float
    on_links: float
    other: float
    longest_for: int

    @property
    def waited(self) -> float:
        return self.late + self.on_links


class SlowestLink(msgspec.Struct, frozen=True):
    """The link that was waited for longest: seconds of waiting in a step, and the bytes that it carried."""

    source: int
    target: int
    waited_s: float
    bytes: int


class Explanation(msgspec.Struct, frozen=True):
    """step_s: as measured. between_s: median time from a machine's step to its next one, None where no two follow."""

    step_s: float
    predicted_s: float
    between_s: float | None
    machines: list[MachineTime]
    slowest: SlowestLink | None


@dataclass
class _Waits:
    """Seconds that one machine waited, by the machine waited for."""

    late: dict[int, float] = field(default_factory=lambda: defaultdict(float))
    on_links: dict[int, float] = field(default_factory=lambda: defaultdict(float))

    def longest(self) -> int:
        totals = {peer: self.late[peer] + self.on_links[peer] for peer in sorted({*self.late, *self.on_links} - {-1})}
        return max(totals, key=lambda peer: totals[peer], default=-1)


def explained(
    spans: Recorded, names: Sequence[str], *, predicted_s: float, evaluate_every: int = 0
) -> Explanation | None:
    """Explain the typical of the recorded steps; None where no step was recorded whole.

    names: of the machines. evaluate_every: steps between two tests; the time after such a step is no part of training.
    """
    step = typical_step(spans)
    if step is None:
        return None
    start, stop = bounds(spans, step)
    kept = [[span for span in mine if span.step == step] for mine in spans]
    messages = transfers(kept)
    waited = [_waited(machine, mine, messages) for machine, mine in enumerate(kept)]
    times = [_time(*of, stop - start) for of in zip(names, kept, waited, strict=True)]
    between = _between(spans, evaluate_every)
    return Explanation(
        stop - start, predicted_s, median(between) if between else None, times, _slowest(waited, messages)
    )


def _waited(machine: int, mine: Sequence[Span], messages: Sequence[Transfer]) -> _Waits:
    """Divide each wait at the moment when the message that ended it was queued."""
    sent = {(m.source, m.what, m.step, m.micro, m.edge): m.sent_s for m in messages if m.target == machine}
    found = _Waits()
    for wait, taken in waits(mine):
        if taken is None:
            found.late[-1] += wait.stop_s - wait.start_s
            continue
        queued = sent.get((taken.peer, taken.what, taken.step, taken.micro, taken.part), wait.stop_s)
        at = min(max(queued, wait.start_s), wait.stop_s)
        found.late[taken.peer] += at - wait.start_s
        found.on_links[taken.peer] += wait.stop_s - at
    return found


def _time(name: str, mine: Sequence[Span], waited: _Waits, step_s: float) -> MachineTime:
    whole = step_s or 1e-9
    computed = sum(span.stop_s - span.start_s for span in mine if span.kind in COMPUTE)
    late, on_links = sum(waited.late.values()), sum(waited.on_links.values())
    other = sum(stop - start for start, stop in other_work(mine))
    return MachineTime(name, computed / whole, late / whole, on_links / whole, other / whole, waited.longest())


def _between(spans: Recorded, evaluate_every: int) -> list[float]:
    """Seconds from the end of a machine's step to the beginning of its next one, tests left out."""
    found = []
    for mine in spans:
        at = {span.step: span for span in mine if span.kind == "step"}
        for step, span in at.items():
            tested = evaluate_every > 0 and (step + 1) % evaluate_every == 0
            if step + 1 in at and not tested:
                found.append(at[step + 1].start_s - span.stop_s)
    return found


def _slowest(waited: Sequence[_Waits], messages: Sequence[Transfer]) -> SlowestLink | None:
    seconds = {(peer, machine): s for machine, w in enumerate(waited) for peer, s in w.on_links.items()}
    if not seconds:
        return None
    source, target = link = max(sorted(seconds), key=lambda pair: seconds[pair])
    sent = sum(m.bytes for m in messages if (m.source, m.target) == link)
    return SlowestLink(source, target, seconds[link], sent)


def in_words(found: Explanation) -> list[str]:
    """Sentences: the step beside its prediction, the machine that waited most, and the slowest link."""
    return [_step_in_words(found), *_machines_in_words(found), *_link_in_words(found)]


def _step_in_words(found: Explanation) -> str:
    said = f"A step took {seconds_text(found.step_s)}"
    if found.predicted_s > 0:
        said += f", {against_text(found.step_s, found.predicted_s)}"
    if found.between_s is not None:
        said += f"; {seconds_text(found.between_s)} more passed between two steps, for parameters and data"
    return said + "."


def _machines_in_words(found: Explanation) -> list[str]:
    if len(found.machines) < 2:
        return [f"{m.name} computed {percent_text(m.computed)} of it." for m in found.machines]
    said = f"The machines computed {_range([m.computed for m in found.machines])} of it"
    if max(m.other for m in found.machines) >= _WORTH_SAYING:
        said += f" and had other work, such as messages, for {_range([m.other for m in found.machines])}"
    most = max(found.machines, key=lambda m: m.waited)
    if most.longest_for < 0 or most.waited < _WORTH_SAYING:
        return [said + "."]
    peer = found.machines[most.longest_for].name
    cause = f"until {peer} had sent" if most.late >= most.on_links else f"while messages of {peer} were under way"
    return [f"{said}; {most.name} waited {percent_text(most.waited)}, mostly {cause}."]


def _range(shares: Sequence[float]) -> str:
    """Shares from the least to the greatest: "20 % to 31 %"."""
    least, greatest = percent_text(min(shares)), percent_text(max(shares))
    return least if least == greatest else f"{least} to {greatest}"


def _link_in_words(found: Explanation) -> list[str]:
    slowest = found.slowest
    if slowest is None or slowest.waited_s < _WORTH_SAYING * found.step_s:
        return []
    source, target = found.machines[slowest.source].name, found.machines[slowest.target].name
    waited, sent = seconds_text(slowest.waited_s), bytes_text(slowest.bytes)
    return [f"The slowest link is {source} → {target}: {waited} of waiting for its {sent}."]
