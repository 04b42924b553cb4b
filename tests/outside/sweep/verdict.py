"""What became of a model, from the facts that its process sent."""

from collections.abc import Mapping
from typing import Any

# Of the largest entry of each tensor. Models of float64 that compute some values in float32 are right to its digits.
TOLERANCE, NARROW_TOLERANCE = 1e-9, 1e-4

EXACT, CAPTURED = "exact", "captured"
INEXACT = "not exact"
OUTSIDE = "outside"
VERDICTS = (EXACT, CAPTURED, INEXACT, "refused", "error", "timeout", "died", OUTSIDE)


def judge(facts: Mapping[str, Any]) -> str:
    """Return the verdict: one of `VERDICTS`. "captured" where the sweep was not asked to run the cuts."""
    if facts["outcome"] != "done":
        return str(facts["outcome"])
    steps = facts.get("steps", {})
    if not steps:
        return CAPTURED
    return EXACT if all(step["difference"] <= tolerance(facts) for step in steps.values()) else INEXACT


def tolerance(facts: Mapping[str, Any]) -> float:
    """Return how far a cut model may be from plain torch."""
    return NARROW_TOLERANCE if facts["dtype"] != "float64" or facts.get("narrow") else TOLERANCE


def group_reason(facts: Mapping[str, Any]) -> str:
    """Return why a model failed, in the words that all models with the same reason share."""
    if judge(facts) == INEXACT:
        return "a cut differs from plain torch"
    if facts["outcome"] == "timeout":
        return f"in {facts.get('stage')}"
    message = str(facts.get("message", "")).splitlines()[0] if facts.get("message") else ""
    kind = str(facts.get("code") or facts.get("error", ""))
    last = message.rsplit("): ", 1)[-1].removeprefix(f"{kind}: ")
    return f"{kind} {last}".strip()[:120]
