"""The table of one simulated run: its learning curve, and what it cost."""

from collections.abc import Sequence

import msgspec

from ...units import format_bytes, format_percent, format_seconds
from ...virtual_time.results import Point, SimulationSpec
from ..bench_table import BenchTable, Column
from .curve_runs import CurveResult


def tabulate(spec: SimulationSpec, result: CurveResult, facts: Sequence[str]) -> BenchTable[Point]:
    """Return the curve of a run of replicas. facts: what was assumed."""
    run = result.run
    assert run is not None
    columns: tuple[Column[Point], ...] = (
        Column("simulated time", "seconds", format_seconds),
        Column("samples", "samples", "{:,}".format),
        Column("test accuracy", "test_accuracy", _format_accuracy),
        Column("training accuracy", "train_accuracy", _format_accuracy),
        Column("test loss", "test_loss", "{:.3f}".format),
        Column("training loss", "train_loss", "{:.3f}".format),
    )
    staleness = run.staleness
    notes = [
        f"{spec.replicas} replicas took {sum(run.steps):,} steps; pushes were {staleness['mean'] or 0.0:.1f} updates"
        f" stale, at most {staleness['max'] or 0}; replicas waited for shards {run.waiting:.0%} of their time.",
        f"It took {format_seconds(result.cpu_s)} of CPU and {format_bytes(result.peak_bytes)} of memory.",
        *([f"It ended early: {run.failure}."] if run.failure else []),
        *facts,
    ]
    plain = {"spec": msgspec.to_builtins(spec), "run": msgspec.to_builtins(run)}
    more = {"cpu_s": result.cpu_s, "peak_bytes": result.peak_bytes}
    return BenchTable(columns, run.points, notes=notes, name="points", facts=plain | more)


def _format_accuracy(accuracy: float) -> str:
    return format_percent(accuracy, digits=2)
