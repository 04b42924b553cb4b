"""Pins: "GLOB=MACHINE" puts operators whole on a machine, named by their module, themselves or their parameters."""

import difflib
import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from ...errors import Infeasible, UsageError
from ..cluster.hierarchy import order_machines
from ..cluster.machines import Cluster
from ..dataflow.memory_model import state_bytes
from ..ir.box import volume
from ..ir.graph import STATE_KINDS, Graph, Op


def resolve_pins(graph: Graph, cluster: Cluster, pins: Sequence[str]) -> dict[str, int]:
    """Resolve pins to operator -> machine.

    Raises UsageError where a pin has the wrong form, matches nothing, names no machine or contradicts another pin, and
    Infeasible where a machine cannot even hold the parameters that are pinned to it.
    """
    out: dict[str, int] = {}
    pin_of: dict[str, str] = {}
    for pin in pins:
        glob, separator, name = pin.rpartition("=")
        if not separator or not glob or not name:
            raise UsageError("E204", f"{pin!r} is no pin", fix="--pin 'encoder.*=machine 1', or its number: 'head=0'")
        machine = _find_machine(cluster, name, pin)
        matching = [
            op.name for op in graph.ops if any(fnmatchcase(known, glob) for known in _operator_names(graph, op))
        ]
        if not matching:
            raise _unmatched_error(graph, glob, pin)
        for op in matching:
            if out.get(op, machine) != machine:
                raise UsageError(
                    "E206", f"pins {pin_of[op]!r} and {pin!r} put operator {op} on two machines", fix="leave one out"
                )
            out[op], pin_of[op] = machine, pin
    _extend_to_overwriters(graph, out, pin_of)
    _check_memory(graph, cluster, out)
    return out


def name_pins(pins: Sequence[str], cluster: Cluster) -> tuple[str, ...]:
    """Return pins with machines' names in place of numbers, as a plan of all machines of the cluster numbers them."""
    names = [machine.name for machine in cluster.select(order_machines(cluster)).machines]
    named = list[str]()
    for pin in pins:
        glob, _, machine = pin.rpartition("=")
        is_number = machine not in names and re.fullmatch(r"[0-9]{1,9}", machine) and int(machine) < len(names)
        named.append(f"{glob}={names[int(machine)]}" if is_number else pin)
    return tuple(named)


def _extend_to_overwriters(graph: Graph, pins: dict[str, int], pin_of: dict[str, str]) -> None:
    """Extend pins to all operators that touch the same overwritten buffer, since these run together."""
    groups = graph.overwritten.items()
    for _ in groups:  # as often as there are groups, since one may hand its machine on to another
        for buffer, ops in groups:
            first = next((op.name for op in ops if op.name in pins), None)
            if first is None:
                continue
            for op in ops:
                if pins.setdefault(op.name, pins[first]) != pins[first]:
                    raise UsageError(
                        "E206",
                        f"pins {pin_of[first]!r} and {pin_of[op.name]!r} put {first} and {op.name} on two machines; "
                        f"both touch {buffer}, which the step overwrites",
                        fix="leave one out",
                    )
                pin_of.setdefault(op.name, pin_of[first])


def _find_machine(cluster: Cluster, name: str, pin: str) -> int:
    names = [machine.name for machine in cluster.machines]
    if name in names:
        return names.index(name)
    if re.fullmatch(r"\d{1,9}", name) and int(name) < len(names):
        return int(name)
    known = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
    raise UsageError("E205", f"pin {pin!r} names no machine of the cluster; there are {known}", fix=f"use {names[0]!r}")


def _operator_names(graph: Graph, op: Op) -> list[str]:
    """Names that a pin may match: the operator's modules, outermost first, its own name, and the state it reads."""
    path = op.module.split(".") if op.module else []
    modules = [".".join(path[: i + 1]) for i in range(len(path))]
    return [*modules, op.name, *(name for name in op.inputs if graph.tensors[name].kind in STATE_KINDS)]


def _unmatched_error(graph: Graph, glob: str, pin: str) -> UsageError:
    known = sorted({name for op in graph.ops for name in _operator_names(graph, op)})
    near = difflib.get_close_matches(glob.strip("*."), known, n=1, cutoff=0.4)
    some = ", ".join(known[:8]) + (", ..." if len(known) > 8 else "")
    return UsageError(
        "E207",
        f"pin {pin!r} matches no module, operator or parameter; there are {some}",
        fix=f"--pin '{near[0]}={pin.rpartition('=')[2]}'" if near else "cutset inspect TASK lists the operators",
    )


def _check_memory(graph: Graph, cluster: Cluster, pins: Mapping[str, int]) -> None:
    held: dict[int, dict[str, int]] = {}
    state = state_bytes(graph)
    for op in graph.ops:
        if op.name in pins:
            sizes = held.setdefault(pins[op.name], {})
            for name in op.inputs:
                if name in state:
                    sizes[name] = state[name] * volume(graph.tensors[name].box)
    for number, tensors in sorted(held.items()):
        machine, need = cluster.machines[number], sum(tensors.values())
        if need > machine.memory_bytes:
            largest = max(tensors, key=lambda name: tensors[name])
            raise Infeasible(
                "E407",
                f"the pins put {need} bytes of parameters, gradients and copies on {machine.name}, which has "
                f"{machine.memory_bytes}; the largest is {largest} with {tensors[largest]}",
                fix="pin less of the model there, or leave the pin out",
            )
