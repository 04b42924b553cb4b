"""Writes metrics.jsonl as a run of many roles leaves it that has lasted for days: of so many lines, in a run folder.

    .venv/bin/python tests/support/long_metrics.py FOLDER --lines 1000000

`cutset watch FOLDER`, with --html or --web, then shows what a long run costs those who watch it.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

REPLICAS, MACHINES, SHARDS = 2, 2, 4
STEPS_A_SECOND, BATCH = 13, 32
EVALUATE_EVERY_S = 600
BEGAN = 1.7e9


def list_lines(count: int) -> Iterator[str]:
    """Yield so many lines: a begin, a step and a report on the roles for each second, and what happens now and then."""
    yield _line("begin", 0, task="net", method="downpour", machines=MACHINES, replicas=REPLICAS, shards=SHARDS)
    second, written = 0, 1
    while written < count:
        second += 1
        for line in _list_second(second)[: count - written]:
            written += 1
            yield line


def _list_second(second: int) -> list[str]:
    step = STEPS_A_SECOND * second
    progress = {"run": "downpour", "step": step, "samples": BATCH * step, "seconds": float(second)}
    lines = [
        _line("roles", second, run="downpour", roles=make_statuses(second), leases=8),
        _line("step", second + 0.2, **progress, steps=10**9, loss=2.5 / (1 + second / 1000), samples_per_s=416.0),
    ]
    if second % EVALUATE_EVERY_S == 0:
        scores = {"test_loss": 0.5, "test_accuracy": 1 - 1 / (1 + second / 1000), "metrics": {}}
        lines.append(_line("evaluation", second + 0.5, run="downpour", **scores, samples=BATCH * step, seconds=second))
        lines.append(_line("checkpoint", second + 0.6, step=step, folder=f"checkpoints/{step}"))
    return lines


def make_statuses(second: int) -> dict[str, dict[str, Any]]:
    """Return what all roles say after so many seconds."""
    workers = [f"worker-{replica}.{machine}" for replica in range(REPLICAS) for machine in range(MACHINES)]
    shards = [f"shard-{number}" for number in range(SHARDS)]
    own = {"at_s": float(second), "beat_s": second + 0.4, "cpu_s": second * 0.41, "rss": 394_829_824}
    sent = 1_200_000 * second
    statuses = dict[str, dict[str, Any]]()
    for name in shards:
        links = dict.fromkeys(workers, sent)
        staleness = {"mean": 0.98, "p50": 1, "p90": 1, "max": 5}
        counts = {"updates": 13 * second, "pushes": 13 * second, "late": 0, "unsaved_s": 2.866}
        statuses[name] = {**own, **counts, "staleness": staleness, "links": links}
    for name in workers:
        waited = {"data": 0.01 * second, "leases": 0.0, "shards": 0.05 * second, "peers": 0.2 * second}
        links = dict.fromkeys([*shards, *(other for other in workers if other[:-2] == name[:-2] != other)], sent)
        statuses[name] = {**own, "step": 6 * second, "loss": 0.5, "links": links, "waited": waited, "unacknowledged": 1}
    return statuses


def _line(event: str, second: float, **what: Any) -> str:
    return json.dumps({"event": event, "time": BEGAN + second, **what}) + "\n"


def write_run(folder: Path, lines: int) -> None:
    """Write a run folder with so many lines; without the end of a run, as one that was killed leaves it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text("{}")
    with (folder / "metrics.jsonl").open("w") as file:
        file.writelines(list_lines(lines))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--lines", type=int, default=1_000_000)
    arguments = parser.parse_args()
    write_run(arguments.folder, arguments.lines)
