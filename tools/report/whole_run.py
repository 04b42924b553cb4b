"""The plan of a whole run for people and for programs: the splits of the machines, the chosen one, and its command."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from ...partition.whole_run.run_planner import TOLERANCE, RunPlan
from ...partition.whole_run.run_split import RunSplit
from ..units import format_count, format_number, format_percent, format_seconds
from ..whole_run.plan_task_run import PlannedRun
from ..whole_run.what_if import ChangeEffect
from .console import describe_left_out, make_console, print_columns

MAX_SPLITS = 8  # that are printed


def print_planned_run(planned: PlannedRun, *, console: Console | None = None) -> None:
    """Print what to do with the machines, and how fast the other splits would be."""
    console = console or make_console()
    console.print(Text(describe_run(planned), style="bold"))
    command = f"  {planned.command}\n" if planned.run.pays else ""
    console.print(Text(f"\n{command}"), soft_wrap=True)
    run = planned.run
    columns = (
        "  replicas",
        "machines each",
        "shards",
        "step",
        "computing",
        "samples/s",
        "of the best",
        "limited by",
    )
    best = max(split.samples_per_s for split in run.splits if not split.shortage)
    rows = [_format_split(split, best, chosen=split is run.chosen) for split in run.splits[:MAX_SPLITS]]
    if run.chosen not in run.splits[:MAX_SPLITS]:
        rows.append(_format_split(run.chosen, best, chosen=True))
    print_columns(console, columns, rows, right=[False, *[True] * 6, False])
    console.print(Text(f"* chosen: {_describe_choice(run)}{describe_left_out(len(run.splits) - len(rows))}"))
    if run.rejected:
        console.print(Text(f"Rejected: {'; '.join(run.rejected)}"))
    console.print(Text("\nThe plan of a replica:"))


def describe_run(planned: PlannedRun) -> str:
    """Return the verdict in a sentence or two."""
    run, chosen, method = planned.run, planned.run.chosen, planned.method.name
    if not run.pays:
        machines = format_number(planned.available, "machine")
        speed = f"{format_count(run.one_process)} samples/s"
        return f"One process: {speed}; no split of {machines} by {method} is faster."
    replicas = f"{format_number(chosen.replicas, 'replica')} of {format_number(chosen.machines_each, 'machine')}"
    idle = planned.available - chosen.machines
    left = f" {format_number(idle, 'machine')} would add nothing." if idle else ""
    ratio = "the model is too large for one machine"
    if run.one_process is not None:
        ratio = f"{chosen.samples_per_s / run.one_process:.2f} times one process"
    speed = f"{format_count(chosen.samples_per_s)} samples/s, {ratio}"
    return f"{replicas} by {method}: {speed}, limited by {chosen.limit}.{left}"


def _describe_choice(run: RunPlan) -> str:
    if not run.pays:
        return "the fewest machines"
    return f"the fewest replicas of the splits within {format_percent(TOLERANCE - 1)} of the best"


def _format_split(split: RunSplit, best: float, *, chosen: bool) -> tuple[str, ...]:
    return (
        ("* " if chosen else "  ") + str(split.replicas),
        str(split.machines_each),
        str(split.shards),
        format_seconds(split.step_s),
        format_percent(split.compute_s / split.step_s),
        format_count(split.samples_per_s),
        format_percent(split.samples_per_s / best),
        split.shortage or split.limit,
    )


def describe_effect(effect: ChangeEffect) -> str:
    """Return what a change of the machines would give, in a sentence."""
    if effect.failure:
        return f"with {effect.words}: no plan ({effect.failure})"
    speed = f"{format_count(effect.samples_per_s)} samples/s"
    return f"with {effect.words}: {speed}, {effect.ratio:.2f} times as many as now"


def to_plain(planned: PlannedRun | None, effects: Sequence[ChangeEffect]) -> dict[str, Any]:
    """Return the plan of a run, if there is one, and the changes that were tried, as plain data."""
    run = {} if planned is None else _describe_run_plainly(planned)
    return {**run, "what_if": [dataclasses.asdict(effect) for effect in effects]}


def _describe_run_plainly(planned: PlannedRun) -> dict[str, Any]:
    run = planned.run
    splits = [
        {
            "replicas": split.replicas,
            "machines_each": split.machines_each,
            "shards": split.shards,
            "step_s": split.step_s,
            "compute_s": split.compute_s,
            "samples_per_s": split.samples_per_s,
            "limit": split.limit,
            "fits": not split.shortage,
            "shortage": split.shortage,
            "plan": split.result.winner.name,
        }
        for split in run.splits
    ]
    return {
        "method": planned.method.name,
        "verdict": describe_run(planned),
        "command": planned.command,
        "one_process_samples_per_s": run.one_process,
        "chosen": run.splits.index(run.chosen),
        "splits": splits,
        "rejected": list(run.rejected),
    }
