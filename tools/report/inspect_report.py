"""What `cutset inspect` says of a model: the sharding rule, loops and FLOPs of each operator, and what can be cut."""

from typing import Any

from rich.text import Text

from ...partition.cluster.cost_model import CostModel
from ...partition.cluster.machines import Machine
from ...partition.ir.graph import FOUND, OPAQUE, Graph, Op
from ...partition.operators.island import ISLAND, NUMBER_FUNCTIONS, decode_form
from ...partition.operators.leaf_module import LEAF_MODULE
from ..task.capture_task import CapturedTask
from ..units import format_count, format_percent
from .console import make_console, print_columns

MAX_LISTED = 4  # operators of an island
ONE = Machine("a desktop's core")


def describe_capture(capture: CapturedTask) -> dict[str, Any]:
    """Return operators in order, totals, and the fraction of the FLOPs in operators that can be cut, as plain data."""
    graph = capture.train
    total = sum(op.flops for op in graph.ops) or 1.0
    costs = CostModel(graph.tensors)
    seconds = {op.name: sum(costs.seconds(op, op.nest.box, ONE)) for op in graph.ops}
    duration = sum(seconds.values()) or 1.0
    parameters = sum(_count_elements(p.shape) for p in graph.parameters)
    return {
        "task": capture.task.name,
        "batch": capture.batch,
        "parameters": parameters,
        "parameter_bytes": sum(_count_elements(p.shape) * p.element_bytes for p in graph.parameters),
        "flops_forward": sum(op.flops for op in graph.ops),
        "cuttable_share": sum(op.flops for op in graph.ops if op.is_cuttable) / total,
        "cuttable_time": sum(seconds[op.name] for op in graph.ops if op.is_cuttable) / duration,
        "islands": [
            {**_describe_island(op), "time": seconds[op.name] / duration}
            for op in graph.ops
            if op.target in (ISLAND, LEAF_MODULE)
        ],
        "found": sorted({op.target for op in graph.ops if op.sharding_rule == FOUND}),
        "unrolled": capture.unrolled,
        "notes": list(capture.notes),
        "opaque": sorted({op.target for op in graph.ops if op.sharding_rule == OPAQUE} - {ISLAND, LEAF_MODULE}),
        "ops": [_describe_op(graph, op, total) for op in graph.ops],
    }


def _describe_island(op: Op) -> dict[str, Any]:
    """Say where an island stands and what is in it: operators whose sizes depend on data, or code of the user's."""
    if op.target == LEAF_MODULE:
        name = op.arguments["name"]
        return {"name": op.name, "module": name, "source": op.source, "why": "its code is run as it is, not traced"}
    targets = [step.target for step in decode_form(op.arguments["form"]).steps if step.target not in NUMBER_FUNCTIONS]
    names = list(dict.fromkeys(target.split(".")[1] for target in targets))
    listed = ", ".join(names[:MAX_LISTED]) + (", ..." if len(names) > MAX_LISTED else "")
    return {"name": op.name, "module": op.module, "source": op.source, "why": f"sizes depend on data: {listed}"}


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
            f"{format_percent(facts['cuttable_share'])} of the FLOPs, {format_percent(facts['cuttable_time'])} of the "
            "time can be cut inside an operator.",
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
    if facts["islands"]:
        console.print(Text("Islands, which stay whole on one machine each:"))
        found = [(i["name"], i["module"], i["source"], i["why"], format_percent(i["time"])) for i in facts["islands"]]
        print_columns(console, ("island", "module", "line", "why", "time"), found, left=4)
    for note in facts["notes"]:
        console.print(Text(f"note: {note}"))
    if facts["opaque"]:
        console.print(Text(f"Without a sharding rule, so never cut inside: {', '.join(facts['opaque'])}"))


def _format_loop(loop: dict[str, Any]) -> str:
    size = str(loop["size"])
    return {"parallel": size, "reduction": f"+{size}", "fixed": f"[{size}]"}[loop["kind"]]
