"""The typical step of a run, put together of what its machines recorded, in the form that predictions have."""

from collections.abc import Sequence

from ...partition.placement.placement_file import Span as Interval
from ...runtime.worker.program import Program
from ...runtime.worker.trace import Span
from .measured import COMPUTE, OTHER, Measured
from .recorded_steps import Recorded, bounds, other_work, transfers, typical_step, waits, whole_steps

INTERVALS_MAX = 5_000  # of a longer timeline the sends are left out


def typical(spans: Recorded, programs: Sequence[Program]) -> Measured | None:
    """The typical step of what was recorded; None where no step was recorded whole."""
    step = typical_step(spans)
    if step is None:
        return None
    origin, stop = bounds(spans, step)
    several = any(span.micro > 0 for mine in spans for span in mine)
    found = list[tuple[int, str, str, float, float]]()
    for machine, mine in enumerate(spans):
        of = [span for span in mine if span.step == step]
        computed = [(s, _label(s, programs[machine], several)) for s in of if s.kind in COMPUTE]
        waited = [(s, "" if taken is None else f"for {taken.peer}") for s, taken in waits(of)]
        found += [(machine, s.kind, label, s.start_s, s.stop_s) for s, label in computed + waited]
        found += [(machine, OTHER, "work", start, stop) for start, stop in other_work(of)]
    sends = [
        (t.source, "send", f"to {t.target}, {t.bytes} bytes", t.sent_s, t.taken_s)
        for t in transfers(spans)
        if t.step == step
    ]
    if len(found) + len(sends) <= INTERVALS_MAX:
        found += sends
    timeline = [Interval(machine, kind, label, a - origin, b - origin) for machine, kind, label, a, b in found]
    ordered = sorted(timeline, key=lambda i: (i.start_s, i.stop_s, i.machine, i.kind, i.label))
    return Measured(step, len(whole_steps(spans)), stop - origin, ordered)


def _label(span: Span, program: Program, several: bool) -> str:
    """As the prediction names it: "backward 2 of micro-batch 1"."""
    stage = program.segments[span.part].stage
    return f"{span.kind} {stage} of micro-batch {span.micro}" if several else f"{span.kind} {stage}"
