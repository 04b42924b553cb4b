"""The verdict of a plan in words: whether distributing pays, what is sent, and along what the model is split."""

from collections import defaultdict
from collections.abc import Mapping

from ..dataflow.cut import Cut
from ..ir.graph import Op
from ..mincut.cut_axes import spatial_axes, unit_axes
from ..planner.forms import FormChoice
from ..planner.plan import TIME_TOLERANCE, PlanningResult, ScoredPlan
from ..planner.whole_operators import list_independent
from .placement_file import MeasuredSteps

BATCH, UNITS, SUMS = "the batch", "hidden units", "reduction dimensions"
IMAGE, OTHER = "the image", "other axes"
_FIELD_TERMS = {
    BATCH: "data parallel",
    UNITS: "tensor parallel",
    SUMS: "tensor parallel",
    IMAGE: "spatially parallel",
}


def write_verdict(result: PlanningResult) -> str:
    """How much faster the plan is than one machine, or how much slower more machines would be, in a few sentences.

    It begins with why machines had to be left out, if so.
    """
    if not result.shortage:
        return _describe_winner(result)
    count, used = len(result.problem.cluster), len(result.winner.cluster)
    left_out = f"{count - used} of {count} machines {'are' if count - used > 1 else 'is'} left out"
    return f"{result.shortage[0].upper()}{result.shortage[1:]}, so {left_out}. {_describe_winner(result)}"


def _describe_winner(result: PlanningResult) -> str:
    winner, one_machine = result.winner, result.one_machine
    machines, seconds, single = winner.cut.machines, winner.simulation.step_s, one_machine.simulation.step_s
    alone = " with all the cores" if one_machine.cluster.shared else ""
    if machines == 1:
        return f"{_describe_more_machines(result)}One machine{alone}: {format_time(seconds)}/step."
    traffic = f"{format_bytes(winner.bytes_forward * result.problem.micro_batches)} forward"
    if winner.dataflow.depends_on_data:
        traffic = f"about {traffic} (the data chooses which rows)"
    details = f"they send {traffic}{_describe_recomputation(winner)}. {describe_split(winner)}"
    fewer = result.fewer
    if fewer is not None:
        quicker = f"{format_time(fewer.simulation.step_s)}/step: --max-machines {len(fewer.cluster)}"
        details += f" Fewer machines would be faster, {quicker}."
    if not one_machine.fits:
        return f"The model does not fit on one machine: {machines} machines {format_time(seconds)}/step; {details}"
    if seconds < single:
        available = max(len(plan.cluster) for plan in result.plans)
        which = f"{machines} of {available} machines" if machines < available else f"{machines} machines"
        ratio = f"{single / seconds:.2f}x faster than one{alone}"
        return f"Worth distributing: {which} {format_time(seconds)}/step, {ratio}; {details}"
    slower = f"{machines} machines {format_time(seconds)} ({seconds / single:.1f}x slower)"
    over = "" if fewer is None else f" over {machines} machines"
    return f"Not worth distributing{over}: 1 machine{alone} {format_time(single)}/step, {slower}; {details}"


def describe_measured(machines: int, measured: MeasuredSteps) -> str:
    """Whether distributing pays where both were measured."""
    seconds, single = measured.step_s, measured.one_machine_s
    times = f"{machines} machines {format_time(seconds)}/step, 1 machine with all the cores {format_time(single)}"
    if 1 / TIME_TOLERANCE < seconds / single < TIME_TOLERANCE:
        return f"As good as one machine, as measured: {times}."
    return f"{'Worth' if seconds < single else 'Not worth'} distributing, as measured: {times}."


def describe_forms(choice: FormChoice) -> str:
    """Which form of the recurrent nets was better, and how much slower the plan of the other is."""
    forms = ("step by step", "whole") if choice.unrolled else ("whole", "step by step")
    if choice.runner_up is None:
        return f"Recurrent nets are computed {forms[0]}."
    seconds = format_time(choice.runner_up.winner.simulation.step_s)
    return f"Recurrent nets are computed {forms[0]}; {forms[1]}, a step would take {seconds}."


def _describe_more_machines(result: PlanningResult) -> str:
    """What the fastest plan for several machines would take, where there were some to choose from."""
    several = [plan for plan in result.plans if len(plan.cluster) > 1 and plan.fits]
    if not several:
        return ""
    best = min(several, key=lambda plan: plan.simulation.step_s)
    count, seconds, single = len(best.cluster), best.simulation.step_s, result.winner.simulation.step_s
    if seconds < single:  # another objective than time was asked for
        return f"{count} machines would be {single / seconds:.1f}x faster: {format_time(seconds)}/step. "
    ratio = f"{seconds / single:.1f}x slower"
    return f"Adding machines does not help: {format_time(seconds)}/step on {count} ({ratio}). "


def _describe_recomputation(winner: ScoredPlan) -> str:
    cut = winner.cut
    if not cut.recomputed:
        return ""
    segments = {(i.machine, i.stage) for i in winner.dataflow.instructions}
    return f"; to fit in memory, {len(cut.recomputed)} of {len(segments)} segments recompute their activations"


def describe_split(plan: ScoredPlan) -> str:
    """Along what most of the work is split, with the field's term for it; "" for one machine."""
    graph, cut = plan.graph, plan.cut
    if cut.machines == 1:
        return ""
    labels = {**dict.fromkeys(unit_axes(graph), UNITS), **dict.fromkeys(spatial_axes(graph), IMAGE)}
    labels |= dict.fromkeys(graph.batch_axes, BATCH)
    flops: dict[tuple[tuple[str, int], ...], float] = defaultdict(float)
    for op in graph.ops:
        flops[_split_of(op, cut, labels)] += op.flops
    splits = max(flops, key=lambda split: flops[split])
    if not splits:
        beside = [group for group in list_independent(graph, {}) if len({cut.boxes[op.name][0][1] for op in group}) > 1]
        if sum(op.flops for group in beside for op in group) > flops[splits] / 2:
            return (
                "Most of the work is in operators that are whole, side by side on different machines = expert parallel."
            )
        return "Most operators are whole, on one machine each = pipeline parallel."
    parts = " and ".join(f"{what} in {count}" for what, count in splits)
    term = _FIELD_TERMS.get(splits[0][0]) if len(splits) == 1 else None
    return f"Most of the work splits {parts} = {term}." if term else f"Most of the work splits {parts}."


def _split_of(op: Op, cut: Cut, labels: Mapping[int, str]) -> tuple[tuple[str, int], ...]:
    """What an operator is split along, and into how many parts each. labels: by axis."""
    parts: dict[str, int] = {}
    for i, loop in enumerate(op.nest.loops):
        count = len({box[i] for box, _ in cut.boxes[op.name]})
        if count > 1:
            label = labels.get(loop.axis, OTHER)
            label = SUMS if loop.kind == "reduction" and label != BATCH else label
            parts[label] = parts.get(label, 1) * count
    return tuple(parts.items())


def format_bytes(count: int) -> str:
    """Three digits, in KiB, MiB or GiB."""
    value = count / 1024
    for unit in ("KiB", "MiB"):
        if value < 1000:
            return f"{value:.3g} {unit}"
        value /= 1024
    return f"{value:.3g} GiB"


def format_time(seconds: float) -> str:
    """Three digits, in seconds or milliseconds."""
    return f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"
