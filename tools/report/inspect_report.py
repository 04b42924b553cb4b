"""What `cutset inspect` tells of a model: each operator's row, loops and FLOPs, and how much of it can be cut."""

from typing import Any

from rich.text import Text

from ...partition.ir.graph import Graph, Op
from ...partition.capture.axis_inference import OPAQUE
from .console import make_console, print_columns
from ..task.plan_task import Captured
from ..units import count_text, percent_text


def inspection(ready: Captured) -> dict[str, Any]:
    """Plain data: operators in order, totals, and the share of the FLOPs in operators that can be cut inside."""
    graph = ready.train
    total = sum(op.flops for op in graph.ops) or 1.0
    parameters = sum(_elements(p.shape) for p in graph.parameters)
    return {
        "task": ready.task.name,
        "batch": ready.batch,
        "parameters": parameters,
        "parameter_bytes": sum(_elements(p.shape) * p.element_bytes for p in graph.parameters),
        "flops_forward": sum(op.flops for op in graph.ops),
        "cuttable_share": sum(op.flops for op in graph.ops if op.cuttable) / total,
        "opaque": sorted({op.target for op in graph.ops if op.row == OPAQUE}),
        "ops": [_op(graph, op, total) for op in graph.ops],
    }


def _elements(shape: tuple[int, ...]) -> int:
    elements = 1
    for size in shape:
        elements *= size
    return elements


def _op(graph: Graph, op: Op, total: float) -> dict[str, Any]:
    loops = [{"axis": graph.axes[loop.axis][0], "size": loop.size, "kind": loop.kind} for loop in op.nest.loops]
    return {
        "name": op.name,
        "op": op.target,
        "row": op.row,
        "module": op.module,
        "source": op.source,
        "flops": op.flops,
        "share": op.flops / total,
        "loops": loops,
        "cuttable": op.cuttable,
    }


def print_inspection(facts: dict[str, Any]) -> None:
    """The same as a table."""
    console = make_console()
    rows = [
        (
            op["name"],
            op["module"],
            op["row"].removeprefix("aten."),
            " ".join(_loop(loop) for loop in op["loops"]),
            count_text(op["flops"]),
            percent_text(op["share"]),
        )
        for op in facts["ops"]
    ]
    print_columns(console, ("operator", "module", "row", "loops", "FLOP", "share"), rows, left=4)
    console.print(
        Text(
            f"{facts['task']}: {count_text(facts['parameters'])} parameters, "
            f"{count_text(facts['flops_forward'])} FLOP forward for {facts['batch']} samples; "
            f"{percent_text(facts['cuttable_share'])} of the FLOPs can be cut inside an operator.",
            style="bold",
        )
    )
    console.print(Text("Loops: n parallel, +n summed over (its cuts are added up), [n] never cut."))
    if facts["opaque"]:
        console.print(Text(f"Without a row, so never cut inside: {', '.join(facts['opaque'])}"))


def _loop(loop: dict[str, Any]) -> str:
    size = str(loop["size"])
    return {"parallel": size, "reduction": f"+{size}", "fixed": f"[{size}]"}[loop["kind"]]
