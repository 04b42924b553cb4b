"""What of a run's step was mispredicted: the computing of each class of operators, forward and backward, and messages.

A recorded segment mixes operators of several classes. Its measured seconds are, without what a segment costs, a sum
over classes of predicted seconds times a factor of the class: over all segments that is a least-squares problem, which
leans towards factors of 1 (ridge regression; Hoerl and Kennard, 1970), since classes that always come together cannot
be told apart. A message is compared where the receiver waited for it; one that lay in an inbox says nothing of a link.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from ...partition.cluster.cost_model import CostModel
from ...partition.cluster.machines import Cluster, Machine
from ...runtime.worker.program import Program, Segment
from ...runtime.worker.trace import Span
from ..measured.class_names import CLASS_NAMES
from ..units import format_percent
from .measured_step import WAYS, WEIGHTS
from .recorded_steps import RecordedSpans, find_whole_steps, match_transfers, pair_waits

LEAN = 0.03  # how strongly factors lean towards 1
MIN_FACTOR, MAX_FACTOR = 0.1, 10.0  # factors beyond are taken for an accident
WORTH_SAYING = 1.25  # less is no misprediction
MIN_PART = 0.05  # of the predicted computing: what takes less is not mentioned
Ratio = tuple[float, float]


class Mispredictions(msgspec.Struct, frozen=True):
    """Measured over predicted seconds.

    classes: of classes of operators, forward and backward, each with the part of the predicted computing that it has.
    link: of messages that were waited for; None where there were none. messages: how many.
    """

    classes: dict[str, tuple[float, float, float]]
    link: float | None
    messages: int

    @property
    def ratios(self) -> dict[str, Ratio]:
        """The ratios of the classes."""
        return {kind: (ahead, back) for kind, (ahead, back, _) in self.classes.items()}


@dataclass(frozen=True)
class _SegmentTime:
    """Predicted seconds of a segment in one direction by class, and the measured ones without the segment's costs."""

    predicted: Mapping[str, float]
    measured_s: float


def find_mispredictions(programs: Sequence[Program], spans: RecordedSpans, cluster: Cluster) -> Mispredictions | None:
    """Compare the recorded steps of a cut model with what the constants of its machines say; None without any steps.

    cluster: the machines that it was planned for.
    """
    if not find_whole_steps(spans) or len(cluster) != len(programs):
        return None
    times = {kind: list(_list_segments(programs, spans, cluster, backward=kind == WAYS[1])) for kind in WAYS}
    factors = {kind: _fit_factors(segments) for kind, segments in times.items()}
    parts = defaultdict[str, float](float)
    for segments in times.values():
        for one in segments:
            for kind, seconds in one.predicted.items():
                parts[kind] += seconds
    whole = sum(parts.values()) or 1.0
    ahead, back = (factors[kind] for kind in WAYS)
    classes = {kind: (ahead.get(kind, 1.0), back.get(kind, 1.0), part / whole) for kind, part in parts.items()}
    link, messages = _compare_messages(spans, cluster)
    return Mispredictions(classes, link, messages)


def _list_segments(
    programs: Sequence[Program], spans: RecordedSpans, cluster: Cluster, *, backward: bool
) -> list[_SegmentTime]:
    out = []
    for program, own, machine in zip(programs, spans, cluster.machines, strict=True):
        costs, passes = CostModel(program.tensors), _time_passes(own, WAYS[backward])
        for position, segment in enumerate(program.segments):
            taken = passes[position]
            predicted = _predict_segment(program, segment, machine, costs, backward=backward)
            if taken and predicted:
                calls = 1 + len(segment.deferred)
                overhead = calls * machine.segment_back_s if backward else machine.segment_s
                out.append(_SegmentTime(predicted, max(0.0, min(taken) - overhead)))
    return out


def _time_passes(spans: Sequence[Span], way: str) -> Mapping[int, list[float]]:
    """Return the seconds of each pass of each segment, by position, backward with the gradients that it left."""
    seconds = defaultdict[tuple[int, int, int], float](float)
    for span in spans:
        if span.kind == way or (span.kind == WEIGHTS and way == WAYS[1]):
            seconds[span.part, span.step, span.micro] += span.stop_s - span.start_s
    passes = defaultdict[int, list[float]](list)
    for (position, _, _), taken in seconds.items():
        passes[position].append(taken)
    return passes


def _predict_segment(
    program: Program, segment: Segment, machine: Machine, costs: CostModel, *, backward: bool
) -> dict[str, float]:
    seconds = defaultdict[str, float](float)
    for step in segment.steps:
        if step.op:
            work = costs.work(program.ops[step.op], step.box)
            ahead, back = work.seconds(machine)
            seconds[work.kind] += back + (ahead if segment.recompute else 0.0) if backward else ahead
    return {kind: value for kind, value in seconds.items() if value > 0}


def _fit_factors(segments: Sequence[_SegmentTime]) -> dict[str, float]:
    """Return the factor of each class that fits the segments best, in proportion to the time that they take."""
    kinds = sorted({kind for one in segments for kind in one.predicted})
    if not kinds:
        return {}
    whole = sum(sum(one.predicted.values()) for one in segments)
    rows = [[one.predicted.get(kind, 0.0) / whole for kind in kinds] for one in segments]
    wanted = [one.measured_s / whole for one in segments]
    parts = np.array(rows).sum(axis=0)
    lean = np.diag(LEAN * parts)
    found, *_ = np.linalg.lstsq(np.vstack([rows, lean]), np.concatenate([wanted, LEAN * parts]), rcond=None)
    return {kind: float(min(MAX_FACTOR, max(MIN_FACTOR, factor))) for kind, factor in zip(kinds, found, strict=True)}


def _compare_messages(spans: RecordedSpans, cluster: Cluster) -> tuple[float | None, int]:
    """Return measured over predicted seconds of the messages that were waited for, and their number."""
    waited = {
        (target, received.peer, received.what, received.step, received.micro, received.part)
        for target, own in enumerate(spans)
        for wait, received in pair_waits(own)
        if received is not None and received.stop_s > wait.start_s
    }
    measured, predicted = [], []
    for one in match_transfers(spans):
        if (one.target, one.source, one.what, one.step, one.micro, one.edge) in waited:
            handling = cluster.machines[one.source].message_s + cluster.machines[one.target].message_s
            network = cluster.latency_between(one.source, one.target)
            predicted.append(network + handling + one.bytes / cluster.bandwidth_between(one.source, one.target))
            measured.append(one.taken_s - one.sent_s)
    if not measured:
        return None, 0
    ratios = sorted(a / b for a, b in zip(measured, predicted, strict=True) if b > 0)
    return (ratios[len(ratios) // 2] if ratios else None), len(ratios)


def describe_mispredictions(found: Mispredictions) -> list[str]:
    """Say in a sentence what took longer or less than predicted; none where nothing of weight did."""
    wrong = []
    for kind, (ahead, back, part) in sorted(found.classes.items(), key=lambda item: -item[1][2]):
        if part < MIN_PART:
            continue
        sides = [
            f"{way} {_format_factor(ratio)}" for way, ratio in zip(WAYS, (ahead, back), strict=True) if _is_off(ratio)
        ]
        if sides:
            wrong.append(f"{CLASS_NAMES[kind]} ({format_percent(part)} of the computing): {' and '.join(sides)}")
    if found.link is not None and _is_off(found.link):
        wrong.append(f"messages: {_format_factor(found.link)}")
    return [f"Mispredicted, measured over predicted: {'; '.join(wrong)}."] if wrong else []


def _is_off(ratio: float) -> bool:
    return max(ratio, 1 / ratio) >= WORTH_SAYING


def _format_factor(ratio: float) -> str:
    return f"{ratio:.1f} x"
