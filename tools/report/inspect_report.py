"""What `cutset inspect` says of a model: the sharding rule, loops and FLOPs of each operator, and what can be cut."""

from typing import Any

from rich.text import Text

from ...partition.ir.graph import FOUND, OPAQUE, Graph, Op
from ..task.capture_task import CapturedTask
from ..units import format_count, format_percent
from .console import make_console, print_columns


def describe_capture(capture: CapturedTask) -> dict[str, Any]:
    """Return operators in order, totals, and the fraction of the FLOPs in operators that can be cut, as plain data."""
    graph = capture.train
    total = sum(op.flops for op in graph.ops) or 1.0
    parameters = sum(_count_elements(p.shape) for p in graph.parameters)
    return {
        "task": capture.task.name,
        "batch": capture.batch,
        "parameters": parameters,
        "parameter_bytes": sum(_count_elements(p.shape) * p.element_bytes for p in graph.parameters),
        "flops_forward": sum(op.flops for op in graph.ops),
        "cuttable_share": sum(op.flops for op in graph.ops if op.is_cuttable) / total,
        "found": sorted({op.target for op in graph.ops if op.sharding_rule == FOUND}),
        "unrolled": capture.unrolled,
        "notes": list(capture.notes),
        "opaque": sorted({op.target for op in graph.ops if op.sharding_rule == OPAQUE}),
        "ops": [_describe_op(graph, op, total) for op in graph.ops],
    }


def _count_elements(shape: tuple[int, ...]) -> int:
    elements = 1
    for size in shape:
        elements *= size
    return elements


def _describe_op(graph: Graph, op: Op, total: float) -> dict[str, Any]:
    loops = [{"axis": graph.axes[loop.axis][0], "size": loop.size, "kind": loop.kind} for loop in op.nest.loops]
    return {
        "name": op.name,
        "op": op.target,
        "sharding_rule": op.sharding_rule,
        "module": op.module,
        "source": op.source,
        "flops": op.flops,
        "share": op.flops / total,
        "loops": loops,
        "cuttable": op.is_cuttable,
    }


def print_inspection(facts: dict[str, Any]) -> None:
    """Print the operators as a table, and the totals."""
    console = make_console()
    rows = [
        (
            op["name"],
            op["module"],
            op["sharding_rule"].removeprefix("aten."),
            " ".join(_format_loop(loop) for loop in op["loops"]),
            format_count(op["flops"]),
            format_percent(op["share"]),
        )
        for op in facts["ops"]
    ]
    print_columns(console, ("operator", "module", "rule", "loops", "FLOP", "share"), rows, left=4)
    console.print(
        Text(
            f"{facts['task']}: {format_count(facts['parameters'])} parameters, "
            f"{format_count(facts['flops_forward'])} FLOP forward for {facts['batch']} samples; "
            f"{format_percent(facts['cuttable_share'])} of the FLOPs can be cut inside an operator.",
            style="bold",
        )
    )
    console.print(
        Text("Loops: n parallel, +n summed over (partial sums are added up), [n] never cut. Rule: the sharding rule.")
    )
    if facts["found"]:
        console.print(Text(f"With a rule found by running them on made-up operands: {', '.join(facts['found'])}"))
    if facts["unrolled"]:
        console.print(
            Text("Recurrent nets are listed step by step, as they can be cut; one machine computes them whole.")
        )
    for note in facts["notes"]:
        console.print(Text(f"note: {note}"))
    if facts["opaque"]:
        console.print(Text(f"Without a sharding rule, so never cut inside: {', '.join(facts['opaque'])}"))


def _format_loop(loop: dict[str, Any]) -> str:
    size = str(loop["size"])
    return {"parallel": size, "reduction": f"+{size}", "fixed": f"[{size}]"}[loop["kind"]]
