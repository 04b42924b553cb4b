"""What differs between two placements: step, traffic, memory, and which operators are divided in another way."""

from dataclasses import dataclass
from typing import Any

from ...errors import BadInput
from ...partition.placement.placement_file import OpPlacement, Placement
from ..units import format_bytes, format_number, format_percent, format_seconds

MAX_OPERATORS = 12  # that are listed


@dataclass(frozen=True)
class PlacementDifference:
    """Two placements of one model, and the operators that they divide in different ways, in the model's order."""

    first: Placement
    second: Placement
    operators: tuple[str, ...]


def compare_placements(first: Placement, second: Placement) -> PlacementDifference:
    """Compare two placements. BadInput where they are not of the same model."""
    if first.fingerprint != second.fingerprint:
        facts = f"the placements are of two models, or of one with other sizes: {first.model} and {second.model}"
        raise BadInput("E340", facts, fix="plan both for the same task and --batch")
    others = {op.name: op for op in second.ops}
    names = [op.name for op in first.ops if _describe_boxes(op) != _describe_boxes(others[op.name])]
    return PlacementDifference(first, second, tuple(names))


def _describe_boxes(op: OpPlacement) -> object:
    """Return how an operator is divided: its boxes, and which of them are on one machine, whatever its number."""
    numbers: dict[int, int] = {}
    boxes = sorted((box.box, box.machine) for box in op.boxes)
    return [(box, numbers.setdefault(machine, len(numbers))) for box, machine in boxes]


def describe_difference(difference: PlacementDifference) -> list[str]:
    """Return what differs as lines of text."""
    first, second = difference.first, difference.second
    rows = [
        ("plan", first.winner, second.winner, ""),
        ("machines", str(len(first.machines)), str(len(second.machines)), ""),
        _compare("step", first.predicted.step_s, second.predicted.step_s, format_seconds),
        _compare("bytes forward", first.predicted.bytes_forward, second.predicted.bytes_forward, format_bytes),
        _compare("memory of the fullest machine", _find_peak(first), _find_peak(second), format_bytes),
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    lines = []
    for what, one, other, change in rows:
        lines.append(f"{what:{widths[0]}}  {one:{widths[1]}}  {other:{widths[2]}}  {change}".rstrip())
    names = difference.operators
    if not names:
        return [*lines, "every operator is divided in the same way"]
    shown = ", ".join(names[:MAX_OPERATORS]) + (", ..." if len(names) > MAX_OPERATORS else "")
    count = format_number(len(names), "operator")
    return [*lines, f"{count} of {len(first.ops)} divided in another way: {shown}"]


def to_plain(difference: PlacementDifference) -> dict[str, Any]:
    """Return what differs as plain data."""
    return {
        "machines": [len(one.machines) for one in (difference.first, difference.second)],
        "plan": [one.winner for one in (difference.first, difference.second)],
        "step_s": [one.predicted.step_s for one in (difference.first, difference.second)],
        "bytes_forward": [one.predicted.bytes_forward for one in (difference.first, difference.second)],
        "peak_memory_bytes": [_find_peak(one) for one in (difference.first, difference.second)],
        "operators": list(difference.operators),
    }


def _find_peak(placement: Placement) -> int:
    return max(machine.memory_used_bytes for machine in placement.machines)


def _compare(what: str, first: float, second: float, show: Any) -> tuple[str, str, str, str]:
    same = first <= 0 or first == second
    change = "" if same else f"{'+' if second > first else ''}{format_percent(second / first - 1)}"
    return (what, show(first), show(second), change)
