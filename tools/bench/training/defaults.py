"""`cutset bench defaults`: what every method reaches with its defaults alone, beside one process with those.

A run is that of `cutset train TASK --replicas N --method METHOD`, nothing else named.
"""

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Any

from ....ps.methods.registry import METHODS
from ...config.run_config import RunConfig
from ...job.prepare import prepare
from ...train import run
from ...units import format_percent
from ..bench_table import BenchTable, Column

DIGITS, MNIST = "cutset.models:digits", "cutset.models:mnist"
ONE = "one process"
MAX_LOSS = 0.01  # of accuracy, against one process
Tell = Callable[[str], None]


@dataclass(frozen=True)
class DefaultsResult:
    """What one way of training reached: the test accuracies of runs, one for each seed."""

    task: str
    method: str
    replicas: int
    accuracies: tuple[float, ...]

    @property
    def accuracy(self) -> float:
        """Their mean."""
        return mean(self.accuracies)


def measure_defaults(
    tasks: Sequence[tuple[str, str | None]],
    *,
    methods: Sequence[str] = tuple(METHODS),
    replicas: Sequence[int],
    seeds: int,
    tell: Tell,
) -> list[DefaultsResult]:
    """Train each task, with its data, by one process and by each method with so many replicas.

    tell: is called with a line of progress now and then.
    """
    results = []
    for task, data in tasks:
        base = RunConfig(task, data=data, baseline=False)
        one = replace(base, method="sync")  # of one replica: what one process computes
        ways = [(ONE, one), *((name, replace(base, method=name, replicas=n)) for n in replicas for name in methods)]
        for name, config in ways:
            found = tuple(_train(replace(config, seed=seed)) for seed in range(seeds))
            results.append(DefaultsResult(task.rpartition(":")[2], name, config.replicas, found))
            tell(f"{results[-1].task}, {name}, {config.replicas} replicas: {results[-1].accuracy:.2%}")
    return results


def _train(config: RunConfig) -> float:
    """Return the test accuracy of a run."""
    with tempfile.TemporaryDirectory(prefix="cutset-bench-") as folder:
        result: dict[str, Any] = run(prepare(replace(config, out=Path(folder) / "run")))
    return float(result["rows"][-1]["test_accuracy"])


def tabulate_defaults(rows: Sequence[DefaultsResult]) -> BenchTable[DefaultsResult]:
    """Return the table of all rows; a note says which method is furthest behind one process."""
    alone = {row.task: row.accuracy for row in rows if row.method == ONE}

    def behind(row: DefaultsResult) -> float:
        return row.accuracy - alone[row.task]

    columns: list[Column[DefaultsResult]] = [
        Column("task", "task", align="left"),
        Column("method", "method", align="left"),
        Column("replicas", "replicas"),
        Column("accuracy", "accuracy", lambda value: format_percent(value, digits=1)),
        Column("against one process", "behind", lambda value: f"{100 * value:+.1f} points", behind),
        Column("runs", "accuracies", lambda values: ", ".join(f"{100 * value:.1f}" for value in values)),
    ]
    worst = min(rows, key=behind)
    verdict = "met" if behind(worst) >= -MAX_LOSS else "MISSED"
    note = f"{verdict}: no method more than a point behind one process; {worst.method} is {100 * behind(worst):+.1f}"
    return BenchTable(columns, rows, notes=[note])
