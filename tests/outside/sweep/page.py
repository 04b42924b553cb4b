"""The page of the documentation that says what the sweep found: counts, failures by their reason, and every model."""

import importlib.metadata
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .registry import MODULES, read_entries
from .verdict import EXACT, INEXACT, OUTSIDE, VERDICTS, group_reason, judge, tolerance

Facts = Mapping[str, Any]
PACKAGES = ("torch", "torchvision", "timm", "transformers")
LITTLE = 0.95  # a smaller part of the work that can be cut is listed, with what cannot

INTRODUCTION = """# Models that were tried

`make sweep` takes models from the registries of torchvision, timm and transformers by a rule (`tests/outside/sweep/selection.py`),
and some that are written for it, and has cutset capture, plan and cut each over 2, 3 and 4 machines, without any option. Weights are
random and sizes small. A model is exact if loss, gradients and buffers of a step and its output in evaluation are those of plain torch,
to 1e-9 of the largest entry in float64, and to 1e-4 where the model itself computes in float32. Models that the library does not run
at a small size are outside of the sweep, and listed at the end. The command writes this page.
"""  # noqa: E501 - pages have 140 columns


def render_page(rows: Sequence[Facts]) -> str:
    """Return the page. rows: the facts of each model that was tried."""
    rows = sorted(rows, key=lambda facts: str(facts["key"]))
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in PACKAGES)
    parts = [
        INTRODUCTION,
        f"With {versions}. {_describe_days(rows)}\n",
        *_counts(rows),
        *_failures(rows),
        *_models(rows),
        *_outside(rows),
    ]
    return "\n".join(parts) + "\n"


def _describe_days(rows: Sequence[Facts]) -> str:
    """A sentence on when the models were tried; of old ones the day was not written down."""
    days = sorted(Counter(str(facts.get("day", "before")) for facts in rows).items())
    return f"Models by the day on which they were tried last: {', '.join(f'{day}: {count}' for day, count in days)}."


def _counts(rows: Sequence[Facts]) -> Iterator[str]:
    yield "| library | chosen | tried | captured | planned | " + " | ".join(VERDICTS) + " |"
    yield "|---" * (5 + len(VERDICTS)) + "|"
    groups = _by_library(rows)
    for library in MODULES:
        some = groups[library]
        counts = Counter(judge(facts) for facts in some)
        captured = sum("capture_s" in facts for facts in some)
        planned = sum("plans" in facts for facts in some)
        numbers = [len(read_entries([library], 1)), len(some), captured, planned, *(counts[v] for v in VERDICTS)]
        yield f"| {library} | " + " | ".join(map(str, numbers)) + " |"
    yield ""


def _by_library(rows: Sequence[Facts]) -> defaultdict[str, list[Facts]]:
    groups = defaultdict(list)
    for facts in rows:
        groups[str(facts["library"])].append(facts)
    return groups


def _failures(rows: Sequence[Facts]) -> Iterator[str]:
    groups = defaultdict(list)
    for facts in rows:
        if judge(facts) not in (EXACT, "captured", OUTSIDE):
            groups[judge(facts), group_reason(facts)].append(facts)
    if groups:
        yield "## What fails\n\n| how | why | models |\n|---|---|---|"
    for (verdict, reason), some in sorted(groups.items(), key=lambda item: (-len(item[1]), item[0])):
        yield f"| {verdict} | {_escape(reason)} | {len(some)}: {', '.join(str(facts['key']) for facts in some)} |"
    yield ""


def _models(rows: Sequence[Facts]) -> Iterator[str]:
    yield "## Every model\n\nWhat can be cut: parts of the FLOPs, and of the seconds that the planner reckons with.\n"
    yield "| model | as | operators | FLOPs | seconds | result | capture s | plan s | never cut |\n" + "|---" * 9 + "|"
    for facts in rows:
        if judge(facts) != OUTSIDE:
            yield _describe_model(facts)
    yield ""


def _describe_model(facts: Facts) -> str:
    plans = ", ".join(f"{plan['s']:.0f}" for plan in facts.get("plans", {}).values())
    shares = [f"{facts[key]:.0%}" if key in facts else "" for key in ("cuttable_share", "cuttable_time")]
    capture = f"{facts['capture_s']:.0f}" if "capture_s" in facts else ""
    result = judge(facts)
    if result == INEXACT:
        worst = max(facts["steps"].values(), key=lambda step: step["difference"])
        result = f"{worst['worst']} off by {worst['difference']:.1g}, allowed {tolerance(facts):.0e}"
    cells = [facts["key"], facts.get("says", ""), facts.get("operators", ""), *shares, result, capture, plans]
    return "| " + " | ".join(_escape(str(cell)) for cell in [*cells, _list_whole(facts)]) + " |"


def _list_whole(facts: Facts) -> str:
    if facts.get("cuttable_share", 1.0) >= LITTLE:
        return ""
    whole = sorted(facts["whole"].items(), key=lambda item: -item[1]["flops"])
    return ", ".join(f"{target} {row['flops']:.0%}" for target, row in whole if row["flops"] >= 0.01)


def _outside(rows: Sequence[Facts]) -> Iterator[str]:
    outside = [facts for facts in rows if judge(facts) == OUTSIDE]
    if outside:
        yield "## Outside of the sweep\n\n| model | what the library says |\n|---|---|"
    yield from (f"| {facts['key']} | {_escape(str(facts['message']))[:300]} |" for facts in outside)


def _escape(text: str) -> str:
    """Return a text that may stand in a cell, with names of files in place of their paths."""
    return re.sub(r"/[\w./-]*/", "", text).replace("|", "/").replace("\n", " ").replace("<", "&lt;")
