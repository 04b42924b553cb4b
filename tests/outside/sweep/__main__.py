"""The command: `make sweep`, with options in SWEEP, for example SWEEP='--library timm --every 5'."""

import importlib
import json
import signal
import sys
import sysconfig
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import click
import torchvision_operators

from .examination import examine
from .page import render_page
from .plain import find_subject
from .processes import examine_all
from .registry import MODULES, choose_models, list_trials, read_entries
from .selection import Entry
from .verdict import judge

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "guide" / "models_tried.md"
RESULTS = PAGE.with_suffix(".jsonl")
WARM_UP = Entry("written", "own statistics, in place")
MACHINES = (2, 3, 4)


def hide_paths(text: str) -> str:
    """Leave out where this machine keeps the project and its packages: what is said is for readers elsewhere."""
    for path in (f"{sysconfig.get_path('purelib')}/", f"{ROOT}/"):
        text = text.replace(path, "")
    return text


def import_libraries() -> None:
    """Import what processes would each import anew, and examine a small model: torch imports much at first use."""
    torchvision_operators.import_models()
    for name in ("timm", "transformers.models.auto.modeling_auto"):
        importlib.import_module(name)
    examine(find_subject(list_trials(WARM_UP)), machines=MACHINES[:1], tell=lambda facts: None)


def read_results(file: Path) -> list[dict[str, Any]]:
    """Return the facts of the models that were tried before; of one that was tried again, the last."""
    lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    return list({facts["key"]: facts for facts in lines}.values())


def write_results(file: Path, results: list[dict[str, Any]]) -> None:
    """Write a line for each model, in the place of what was there."""
    beside = file.with_suffix(".new")
    beside.write_text("".join(json.dumps(facts) + "\n" for facts in results), encoding="utf-8")
    beside.replace(file)


def leave_out_done(entries: Sequence[Entry], results: Sequence[Mapping[str, Any]], since: str) -> list[Entry]:
    """Return the entries that were not tried since that day, as 2026-11-27; "" for those that never were."""
    done = {facts["key"] for facts in results if facts.get("day", "") >= since}
    return [entry for entry in entries if entry.key not in done]


@click.command()
@click.option("--library", multiple=True, type=click.Choice(list(MODULES)), help="Only this one; may be repeated.")
@click.option("--name", "names", multiple=True, help="Only this model, as chosen.json has it; may be repeated.")
@click.option("--every", default=1, help="Only every so many of the models of each library.")
@click.option("--jobs", default=1, help="Processes at a time.")
@click.option("--timeout", "timeout_s", default=600.0, help="Seconds that a model may take.")
@click.option("--capture-only", is_flag=True, help="Neither plan nor cut, nor compare the trace with plain torch.")
@click.option("--choose", is_flag=True, help="Write chosen.json anew, and do nothing else.")
@click.option("--since", type=click.DateTime(["%Y-%m-%d"]), help="Try again what was tried before this day.")
@click.option("--results", type=click.Path(path_type=Path), default=RESULTS, help="A line for each model; resumed.")
@click.option("--page", type=click.Path(path_type=Path), default=PAGE, help="The page to write.")
def main(
    library: tuple[str, ...],
    names: tuple[str, ...],
    every: int,
    jobs: int,
    timeout_s: float,
    capture_only: bool,
    choose: bool,
    since: datetime | None,
    results: Path,
    page: Path,
) -> None:
    """Have cutset capture, plan and cut models of the libraries' registries, and write what it found."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # so that no process is left
    import_libraries()
    if choose:
        choose_models()
        return
    entries = [e for e in read_entries(library or tuple(MODULES), every) if not names or e.name in names]
    left = leave_out_done(entries, read_results(results), "" if since is None else f"{since:%Y-%m-%d}")
    machines = () if capture_only else MACHINES
    results.parent.mkdir(parents=True, exist_ok=True)
    with results.open("a") as file:
        for number, facts in enumerate(examine_all(left, machines=machines, jobs=jobs, timeout_s=timeout_s), 1):
            file.write(hide_paths(json.dumps(facts | {"day": time.strftime("%F")})) + "\n")
            file.flush()
            said = f"{facts['key']}: {judge(facts)}, {facts['total_s']:.0f} s {facts.get('message', '')[:100]}"
            click.echo(f"{time.strftime('%T')} {number}/{len(left)} {said}")
    write_results(results, read_results(results))
    page.write_text(render_page(read_results(results)), encoding="utf-8")
    click.echo(f"written to {page}")


if __name__ == "__main__":
    main()
