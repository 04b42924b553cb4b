"""Turns a placement file back into a cut, and refuses one of another model by naming the first difference."""

import shlex
from collections.abc import Sequence

from ...errors import BadInput
from ..dataflow.cut import Cut, PlacedBox, check_cut
from ..ir.graph import Graph, Op
from .placement_file import BoxPlacement, Fingerprint, OpPlacement, Placement


def fingerprint(graph: Graph) -> Fingerprint:
    """What a placement remembers of its model."""
    return Fingerprint([(p.name, list(p.shape), p.dtype) for p in graph.parameters], graph.digest)


def cut_from_placement(placement: Placement, graph: Graph) -> Cut:
    """The cut that a placement describes, checked against the model's graph.

    Raises BadInput, which names the first difference between the placement and the model.
    """
    _check_fingerprint(placement, graph)
    cut = Cut(
        len(placement.machines),
        {op.name: _placed_boxes(op.boxes) for op in placement.ops},
        {op.name: _placed_boxes(op.fold) for op in placement.ops if op.fold},
        {p.name: _placed_boxes(p.boxes) for p in placement.parameters},
        frozenset((number, stage) for number, m in enumerate(placement.machines) for stage in m.recomputes),
        placement.wave,
        {(number, stage): after for number, m in enumerate(placement.machines) for stage, after in m.defers},
    )
    check_cut(graph, cut)
    return cut


def _placed_boxes(pieces: Sequence[BoxPlacement]) -> list[PlacedBox]:
    return [(tuple((start, stop) for start, stop in piece.box), piece.machine) for piece in pieces]


def _check_fingerprint(placement: Placement, graph: Graph) -> None:
    ours, theirs = fingerprint(graph), placement.fingerprint
    fix = f"cutset plan {shlex.quote(placement.model)} -o NEW.json"
    here = {name: (tuple(shape), dtype) for name, shape, dtype in ours.parameters}
    there = {name: (tuple(shape), dtype) for name, shape, dtype in theirs.parameters}
    for name in [*there, *here]:
        if here.get(name) != there.get(name):
            raise BadInput(
                "E340",
                f"the placement is for another model: parameter {name} is {_describe_parameter(there.get(name))} "
                f"in the placement, {_describe_parameter(here.get(name))} in the model",
                fix=fix,
            )
    for i in range(max(len(placement.ops), len(graph.ops))):
        before = _op_line(placement.ops[i]) if i < len(placement.ops) else "missing"
        now = _graph_op_line(graph.ops[i]) if i < len(graph.ops) else "missing"
        if before != now:
            raise BadInput(
                "E340",
                f"the placement is for another model: operator {i} is {before} in the placement, {now} in the model",
                fix=fix,
            )
    if ours.graph != theirs.graph:
        raise BadInput(
            "E340",
            f"the placement is for another model: same parameters and operators, other arguments "
            f"(graph {theirs.graph[:12]} in the placement, {ours.graph[:12]} in the model)",
            fix=fix,
        )


def _describe_parameter(parameter: tuple[tuple[int, ...], str] | None) -> str:
    return "missing" if parameter is None else f"{parameter[1]}{list(parameter[0])}"


def _op_line(op: OpPlacement) -> str:
    return f"{op.name} {op.op} {[loop.size for loop in op.loops]}"


def _graph_op_line(op: Op) -> str:
    return f"{op.name} {op.target} {[loop.size for loop in op.nest.loops]}"
