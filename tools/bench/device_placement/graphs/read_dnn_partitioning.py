"""Reads a workload of dnn-partitioning, the JSON of "Efficient Algorithms for Device Placement of DNN Graph Operators"
(Tarnawski et al., NeurIPS 2020).

`maxFPGAs` accelerators of `maxSizePerFPGA` bytes and `maxCPUs` cores are to run `nodes`, joined by `edges`.
"""

import json
import re
from collections.abc import Mapping
from typing import Any, NoReturn

from .....errors import BadInput
from .layer_graph import Layer, LayerGraph, find_cycle
from .source_line import read_lines

MAX_VALUE = 1e300  # so that no sum overflows
SAME_COST = 1e-6  # the benchmark's own tolerance for the costs of one layer's edges
_AGAIN = "fetch the file again"


def read_workload(text: str, file: str) -> LayerGraph:
    """Return the layers of a workload. Raises BadInput (E370 to E375), naming file, line and entry."""
    for _ in read_lines(text, file):
        break
    reader = _Reader(text, file)
    whole = reader.parse()
    budget = reader.make_entry(whole, "", -1)
    accelerators, cpus = budget.read_count("maxFPGAs"), budget.read_count("maxCPUs")
    memory = budget.read_number("maxSizePerFPGA")
    if accelerators + cpus == 0:
        budget.fail("E372", "no device: maxFPGAs and maxCPUs are 0", fix="one of them is at least 1")
    nodes = [reader.make_entry(node, "nodes", i) for i, node in enumerate(budget.read_array("nodes"))]
    if not nodes:
        budget.fail("E372", "nodes is empty", fix="a graph has at least one node")
    number: dict[int, int] = {}
    for i, node in enumerate(nodes):
        identity = node.read_integer("id")
        if identity in number:
            node.fail("E373", f"id {identity} is nodes[{number[identity]}] already", fix="give every node its own id")
        number[identity] = i
    costs, pairs = _read_edges(reader, budget, number)
    layers = tuple(_make_layer(node, costs.get(i, 0.0)) for i, node in enumerate(nodes))
    return LayerGraph(layers, tuple(pairs), accelerators, cpus, memory)


def _make_layer(node: "_Entry", output_time: float) -> Layer:
    colour = node.read_integer("colorClass") if node.values.get("colorClass") is not None else None
    return Layer(
        name=str(node.values["id"]),
        time=node.read_number("fpgaLatency"),
        cpu_time=node.read_number("cpuLatency"),
        output_time=output_time,
        size_bytes=node.read_number("size") if "size" in node.values else 0.0,
        colour=colour,
        on_accelerator=node.read_flag("supportedOnFpga"),
        backward=node.read_flag("isBackwardNode"),
    )


def _read_edges(
    reader: "_Reader", budget: "_Entry", number: Mapping[int, int]
) -> tuple[dict[int, float], list[tuple[int, int]]]:
    """Return what moving each producer's output costs, and the edges, which have no cycle."""
    costs: dict[int, float] = {}
    pairs = []
    edges = [reader.make_entry(edge, "edges", i) for i, edge in enumerate(budget.read_array("edges"))]
    for edge in edges:
        ends = [edge.read_integer("sourceId"), edge.read_integer("destId")]
        for end in ends:
            if end not in number:
                edge.fail("E373", f"no node has the id {end}", fix="add the node, or remove the edge")
        source, target = (number[end] for end in ends)
        cost = edge.read_number("cost")
        if abs(costs.setdefault(source, cost) - cost) > SAME_COST:
            facts = f"cost {cost} out of node {ends[0]}, of which another edge says {costs[source]}"
            edge.fail("E372", facts, fix="all edges out of one node have one cost")
        pairs.append((source, target))
    cycle = find_cycle(len(number), pairs)
    if cycle:
        ids = list(number)
        round_trip = " -> ".join(str(ids[v]) for v in cycle)
        edges[pairs.index((cycle[0], cycle[1]))].fail("E374", f"a cycle: {round_trip}", fix="remove one of these edges")
    return costs, pairs


class _Reader:
    """The file's text; parses it and finds the line of an entry that is wrong."""

    def __init__(self, text: str, file: str) -> None:
        self.text = text
        self.file = file

    def parse(self) -> Any:
        """Parse the whole file as plain values."""
        try:
            return json.loads(self.text, parse_constant=_reject_constant)
        except json.JSONDecodeError as error:
            facts = f"{self.file}:{error.lineno}: no JSON at column {error.colno}: {error.msg}"
            raise BadInput("E370", facts, fix=f"{_AGAIN}: it is cut off, or no workload") from None
        except _NotFiniteError as error:
            facts = f"{self.file}:{self._line_of_word(str(error))}: {error} is no number"
            raise BadInput("E375", facts, fix="write a finite number") from None
        except (ValueError, RecursionError) as error:
            raise BadInput("E370", f"{self.file}:1: no workload: {error}", fix=_AGAIN) from None

    def _line_of_word(self, word: str) -> int:
        match = re.search(rf"[:,\[\s]{re.escape(word)}\b", self.text)
        return self.text.count("\n", 0, match.end() if match else 0) + 1

    def make_entry(self, values: Any, array: str, index: int) -> "_Entry":
        """Return an object of the file, from its `array`, or the whole if index is -1."""
        entry = _Entry(self, {}, array, index)
        if not isinstance(values, dict):
            entry.fail("E371", f"{str(values)[:40]!r} is no object", fix=_AGAIN)
        entry.values = values
        return entry

    def find_line(self, array: str, index: int) -> int:
        """Return the line on which element `index` of an array begins."""
        key = re.search(rf'"{array}"\s*:\s*\[\s*', self.text) if array else None
        if key is None:
            return 1
        at, decoder = key.end(), json.JSONDecoder()
        for _ in range(index):
            _, end = decoder.raw_decode(self.text, at)
            comma = re.compile(r"\s*,\s*").match(self.text, end)
            at = comma.end() if comma else end
        return self.text.count("\n", 0, at) + 1


class _Entry:
    """One object of the file, whose fields are checked as they are read."""

    def __init__(self, reader: _Reader, values: dict[str, Any], array: str, index: int) -> None:
        self.reader = reader
        self.values = values
        self.array = array
        self.index = index

    def fail(self, code: str, facts: str, *, fix: str) -> NoReturn:
        """Raise the error that names this entry."""
        place = f"{self.array}[{self.index}]: " if self.array else ""
        line = self.reader.find_line(self.array, self.index)
        raise BadInput(code, f"{self.reader.file}:{line}: {place}{facts}", fix=fix)

    def _field(self, name: str) -> Any:
        if name not in self.values:
            fix = (
                f'add "{name}"'
                if self.array
                else f'add "{name}"; a workload has maxFPGAs, nodes and edges, a split not'
            )
            self.fail("E371", f"no field {name}", fix=fix)
        return self.values[name]

    def read_number(self, name: str) -> float:
        """Return a field that is a finite number of at least 0."""
        value = self._field(name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            self.fail("E371", f"{name} is {str(value)[:40]!r}, no number", fix=f'"{name}": 0.0')
        if value < 0 or value > MAX_VALUE:
            self.fail("E375", f"{name} is {str(value)[:40]}, not from 0 to 1e300", fix=f'"{name}": 0.0')
        return float(value)

    def read_integer(self, name: str) -> int:
        value = self._field(name)
        if isinstance(value, bool) or not isinstance(value, int):
            self.fail("E371", f"{name} is {str(value)[:40]!r}, no integer", fix=f'"{name}": 1')
        return int(value)

    def read_count(self, name: str) -> int:
        """Return a field that is an integer of at least 0."""
        value = self.read_integer(name)
        if value < 0:
            self.fail("E375", f"{name} is {value}, less than 0", fix=f'"{name}": 1')
        return value

    def read_flag(self, name: str) -> bool:
        value = self._field(name)
        if value not in (0, 1):
            self.fail("E371", f"{name} is {str(value)[:40]!r}, not true or false", fix=f'"{name}": true')
        return bool(value)

    def read_array(self, name: str) -> list[Any]:
        value = self._field(name)
        if not isinstance(value, list):
            self.fail("E371", f"{name} is no array", fix=f'"{name}": [...]')
        return list(value)


class _NotFiniteError(ValueError):
    """NaN or Infinity, which JSON does not have and Python reads."""


def _reject_constant(word: str) -> NoReturn:
    raise _NotFiniteError(word)
